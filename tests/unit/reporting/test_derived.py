"""Facts that are derived without the mechanism are those that the mechanism has, for every kind of run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.privacy.clipping import CLIPS, PerLayerClip
from sottovoce.reporting.adversaries import FederationFacts
from sottovoce.reporting.derived import alike, charge_faults, derive, fact_faults, has_room
from sottovoce.reporting.statement import Charges, ChosenFacts, RunFacts, Statement, VocabularyFacts, make_statement
from sottovoce_evidence.accounting import BestOfRuns, Covered, HeldOutSums, SampledExamples, ThresholdedHistogram
from sottovoce_evidence.recipe import Recipe

GOOD = Recipe().replace(
    privacy={"users": 1000, "cohort": 50.0, "noise_multiplier": 1.5, "delta": 1e-5, "accountant": "rdp"},
    run={"rounds": 20},
)
MASKED = {"aggregation": "masked", "survivors": 10, "colluding": 2}
KINDS = {
    "poisson": {},
    "philox": {"privacy": {"randomness": "standard"}},
    "fixed": {"privacy": {"sampling": "fixed"}},
    "in turn": {"privacy": {"sampling": "in_turn"}},
    "least separation": {"privacy": {"sampling": "min_separation", "min_separation": 5, "participations": 3}},
    "correlated": {
        "privacy": {"sampling": "in_turn", "noise": "banded", "noise_coefficients": (1.0, 0.5), "accountant": "pld"}
    },
    "clipped denominator": {"privacy": {"estimator": "clipped_denominator", "min_weight": 500.0}},
    "per layer": {"privacy": {"clipping": "per_layer"}},
    "given layers": {"privacy": {"clipping": "per_layer", "layer_clip_norms": (3.0, 4.0)}},
    "adaptive": {"privacy": {"adaptive_quantile": 0.5, "adaptive_bit_noise": 10.0}},
    "adaptive layers": {
        "privacy": {"clipping": "per_layer", "adaptive_quantile": 0.5, "adaptive_bit_noise": 10.0},
    },
    "noise schedule": {"privacy": {"noise_schedule": ((1, 1.0), (5, 2.0))}},
    "clip schedule": {"privacy": {"clip_schedule": ((1, 1.5), (9, 0.5)), "clip_path": "geometric"}},
    "weights": {"privacy": {"total_weight": 400.0, "weight_cap": 160.0, "clip_weighted": True}},
    "silos": {"federation": {"max_silos": 3}, "privacy": {"accountant": "pld"}},
    "examples": {
        "run": {"algorithm": "els"},
        "local": {"tokens": 16},
        "privacy": {"examples_per_user": 4, "accountant": "pld"},
    },
    "noise of devices": {"federation": {**MASKED, "noise": "devices", "server_noise_multiplier": 1.0}},
}
DEVICES = {"masked": MASKED, "noise of devices": KINDS["noise of devices"]["federation"]}


def stated(sections: dict, federation: FederationFacts | None = None) -> tuple[Statement, Recipe]:
    """The statement that a run of this recipe writes. Its ε is not computed: no check here reads it."""
    recipe = resolve(GOOD.replace(**sections))
    mechanism = build_mechanism(recipe, ["one", "two"])
    about = RunFacts("b1946ac9", 20, 20, VocabularyFacts("9f86", "public"), federation=federation)
    spent = mechanism.events(20)
    statement = make_statement(recipe, mechanism, recipe.privacy.accountant, Charges(spent, spent, store=spent), about)
    return Statement.from_json(statement.to_json()), recipe


@pytest.fixture(scope="module", autouse=True)
def without_accounting():
    """ε of each kind takes seconds together, and nothing here depends on it."""
    patch = pytest.MonkeyPatch()
    patch.setattr("sottovoce_evidence.accounting.epsilon", lambda *given, **named: 1.0)
    yield
    patch.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_the_statement_of_a_run_follows_from_its_recipe(kind):
    statement, recipe = stated(KINDS[kind])
    assert list(fact_faults(statement, recipe)) == []
    assert list(charge_faults(statement, statement.charged, derive(statement, recipe))) == []


@pytest.mark.parametrize("kind", DEVICES)
def test_that_of_a_run_across_devices_too(kind):
    declared = DEVICES[kind]
    names = ("aggregation", "survivors", "colluding", "noise")
    facts = FederationFacts(30, **{name: declared.get(name, "server") for name in names})
    statement, recipe = stated({"federation": declared}, facts)
    assert list(fact_faults(statement, recipe)) == []
    lie = replace(statement, federation=replace(facts, colluding=1))
    assert any("federation.colluding is 1" in fault for fault in fact_faults(lie, recipe))


@pytest.mark.parametrize(("setting", "other"), [("clipping", "none"), ("estimator", "true_average")])
def test_what_bounds_nobody_is_a_fault_even_if_all_facts_agree(setting, other):
    statement, recipe = stated({})
    recipe = recipe.replace(privacy={setting: other})
    infinite = {setting: other, "sensitivity": math.inf, "noise_std": math.inf}
    infinite |= {"clip_norm": None} if setting == "clipping" else {}
    statement = replace(statement, mechanism=replace(statement.mechanism, **infinite))
    assert list(fact_faults(statement, recipe)) == ["by training.toml nothing bounds what one user can do to the model"]


def test_a_clip_that_is_added_to_the_registry_is_asked_for_its_norms(monkeypatch):
    @dataclass(frozen=True)
    class Halves(PerLayerClip):
        """Two halves of an update, whatever layers there are."""

        clip_norms: tuple[float, ...] = field(init=False, default=())
        clip_norm: float = 1.0

        def __post_init__(self):
            object.__setattr__(self, "clip_norms", (self.clip_norm / 2, self.clip_norm / 2))

    monkeypatch.setitem(CLIPS, "halves", Halves)
    statement, recipe = stated({"privacy": {"clipping": "halves"}})
    assert statement.mechanism.clip_norm == pytest.approx(15 / math.sqrt(2))
    assert list(fact_faults(statement, recipe)) == []
    lie = replace(statement, mechanism=replace(statement.mechanism, clip_norm=15.0))
    assert "clip_norm is 15" in next(fact_faults(lie, recipe))


@pytest.mark.parametrize("kind", ["poisson", "in turn"])
def test_nothing_but_rounds_of_the_run_is_charged(kind):
    """A round that is said to be covered, or one of many silos by chance, would pay for one that was done again."""
    statement, recipe = stated(KINDS[kind])
    derived, charged = derive(statement, recipe), list(statement.charged)
    assert list(charge_faults(statement, charged, derived)) == []
    assert list(charge_faults(statement, [*charged, (ThresholdedHistogram(1.0, 1e-6), 1), charged[0]], derived)) == []
    assert "it charges 0 rounds" in list(charge_faults(statement, [(Covered(1.5), 20)], derived))[-1]
    for cheap in (Covered(1.5), SampledExamples(5000 * 1.5, 0.1, 5000), replace(charged[0][0], noise_multiplier=150.0)):
        (fault,) = charge_faults(statement, [*charged, (cheap, 3)], derived)
        assert fault.startswith(f"it charges what is no round of this run: {cheap.kind}, {{")


def chosen(charged):
    return [(BestOfRuns(4.0, "poisson", tuple(charged)), 1)]


def test_each_of_several_runs_is_charged_as_the_one_that_was_chosen():
    statement, recipe = stated(KINDS["poisson"])
    derived, charged = derive(statement, recipe), statement.charged
    best = replace(statement, chosen=ChosenFacts(4.0, "poisson", 1, "top1", "a"))
    assert list(charge_faults(best, chosen(charged), derived)) == []
    assert list(charge_faults(best, [(ThresholdedHistogram(1.0, 1e-6), 1), *chosen(charged)], derived)) == []
    fewer, apart = ([(event, count) for event, _ in charged] for count in (19, 1))
    other = [(HeldOutSums(1e6, 1), 1)]
    for cheap in (
        chosen(fewer),  # less than its rounds
        [*chosen(apart), *[(event, count - 1) for event, count in charged]],  # rounds that are moved out of the choice
        [*chosen(other), *charged],
        [(chosen(charged)[0][0], 2)],
        charged,
    ):
        assert any("choice" in fault for fault in charge_faults(best, cheap, derived))


def test_rounds_that_a_budget_forbids_need_not_be_planned():
    statement, recipe = stated(KINDS["poisson"])
    assert has_room(statement, recipe, derive(statement, recipe)) is None
    fewer = replace(statement, rounds_planned=7, rounds_done=7)
    assert has_room(fewer, recipe, derive(fewer, recipe)) == [(statement.charged[0][0], 8)]


def test_numbers_are_alike_but_for_their_rounding():
    assert alike({"a": [1.0, None]}, {"a": (1.0 + 1e-9, None)})
    assert not alike(1.0, 1.001)
    assert not alike(True, 1)
    assert not alike({"a": 1}, {"a": 1, "b": 2})
    assert not alike(float("nan"), float("nan"))
