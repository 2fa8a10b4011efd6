"""What a statement says of the mechanism is true of round 1, and it says so where later rounds differ."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import statement_json

from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.accounting import (
    NonPrivate,
    SampledGaussian,
    SampledSkellam,
    ThresholdedHistogram,
    epsilon,
    rounded_up,
)
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.adversaries import FederationFacts
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import Charges, RunFacts, Statement, VocabularyFacts, make_statement, realised_epsilon
from sottovoce_evidence.statement_text import prose, with_prose

ROUND_1 = "These are figures of round 1."
PRIVACY = {"users": 10_000, "cohort": 100, "clip_norm": 15.0, "noise_multiplier": 1.0, "delta": 1e-5}


def state(about: dict[str, Any] | None = None, **privacy: Any) -> Statement:
    """A run of 20 rounds of a model of four layers: the expected weight of a cohort is 100, so 𝕊 = S/100."""
    settings = {"data": {"store": "none"}, "privacy": {**PRIVACY, **privacy}, "run": {"rounds": 20}}
    recipe = resolve(Recipe.from_dict(settings))
    mechanism = build_mechanism(recipe, ["a", "b", "c", "d"])
    run = RunFacts("b1946ac9", 20, 20, VocabularyFacts.of("9f86d081", {"source": "public"}), **about or {})
    return make_statement(recipe, mechanism, "rdp", Charges(mechanism.events(20)), run)


NOISED = {"aggregation": "masked", "noise": "devices", "survivors": 10, "colluding": 2, "server_noise_multiplier": 0.8}


def test_noise_of_devices_has_an_epsilon_against_the_server() -> None:
    settings = {"data": {"store": "none"}, "privacy": PRIVACY, "run": {"rounds": 20}, "federation": NOISED}
    recipe = resolve(Recipe.from_dict(settings))
    mechanism = build_mechanism(recipe, ["a"])
    words = VocabularyFacts.of("9f86d081", {"source": "public"})
    devices = FederationFacts(devices=50, aggregation="masked", survivors=10, colluding=2, noise="devices")
    histogram = (ThresholdedHistogram(5.0, 1e-7), 1)
    charges = Charges(mechanism.events(20), before=[histogram])
    statement = make_statement(recipe, mechanism, "rdp", charges, RunFacts("r", 20, 20, words, federation=devices))
    found = statement.mechanism.devices
    assert found is not None
    assert (found.noise_multiplier, found.survivors, found.colluding) == (0.8, 10, 2)
    assert found.participations == mechanism.devices.participations > 1
    # Every round that a user may join counts against the server, and so do the words.
    rounds = (SampledSkellam(0.8, "poisson", 1.0, found.steps), found.participations)
    assert statement.epsilon_server == epsilon([histogram, rounds], 1e-5, "rdp")
    assert statement.epsilon_server > statement.epsilon
    assert [one.epsilon for one in statement.adversaries if "up to 2 devices" in one.who] == [statement.epsilon_server]
    assert statement.noise_generator.startswith("Skellam")
    text = prose(statement)
    assert "any 8 honest ones together 0.8 times the clip norm" in text
    assert f"Against the server with up to 2 devices, ε is {rounded_up(statement.epsilon_server)}" in text
    assert "Skellam noise of standard deviation" in text
    assert "simulation" not in text
    assert Statement.from_json(json.loads(json.dumps(statement.to_json()))) == statement


def figures(statement: Statement) -> tuple[float, ...]:
    names = ("clip_norm", "sensitivity", "noise_multiplier", "noise_std")
    return tuple(getattr(statement.mechanism, name) for name in names)


def test_where_nothing_changes_no_round_is_named() -> None:
    for same in ({}, {"clipping": "per_layer"}, {"layer_clip_norms": [12.0, 8.0, 4.0, 1.0], "clipping": "per_layer"}):
        statement = state(**same)
        assert figures(statement) == pytest.approx((15, 0.15, 1, 0.15))
        assert "clipped to L2 norm 15 (" in prose(statement)
        assert "round 1" not in prose(statement)


def test_a_clip_norm_is_told_as_the_recipe_has_it() -> None:
    """It is clipped to in float32, whose nearest to 0.3 is 0.30000001."""
    for clipping in ("flat", "per_layer"):
        assert state(clip_norm=0.3, clipping=clipping).mechanism.clip_norm == 0.3


def test_a_schedule_of_one_value_is_that_value() -> None:
    statement = state(clip_schedule=[[1, 4.0]], noise_schedule=[[1, 2.0], [5, 2.0]])
    assert figures(statement) == pytest.approx((60, 0.6, 2, 1.2))
    assert "clipped to L2 norm 60 (" in prose(statement)
    assert "round 1" not in prose(statement)


def test_a_clip_norm_on_a_path_is_told_by_its_values_and_its_path() -> None:
    statement = state(clip_schedule=[[1, 4], [10, 1]], clip_path="geometric")
    assert figures(statement) == pytest.approx((60, 0.6, 1, 0.6))
    text = prose(statement)
    assert "clipped to L2 norm 60 (" in text
    assert "whose sensitivity is 0.6. Gaussian noise of standard deviation 0.6 (noise multiplier 1)" in text
    assert (
        f"{ROUND_1} The clip norm, and the noise with it, follow a schedule: 60 in round 1, 15 in round 10, on a "
        "geometric path between them, and constant after that."
    ) in text
    mechanism = statement.mechanism
    assert (mechanism.nominal_clip_norm, mechanism.clip_path) == (15, "geometric")
    assert mechanism.clip_schedule == ((1, 4), (10, 1))


def test_a_clip_norm_by_steps_and_by_layers() -> None:
    layers = {"clipping": "per_layer", "layer_clip_norms": [3.0, 4.0, 12.0, 84.0]}
    statement = state(**layers, clip_schedule=[[1, 2.0], [7, 0.5]])
    assert figures(statement) == pytest.approx((170, 1.7, 1, 1.7), rel=1e-6)
    assert "clipped to L2 norm 170 (per layer" in prose(statement)
    assert ROUND_1 in prose(statement)
    assert "a schedule: 170 from round 1 on, 42.5 from round 7 on." in prose(statement)


def test_a_noise_that_changes_is_told_by_its_noise_multipliers() -> None:
    statement = state(noise_schedule=[[1, 2.0], [5, 0.5]])
    assert figures(statement) == pytest.approx((15, 0.15, 2, 0.3))
    text = prose(statement)
    assert "standard deviation 0.3 (noise multiplier 2)" in text
    assert (
        f"{ROUND_1} The noise multiplier follows a schedule: 2 from round 1 on, 0.5 from round 5 on; every round is "
        "charged its own."
    ) in text
    assert statement.mechanism.nominal_noise_multiplier == 1


def test_a_clip_norm_that_adapts_is_told_as_that_of_round_1() -> None:
    adaptive = {"adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0}
    text = prose(state(**adaptive))
    assert "clipped to L2 norm 15 (" in text
    assert f"{ROUND_1} The clip norm, and the noise with it, follow the 0.5 quantile" in text
    assert "Update and counts together are charged the noise multiplier of their round." in text
    both = prose(state(**adaptive, noise_schedule=[[1, 2.0], [5, 0.5]]))
    assert both.count(ROUND_1) == 1
    assert "(noise multiplier 2)" in both
    assert "follow the 0.5 quantile" in both
    assert "2 from round 1 on, 0.5 from round 5 on" in both


POISSON = SampledGaussian(1.0, "poisson", 0.01)
FIXED = SampledGaussian(1.0, "fixed", 0.01, cohort=10, users=1000)


def test_runs_of_both_kinds_of_sampling_have_a_total_for_replacing_a_user() -> None:
    total = with_store_total(state(delta=1e-6), [(POISSON, 10), (FIXED, 10)], "pld")
    assert total.relation_store == "replace-one-user"
    assert total.epsilon_store > max(epsilon([(event, 10)], 1e-6) for event in (POISSON, FIXED))
    assert "at the same δ, when one user is replaced by another." in prose(total)
    assert "when one user is replaced" not in prose(with_store_total(total, [(POISSON, 10)], "pld"))


def test_a_total_that_no_accountant_knows_is_infinite() -> None:
    unknown = with_store_total(state(), [(POISSON, 10), (FIXED, 10)], "moments")
    assert (unknown.epsilon_store, unknown.relation_store) == (math.inf, "replace-one-user")
    assert unknown.to_json()["epsilon_store"] == "infinity"
    assert with_store_total(state(), [(POISSON, 10), (NonPrivate(), 1)], "pld").epsilon_store == math.inf


def test_what_replacing_a_user_costs_is_told_with_what_adding_one_costs() -> None:
    statement = state()
    planned = [(SampledGaussian(1.0, "poisson", 0.01), 20)]
    assert statement.epsilon_replaced == epsilon(planned, 1e-5, "rdp", replaced=True) > statement.epsilon
    shown = rounded_up(statement.epsilon_replaced)
    assert f"When it is replaced by any other, the factor is at most e^{shown} (plus 1e-5)." in prose(statement)


@pytest.mark.parametrize("privacy", [{"sampling": "fixed"}, {"mode": "none", "clipping": "none"}])
def test_where_that_is_the_relation_or_nothing_is_promised_it_is_not(privacy) -> None:
    statement = state(**privacy, **({"noise_multiplier": None} if privacy.get("mode") else {}))
    assert statement.epsilon_replaced is None
    assert "epsilon_replaced" not in statement.to_json()
    assert "When it is replaced" not in prose(statement)


def test_all_that_was_charged_is_in_the_epsilon_and_listed() -> None:
    """Rounds that were repeated, rounds of copies and the vocabulary are paid for, and equal events are listed once."""
    recipe = resolve(Recipe.from_dict({"data": {"store": "none"}, "privacy": PRIVACY, "run": {"rounds": 20}}))
    mechanism = build_mechanism(recipe, ["a"])
    words, event = SampledGaussian(4.0, "poisson", 1.0), mechanism.event(1)
    charges = Charges([(event, 20)], [(event, 7)], [(event, 2)], [(event, 3)], [(words, 1)], [(event, 99)], 25)
    vocabulary = VocabularyFacts.of("9f86d081", {"source": "private", "epsilon": 1.0, "delta": 1e-6})
    statement = make_statement(recipe, mechanism, "rdp", charges, RunFacts("b1946ac9", 20, 5, vocabulary))
    assert dict(statement.charged) == {words: 1, event: 25}
    assert statement.epsilon == pytest.approx(epsilon([(words, 1), (event, 25)], 1e-5, "rdp"))
    assert statement.epsilon_training == pytest.approx(epsilon([(event, 25)], 1e-5, "rdp"))
    assert statement.epsilon_spent == pytest.approx(epsilon([(words, 1), (event, 10)], 1e-5, "rdp"))
    assert statement.epsilon_store == pytest.approx(epsilon([(event, 99)], 1e-5, "rdp"))
    assert (statement.charges, statement.charged_again, statement.charged_elsewhere) == (7, 2, 3)
    assert statement.charged_to_store == 25
    assert statement.is_unfinished


FULL = {
    "start": StartFacts(
        "1234", "private", runs=(EarlierRun("c0ffee", 2.0, 1e-6),), charged=((SampledGaussian(1.0, "poisson", 0.1), 3),)
    ),
    "canaries": {"users": 40, "secrets": 4, "holders": 6, "registry": "abcd"},
    "federation": FederationFacts(5, "masked", survivors=4, colluding=1, keys_made_by_server=2),
    "files": {"weights.safetensors": "00"},
}


@pytest.mark.parametrize(
    ("about", "privacy"),
    [
        ({}, {}),
        (FULL, {"adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0}),
        ({}, {"clip_schedule": [[1, 4], [10, 1]], "noise_schedule": [[1, 2.0], [5, 0.5]]}),
        ({}, {"mode": "none", "clipping": "none", "noise_multiplier": None}),
        ({}, {"estimator": "clipped_denominator", "clipping": "per_layer", "layer_clip_norms": [3.0, 4.0, 12.0, 84.0]}),
    ],
)
def test_a_statement_is_read_as_it_was_written(about: dict[str, Any], privacy: dict[str, Any]) -> None:
    statement = state(about, **privacy)
    written = json.loads(json.dumps(with_prose(statement), allow_nan=False))
    assert Statement.from_json(written) == statement


@pytest.mark.parametrize("fact", ["epsilon", "rounds_done", "mechanism"])
def test_a_statement_that_lacks_facts_is_damaged(fact: str, tmp_path: Path) -> None:
    values = {name: value for name, value in statement_json().items() if name != fact}
    (tmp_path / "privacy.json").write_text(json.dumps(values))
    with pytest.raises(DamagedRun, match=rf"lacks facts of a statement .*{fact}.*sotto resume"):
        read_statement(RunFolder(tmp_path))


def test_an_epsilon_that_is_no_number_is_no_statement() -> None:
    with pytest.raises(ValueError, match="epsilon is not a number"):
        Statement.from_json(statement_json() | {"epsilon": None})


CORRELATED = {"sampling": "min_separation", "min_separation": 5, "participations": 3}
CORRELATED |= {"noise": "banded", "noise_coefficients": (1.0, 0.5)}


def test_correlated_noise_is_described_with_the_participation_it_is_for() -> None:
    statement = state(**CORRELATED)
    event = next(event for event, _ in statement.charged if isinstance(event, CorrelatedGaussian))
    found = statement.mechanism.correlation
    assert (found.noise, found.buffers, found.min_separation, found.participations) == ("banded", 1, 5, 3)
    assert found.sensitivity == event.sensitivity
    assert found.noise_over_clip == pytest.approx(statement.mechanism.noise_std / 0.15) == event.sensitivity
    assert statement.epsilon_replaced > 2 * statement.epsilon
    text = prose(statement)
    assert "Each joins at most 3 of the planned rounds. Two rounds of one user are at least 5 apart." in text
    assert "Gaussian noise, correlated over rounds by banded, 1 buffer, is added" in text
    assert f"{found.noise_over_clip:.4g} times that of one round" in text
    assert "in which rounds a user joins, if they are known to take part" in statement.not_covered[-1]
    assert Statement.from_json(json.loads(json.dumps(statement.to_json()))) == statement
    assert state().mechanism.correlation is None


def test_the_epsilon_of_the_realised_participation_is_no_part_of_a_statement() -> None:
    planned = state(**CORRELATED)
    over_the_run = planned.mechanism.correlation.sensitivity
    # Half the sensitivity is twice the noise multiplier.
    found = realised_epsilon(planned, over_the_run / 2, "rdp")
    assert found == state(**CORRELATED, noise_multiplier=2.0).epsilon < planned.epsilon
    # More than planned cannot be; the planned ε is then shown, and never a smaller one.
    assert realised_epsilon(planned, 2 * over_the_run, "rdp") == planned.epsilon
    assert realised_epsilon(planned, None, "rdp") is None
    assert realised_epsilon(state(), 1.0, "rdp") is None
    assert "ealised" not in json.dumps(with_prose(planned))


@pytest.mark.parametrize("contexts", [(), ("en", "de (Austria)")])
@pytest.mark.parametrize("kind", ["words", "pieces (BPE)"])
@pytest.mark.parametrize(
    "origin",
    [
        {"source": "private", "epsilon": 1.2345678, "delta": 1e-7},
        {"source": "declared"},
        {"source": "public"},
        {"source": "public", "list": "own words", "language": "zh-Hant"},
        {"source": "public", "list": "characters"},
        {"source": "public", "list": "of another version"},
    ],
)
def test_a_source_of_words_is_known_by_its_words(origin, kind, contexts):
    found = VocabularyFacts.of("f", origin, kind, contexts)
    assert found.comes_from(kind, contexts)
    assert not replace(found, source=f"{found.source}, and certified").comes_from(kind, contexts)
    assert not found.comes_from(kind, ("other",))
