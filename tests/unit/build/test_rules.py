"""Every rule has an example that it refuses."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from family import of_family
from sottovoce.build import rules
from sottovoce.build.assembly import adapters_of
from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.build.rules import (
    StoreFacts,
    adapter_rules,
    check,
    device_rules,
    model_rules,
    recipe_rules,
    roster_rules,
    simulation_rules,
    store_rules,
    strategy_rules,
)
from sottovoce.models.lora import Adapters, Survey
from sottovoce_evidence import rules as guarantee
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.accounting.events import GaussianRelease, SampledGaussian
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe, shipped_recipes
from sottovoce_evidence.statement import Evidence, RunFacts, VocabularyFacts, state

GOOD = Recipe().replace(
    local={"batch": 2, "unroll": 5},
    privacy={"users": 20, "cohort": 6, "noise_multiplier": 1.0, "delta": 0.01},
    run={"rounds": 10},
)
STORE = StoreFacts(users=20, tokens_per_user=40, public_tokens=1000)
CENTRAL = {"run": {"algorithm": "central"}, "privacy": {"mode": "none"}}
FEDSGD = {"run": {"algorithm": "fedsgd"}}
ELS = {"run": {"algorithm": "els"}, "local": {"tokens": 10}, "privacy": {"examples_per_user": 4}}
EXPERIMENT = {"mode": "experiment", "noise_multiplier": None, "noise_std": 0.1}
VOCABULARY = ((SampledGaussian(1.0, "poisson", 1.0), 1),)


@cache
def survey_of(family: str, adapters: Adapters) -> Survey:
    return Survey(of_family(family), adapters)


@dataclass(frozen=True)
class Case:
    """A recipe, and what is known about the place where it is used."""

    recipe: Recipe
    facts: StoreFacts = STORE
    layers: Sequence[str] = ("a", "b")
    processes: int = 1
    registered: tuple[int, ...] = (1,) * 20
    made_by_server: int = 0
    before: Spent = ()
    own_objective: bool = False
    own_strategy: bool = False
    family: str = "lstm"  # the model that gets adapters

    @property
    def survey(self) -> Survey:
        return survey_of(self.family, adapters_of(self.recipe) or Adapters(1))


SCOPES = {
    "recipe": lambda c: recipe_rules(c.recipe, c.processes, c.before),
    "store": lambda c: store_rules(c.recipe, c.facts, c.own_objective),
    "model": lambda c: model_rules(c.recipe, c.layers, 1),
    "devices": lambda c: device_rules(c.recipe),
    "roster": lambda c: roster_rules(c.recipe, c.registered, c.made_by_server),
    "simulation": lambda c: simulation_rules(c.recipe),
    "adapters": lambda c: adapter_rules(c.survey),
    "strategy": lambda c: strategy_rules(c.recipe, c.processes) if c.own_strategy else iter(()),
    "evidence": lambda c: guarantee.guarantee_rules(c.recipe, c.before),
}


def case(*changes: dict[str, Any], **known: Any) -> Case:
    """The good recipe, with sections changed one after another, and what else is known."""
    recipe = GOOD
    for sections in changes:
        recipe = recipe.replace(**sections)
    return Case(recipe, **known)


def privacy(**keys: Any) -> dict[str, Any]:
    return {"privacy": keys}


def separated(**keys: Any) -> dict[str, Any]:
    return privacy(**{"sampling": "min_separation", "min_separation": 5, "cohort": 4, **keys})


def correlated(**keys: Any) -> dict[str, Any]:
    return privacy(**{"sampling": "in_turn", "noise": "banded", **keys})


def federation(**keys: Any) -> dict[str, Any]:
    return {"federation": keys}


MASKED = federation(survivors=3)
NOISED = federation(survivors=3, noise="devices")


# For each scope, in the order of its rules: an example, and words of its sentence.
def adapters(**keys: Any) -> dict[str, dict[str, Any]]:
    return {"model": {"adapter_rank": 2, **keys}}


EXAMPLES: dict[str, list[tuple[Case, str]]] = {
    "recipe": [
        (case({"model": {"initial_is_public": True}}), "model.initial_is_public is said of nothing"),
        (case({"model": {"adapter_scale": 2.0}}), "model.adapter_scale is for adapters, and model.adapter_rank is not"),
        (case(adapters(initial="none")), "model.adapter_rank=2 trains beside frozen weights, and fresh ones know"),
        (case({"run": {"algorithm": "central"}}), "no user-level guarantee: it pools text"),
        (case(CENTRAL, privacy(mode="experiment", noise_std=0.1)), "no clip and no noise to experiment with"),
        (case(privacy(examples_per_user=4)), "privacy.examples_per_user=4 is for run.algorithm='els', not 'fedavg'"),
        (case(privacy(sampling="examples")), "privacy.sampling='examples' is that of run.algorithm='els'"),
        (case(ELS, privacy(sampling="fixed")), "draws examples by Poisson sampling, not 'fixed'"),
        (case(ELS, {"local": {"tokens": 0}}), "local.tokens is not set: with run.algorithm='els'"),
        (case(ELS, privacy(users=2**20, examples_per_user=8192)), "examples are numbered with 32 bits"),
        (case(ELS, processes=2), "run.algorithm='els' trains in one process"),
        (case(privacy(users=0)), "privacy.users is not set"),
        (case(privacy(cohort=0)), "privacy.cohort is not set, or 0: it must be > 0"),
        (case(ELS, privacy(cohort=81)), "must be at most users · examples_per_user = 80, all examples"),
        (
            case(privacy(cohort=21)),
            "privacy.cohort=21 must be at most privacy.users=20, all the people there are",
        ),
        (case(privacy(cohort=2.5, sampling="fixed")), "privacy.cohort=2.5 must be a whole number unless"),
        (
            case(privacy(cohort=21, sampling="in_turn")),
            "privacy.cohort=21 must be at most the declared privacy.users=20",
        ),
        (case(privacy(participations=2)), "privacy.participations=2 is for privacy.sampling='min_separation', not 'p"),
        (case(separated(cohort=1, min_separation=11)), "min_separation=11 is more than run.rounds=10"),
        (case(separated(participations=1)), "10 cohorts of 4 are 40 user updates, and 20 users give 20 at most; use 2"),
        (
            case(privacy(clip_schedule=[[1, 1.0], [11, 0.5]])),
            "privacy.clip_schedule changes at round 11, and run.rounds=10",
        ),
        (
            case(privacy(noise_schedule=[[1, 1.0], [11, 0.5]])),
            "privacy.noise_schedule changes at round 11, and run.rounds",
        ),
        (case(privacy(clip_schedule=[[1, 1.0]], adaptive_quantile=0.5)), "both move the clip norm; keep one"),
        (case(privacy(clip_schedule=[[1, 1.0]], clipping="none")), "nothing to change: privacy.clipping='none'"),
        (case(privacy(mode="none", noise_schedule=[[1, 1.0]])), "no meaning in mode 'none', which adds no noise"),
        (case(privacy(sampling="in_turn", noise_schedule=[[1, 1.0], [5, 0.5]])), "keep the noise as it is"),
        (
            case({"server": {"schedule": [[1, 1.0], [11, 0.5]]}}),
            "server.schedule changes at round 11, and run.rounds=10",
        ),
        (case(privacy(adaptive_quantile=0.5, clipping="none")), "an adaptive clip norm needs a clip"),
        (case(privacy(**EXPERIMENT), correlated()), "privacy.noise='banded' is for private runs"),
        (case(privacy(noise="banded")), "use 'in_turn' or 'min_separation' as privacy.sampling, not 'poisson'"),
        (case(correlated(clip_schedule=[[1, 1.0], [5, 0.5]])), "privacy.clip_schedule changes rounds, and privacy.no"),
        (case(privacy(**EXPERIMENT, epsilon=2.0)), "no meaning in experiment mode: its ε is infinite"),
        (case(privacy(mode="experiment", noise_multiplier=None)), "experiment mode needs privacy.noise_std or"),
        (
            case(privacy(mode="experiment", noise_std=0.1)),
            "privacy.noise_std and privacy.noise_multiplier are both given",
        ),
        (case(privacy(mode="experiment", estimator="true_average")), "needs an estimator of bounded sensitivity"),
        (case(privacy(noise_std=0.1)), "privacy.noise_std is for experiment mode"),
        (case(privacy(estimator="true_average")), "privacy.estimator='true_average' has no bounded sensitivity"),
        (case(privacy(clipping="none")), "privacy.clipping='none' bounds no user's update"),
        (case(privacy(noise_multiplier=None)), "a private run needs privacy.noise_multiplier or privacy.epsilon"),
        (case(privacy(noise_multiplier=0)), "privacy.noise_multiplier=0 must be above 0 in a private run"),
        (case(privacy(delta=0.05)), "privacy.delta=0.05 must be below 1/users = 0.05"),
        (case(privacy(weight_cap=100)), "privacy.weight_cap=100 gives users unequal weights"),
        (
            case(privacy(epsilon=0.5, delta=1e-3), before=VOCABULARY),
            "privacy.epsilon=0.5 is used up before the first round",
        ),
        (case({"local": {"user_share": 0.5}}), "local.user_share has no meaning with local.objective='plain'"),
        (case({"local": {"public": "text"}}), "local.public has no meaning with local.objective='plain'"),
        (case(FEDSGD, {"local": {"objective": "rehearsal"}}), "local.objective='rehearsal' is for the local steps"),
        (case({"local": {"objective": "without_forgetting", "public": "text"}}), "reads no other text: remove it"),
        (case(CENTRAL, {"local": {"penalty": 0.1}}), "local.penalty=0.1 is for the local steps of fedavg"),
        (case(FEDSGD, {"local": {"penalty": 0.1}}), "local steps of fedavg, not for fedsgd; remove it"),
        (case({"local": {"penalty": 1.0, "learning_rate": 0.5}}), "local.penalty=1 must be below 1, half of"),
        (case(FEDSGD, {"local": {"gradient_clip": 0.1}}), "local.gradient_clip=0.1 is for the local steps of fedavg"),
        (case(CENTRAL, privacy(cohort=2.5)), "privacy.cohort=2.5 must be a whole number in central training"),
        (case(CENTRAL, {"run": {"devices": 2}}), "run.algorithm='central' trains on one device"),
        (case({"audit": {"users": 40}}, privacy(sampling="fixed")), "with privacy.sampling='fixed'; use 'poisson'"),
        (case({"audit": {"users": 40}}, processes=2), "cannot with several processes"),
        (case(federation(participations=3)), "federation.participations=3 is for federation.noise='devices'"),
        (case(federation(noise="devices")), "hides a device in a sum that is masked; set federation.survivors"),
        (case(NOISED, privacy(sampling="fixed")), "federation.noise='devices' needs users who join by themselves"),
        (case(NOISED, separated(), federation(participations=3)), "federation.participations=3 is for 'poisson'"),
        (case(federation(colluding=1)), "federation.colluding=1 is for masked sums; set federation.survivors"),
        (case(MASKED, federation(colluding=2)), "federation.survivors=3 must be 4 or more, federation.colluding + 2"),
        (case(MASKED, privacy(mode="none", clipping="none")), "masks hide whole numbers within a bound"),
    ],
    "roster": [
        (case(MASKED, registered=(1,) * 3000), "a masked sum is over 2,048 devices at most, and 3,000 are registered"),
        (case(MASKED, registered=(1, 1)), "federation.survivors=3 is more than the 2 devices registered"),
        (
            case(MASKED, made_by_server=1),
            "federation.colluding=0, and the server made the keys of 1 device, so could sign for it: rekey these",
        ),
    ],
    "simulation": [
        (case(MASKED), "federation.survivors=3 is for real devices: a simulation has no server to hide from"),
    ],
    "store": [
        (case({"local": {"objective": "rehearsal"}}, own_objective=True), "an objective of your own was given"),
        (case({"local": {"objective": "rehearsal", "user_share": 1e-6}}), "a user would read 40,000,000 tokens"),
        (
            case({"local": {"objective": "rehearsal"}}, facts=replace(STORE, public_tokens=None)),
            "local.objective='rehearsal' needs local.public",
        ),
        (
            case({"local": {"public": "text"}}, facts=replace(STORE, same_words=False)),
            "local.public=text has another vocabulary than the store",
        ),
        (
            case({"local": {"objective": "rehearsal", "user_share": 0.25}}, facts=replace(STORE, public_tokens=119)),
            "has 119 tokens, fewer than the 120 that one user may rehearse",
        ),
        (
            case(ELS, privacy(examples_per_user=5)),
            "pays for more than there can be: users are cut to 40 tokens, 4 examples of local.tokens=10; use 4",
        ),
        (case(CENTRAL, facts=replace(STORE, users=0)), "the store has no users to train on"),
        (case(facts=replace(STORE, longest_is_cap=True)), "tokens_per_user=40 is the length of the longest text"),
        (
            case({"local": {"batch": 100}}),
            "local.batch=100 lanes of local.unroll=5 are mostly empty: users of the store have at most 40 tokens",
        ),
    ],
    "model": [
        (case({"run": {"devices": 3}}), "run.devices=3 is more than the 1 there are"),
    ],
    "adapters": [
        (case(adapters(adapter_matrices=["*query*"])), "'*query*' names no array of the model; matrices that can have"),
        (
            case(adapters(adapter_matrices=["projection", "*weight"])),
            "names input_gate.weight, forget_gate.weight, cell_gate.weight, output_gate.weight, not used as x @ "
            "weight.T; matrices that can have an adapter: projection",
        ),
        (
            case(adapters(), family="stacked_lstm, variational and tied"),
            "no matrix of the model is used as x @ weight.T",
        ),
        (
            case(adapters(adapter_rank=6)),
            "model.adapter_rank=6 must be below 6, or the adapter of projection [6, 8] is no smaller",
        ),
        (case(adapters(adapter_trains=["norms"])), "model.adapter_trains: 'norms' names no array without an adapter"),
    ],
    "strategy": [
        (case(own_strategy=True), "a strategy of your own has no accounting, so it promises nothing"),
        (case(CENTRAL, own_strategy=True), "run.algorithm='central' is a strategy, and one of your own was given"),
        (
            case(privacy(mode="none"), {"audit": {"users": 40}}, own_strategy=True),
            "[audit] watches rounds of Algorithm 1",
        ),
        (case(privacy(mode="none"), own_strategy=True, processes=2), "a strategy of your own trains in one process"),
    ],
    "evidence": [(case(ELS), "draws examples, and privacy.sampling='poisson' draws users")],
    "devices": [
        (case(CENTRAL), "pools text, and devices keep theirs"),
        (case(ELS), "run.algorithm='els' samples the examples of all users in one place"),
        (case(privacy(sampling="fixed")), "privacy.sampling='fixed' draws from all users"),
        (case(privacy(secrets="seeded")), "takes the noise from run.seed=0"),
        (case({"local": {"objective": "rehearsal"}}), "which devices do not take yet"),
        (case({"audit": {"users": 40}}), "there is none across devices"),
    ],
}


@pytest.mark.parametrize(
    ("scope", "example", "words"),
    [(scope, *example) for scope, examples in EXAMPLES.items() for example in examples],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_example_is_refused_with_its_sentence(scope: str, example: Case, words: str) -> None:
    with pytest.raises(SottoError) as refused:
        check(SCOPES[scope](example))
    assert words in str(refused.value)


def _line(rule: Iterator[str]) -> tuple[str, int]:
    """Where the first rule that applies yields its sentence: the file and the line."""
    next(rule)
    innermost: Any = rule
    while innermost.gi_yieldfrom is not None:
        innermost = innermost.gi_yieldfrom
    return innermost.gi_code.co_filename, innermost.gi_frame.f_lineno


def test_every_rule_has_an_example() -> None:
    yields = {
        (module.__file__, node.lineno)
        for module in (rules, guarantee)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Yield)
    }
    reached = {_line(SCOPES[scope](example)) for scope, examples in EXAMPLES.items() for example, _ in examples}
    assert yields == reached


ONE_NOISE = "federation.noise='devices' needs a private run with independent noise, one noise multiplier, "
REFUSED_WHEN_BUILT = [
    (case(ELS, privacy(examples_per_user=0)), "examples_per_user"),
    (case(ELS, privacy(examples_per_user=10_001)), "examples_per_user"),
    (case(ELS, privacy(accountant="rdp")), "'rdp'"),
    (case(separated(min_separation=0)), "min_separation=0 must be from 1 to 5, the declared users over the cohort"),
    (case(separated(min_separation=6)), "min_separation=6 must be from 1 to 5"),
    (case(federation(max_silos=2), privacy(sampling="fixed")), "'fixed' has no accounting for one person in 2 silos"),
    (case(federation(max_silos=2), privacy(accountant="rdp")), "'rdp'"),
    (case(NOISED, privacy(**EXPERIMENT)), ONE_NOISE),
    (case(NOISED, privacy(mode="none", noise_multiplier=None)), "federation.noise='devices'"),
    (case(NOISED, correlated(noise_coefficients=[1.0, 0.5])), ONE_NOISE),
    (case(NOISED, privacy(adaptive_quantile=0.5)), ONE_NOISE),
    (case(NOISED, privacy(noise_schedule=[[1, 1.0], [2, 2.0]])), ONE_NOISE),
    (case(NOISED, privacy(estimator="clipped_denominator")), ONE_NOISE),
    (case(NOISED, federation(server_noise_multiplier=9.0)), "server_noise_multiplier=9 is part of"),
]


@pytest.mark.parametrize(("example", "words"), REFUSED_WHEN_BUILT, ids=str)
def test_what_has_no_accounting_is_refused_when_a_run_is_built_and_when_it_is_stated(example, words) -> None:
    for build in (lambda recipe: build_mechanism(resolve(recipe), ("all",)), stated):
        with pytest.raises(SottoError) as refused:
            build(example.recipe)
        assert words in str(refused.value)


def stated(recipe):
    """The statement of a run of this recipe, as `resolve` keeps the sampling of one."""
    if recipe.run.algorithm == "els":
        recipe = recipe.replace(privacy={"sampling": "examples"})
    facts = RunFacts(run="1", rounds_planned=10, rounds_done=10, vocabulary=VocabularyFacts("9f", "public"))
    evidence = Evidence(recipe, (), facts)
    return state(replace(evidence, charged=evidence.mechanism().events(10)))


@pytest.mark.parametrize("scope", SCOPES)
def test_a_good_recipe_is_not_refused(scope: str) -> None:
    check(SCOPES[scope](case()))


@pytest.mark.parametrize(
    "changes",
    [
        (CENTRAL,),
        (privacy(**EXPERIMENT),),
        (privacy(sampling="in_turn"),),
        (separated(),),
        (separated(min_separation=2, participations=2),),
        (privacy(adaptive_quantile=0.5),),
        (ELS,),
        (ELS, privacy(cohort=70, estimator="clipped_denominator", adaptive_quantile=0.5)),
        ({"local": {"objective": "rehearsal", "user_share": 0.5, "public": "text"}},),
        ({"audit": {"users": 40}},),
        (MASKED,),
        (federation(max_silos=3),),
    ],
    ids=str,
)
def test_other_methods_are_not_refused(changes: tuple[dict[str, Any], ...]) -> None:
    check(SCOPES["recipe"](case(*changes)))
    check(SCOPES["store"](case(*changes, facts=replace(STORE, public_tokens=4000))))


# The matrix of one of them is searched for, which takes seconds.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "choquette2023" else name for name in shipped_recipes()],
)
def test_shipped_recipes_are_not_refused(name: str) -> None:
    recipe = Recipe.load(name)
    if not recipe.privacy.users:  # left to `sotto init` and `sotto base train`, which know the text
        recipe = recipe.replace(privacy={"users": 4000, "delta": 1e-5})
    resolve(recipe.replace(privacy={"noise_multiplier": 1.0}) if recipe.privacy.mode == "private" else recipe)


@pytest.mark.parametrize(
    ("section", "key"), [("privacy", "clip_schedule"), ("privacy", "noise_schedule"), ("server", "schedule")]
)
@pytest.mark.parametrize(
    ("points", "words"), [([[2, 1.0]], "must begin at round 1"), ([[1]], "must be pairs"), ([[1, 0.0]], "above 0")]
)
def test_a_schedule_that_makes_no_sense_is_refused_by_its_key(
    section: str, key: str, points: list[list[float]], words: str
) -> None:
    with pytest.raises(SottoError, match=words) as refused:
        check(SCOPES["recipe"](case({section: {key: points}})))
    assert str(refused.value).startswith(f"{section}.{key}: ")


def test_a_delta_that_the_vocabulary_uses_up_is_refused_without_a_budget_too() -> None:
    words = ((GaussianRelease(1.0, 0.005), 1),)
    with pytest.raises(SottoError, match="delta"):
        check(SCOPES["recipe"](case(privacy(delta=0.004), before=words)))


@pytest.mark.parametrize(
    ("changes", "processes", "reason"),
    [
        (CENTRAL, 1, "run.algorithm='central'"),
        (ELS, 1, "run.algorithm='els'"),
        ({}, 2, "several processes"),
    ],
)
def test_canaries_are_refused_where_no_round_can_be_watched(
    changes: dict[str, Any], processes: int, reason: str
) -> None:
    with pytest.raises(SottoError, match=f"cannot with {reason}"):
        check(SCOPES["recipe"](case(changes, {"audit": {"users": 40}}, processes=processes)))
