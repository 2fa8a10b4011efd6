"""Runs that sample examples: what they charge and state, broken off and resumed, released, audited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_world import results_of
from tiny_run import crash_after, make_recipe, make_store

import sottovoce
from sottovoce.commands.audit_membership import audit_membership
from sottovoce.commands.audit_rounds import audit_rounds
from sottovoce.commands.audit_tails import audit_tails
from sottovoce.commands.release import release_run
from sottovoce_evidence.accounting import SampledExamples, epsilon
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import pretty, sealed
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.verify import verify_release

EVENT = SampledExamples(2.0, 30 / (36 * 4), 4)


def els(store: Path, **privacy) -> Recipe:
    """Users have at most 16 tokens: four examples of four."""
    keys = {"accountant": "pld", "examples_per_user": 4, "cohort": 30, "noise_multiplier": 2.0, **privacy}
    return make_recipe(store).replace(privacy=keys, local={"tokens": 4}, run={"algorithm": "els"})


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return make_store(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    return sottovoce.train(els(store), tmp_path_factory.mktemp("whole") / "run")


def test_every_round_is_charged_for_all_examples_of_a_user(run):
    assert run.statement.charged == ((EVENT, 6),)
    assert run.statement.epsilon == epsilon([(EVENT, 6)], 1e-3)
    assert run.statement.epsilon_replaced == epsilon([(EVENT, 6)], 1e-3, replaced=True)
    lines = [json.loads(line) for line in (run.path / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [line["event"] for line in lines if "event" in line] == [EVENT.to_json()] * 6


def test_the_statement_says_that_the_unit_is_a_user_and_what_is_sampled(run):
    statement = run.statement
    assert statement.relation == "add-or-remove-one-user"
    assert (statement.privacy.examples_per_user, statement.example_tokens) == (4, 4)
    assert statement.privacy.rate == EVENT.example_rate
    assert statement.mechanism.user_rate == EVENT.user_rate
    assert statement.privacy.declared_weight == 144
    assert statement.mechanism.noise_std == pytest.approx(2.0 * 0.3 / 30)
    assert statement.mechanism.sensitivity == pytest.approx(0.01)  # to one example


def test_a_run_that_was_broken_off_ends_with_the_same_bytes(run, store, tmp_path):
    crash_after(els(store), tmp_path / "run", rounds=5)
    sottovoce.resume(tmp_path / "run")
    assert results_of(tmp_path / "run") == results_of(run.path)


def test_noise_is_found_for_the_epsilon_of_a_user(store, tmp_path):
    recipe = els(store, noise_multiplier=None, epsilon=3.0).replace(run={"rounds": 2})
    statement = sottovoce.train(recipe, tmp_path / "run").statement
    assert 2.99 < statement.epsilon <= 3.0


def test_an_audit_of_rounds_is_refused(run):
    with pytest.raises(SottoError, match="samples examples"):
        audit_rounds(run.path, rounds=20)


@pytest.mark.slow
def test_a_release_is_verified_and_one_that_charges_less_is_not(store, tmp_path):
    made = sottovoce.train(els(store, secrets="entropy"), tmp_path / "run")
    assert release_run(made.path, tmp_path / "out").released
    assert verify_release(tmp_path / "out").verified
    statement = json.loads((tmp_path / "out" / "privacy.json").read_text())
    for key, value in (("examples_per_user", 8), ("cohort", 0.5)):
        changed = {**statement, "privacy": {**statement["privacy"], key: value}}
        changed.pop("check", None)
        (tmp_path / "out" / "privacy.json").write_bytes(pretty(sealed(changed)))
        assert f"privacy.{key} is {value}" in " ".join(check.found for check in verify_release(tmp_path / "out").checks)


@pytest.mark.slow
def test_models_are_trained_again_without_a_user_and_as_shadows(run, tmp_path):
    assert audit_tails(run.path, leave_out=1, texts=100)
    many = els(make_store(tmp_path, users=80), users=72).replace(run={"rounds": 2})
    assert audit_membership(sottovoce.train(many, tmp_path / "run").path, references=4, users=5)
