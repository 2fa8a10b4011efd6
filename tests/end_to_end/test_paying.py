"""What a run and its store are charged, through real runs in one process."""

from __future__ import annotations

import math
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_run import crash_after, make_recipe, make_store

import sottovoce
from sottovoce.build import assembly
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.figures import Evaluation
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import BudgetExhausted, SottoError
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import prose


@pytest.fixture
def store(tmp_path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store) -> Recipe:
    return make_recipe(store)


def test_a_run_is_charged_for_what_it_did(recipe, store, tmp_path):
    result = sottovoce.train(recipe, tmp_path / "run")
    event = SampledGaussian(1.2, "poisson", 0.25)
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").spent() == [(event, 6)]
    wanted = accounting.epsilon([(event, 6)], 1e-3, "rdp")
    assert result.statement.epsilon == pytest.approx(wanted)
    record = RunFolder(tmp_path / "run").record.read()
    assert [line["epsilon"] for line in record] == pytest.approx(
        [accounting.epsilon([(event, count)], 1e-3, "rdp") for count in range(1, 7)]
    )


def test_a_run_that_goes_on_says_from_where(recipe, tmp_path):
    run, seen = tmp_path / "run", []
    crash_after(recipe, run, 6)
    assert sottovoce.resume(run, observer=seen.append).statement.starts == 2
    assert [progress.resumed for progress in seen] == [f"{run} goes on from the checkpoint of round 4", "", ""]
    assert sottovoce.resume(run, observer=seen.append).notes == (f"{run} is complete: round 6 of 6 was done before",)
    assert len(seen) == 3


def test_a_run_that_is_not_private_charges_the_store_nothing_and_claims_nothing(recipe, store, tmp_path):
    result = sottovoce.train(recipe.replace(privacy={"mode": "none", "estimator": "true_average"}), tmp_path / "run")
    assert not (store / "ledger.jsonl").exists()
    assert math.isinf(result.statement.epsilon)
    assert all(line["epsilon"] == "infinity" for line in RunFolder(tmp_path / "run").record.read())


def noise_shared(one: Path, other: Path) -> float:
    """Correlation of what two runs added to the same initial weights; noise rules in these tiny runs."""
    rows = []
    for run in (one, other):
        weights = load_file(run / "model" / "weights.safetensors")
        rows.append(np.concatenate([np.ravel(weights[name]) for name in sorted(weights)]))
    start = [np.ravel(leaf) for _, leaf in sorted(initial(one).items())]
    one_change, other_change = (row - np.concatenate(start) for row in rows)
    return float(np.corrcoef(one_change, other_change)[0, 1])


def initial(run: Path) -> dict[str, np.ndarray]:
    recipe = Recipe.load(run / "recipe.toml")
    vocabulary = Vocabulary.load(run / "model" / "vocabulary.txt")
    return assembly.weights_of(assembly.build_model(recipe, vocabulary.size))


@pytest.mark.parametrize("end", ["plan", "budget"])
def test_no_cohort_is_drawn_beyond_the_plan_or_the_budget(recipe, tmp_path, monkeypatch, end):
    drawn, real = [], Poisson.sample
    monkeypatch.setattr(Poisson, "sample", lambda *given: drawn.append(given[-1]) or real(*given))
    limit = accounting.epsilon([(SampledGaussian(1.2, "poisson", 0.25), 4)], 1e-3, "rdp") * 1.001
    privacy = {"epsilon": limit, "secrets": "entropy"} if end == "budget" else {"secrets": "entropy"}
    result = sottovoce.train(recipe.replace(privacy=privacy), tmp_path / "run")
    assert drawn == list(range(1, 5 if end == "budget" else 7))  # each once
    assert result.ended == ("budget" if end == "budget" else "finished")


def test_two_seeded_runs_share_no_noise(recipe, tmp_path):
    loud = recipe.replace(privacy={"noise_multiplier": 20.0})
    sottovoce.train(loud, tmp_path / "one")
    sottovoce.train(loud.replace(privacy={"clip_norm": 0.31}), tmp_path / "two")
    assert abs(noise_shared(tmp_path / "one", tmp_path / "two")) < 0.3


def test_a_model_of_another_precision_is_refused(recipe, tmp_path):
    half = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), assembly.build_model(recipe, 45))
    with pytest.raises(SottoError, match="bfloat16"):
        sottovoce.train(recipe, tmp_path / "run", model=half)


class Bigram(eqx.Module):
    """A model of one's own: the next word from the last one."""

    table: jax.Array

    def initial_state(self):
        return jnp.zeros(())

    def read(self, tokens, state, key=None):
        return self.table[tokens], state

    def logits(self, outputs):
        return outputs


@pytest.mark.slow
def test_a_model_of_ones_own_goes_all_the_way(recipe, store, tmp_path):
    words = Vocabulary.load(store / "vocabulary.txt").size
    model = Bigram(jnp.zeros((words, words)))
    sottovoce.train(recipe, tmp_path / "run", model=model)
    assert sottovoce.evaluate_run(tmp_path / "run", model=model)[0].targets > 0
    page = sottovoce.report_run(tmp_path / "run", model=model).read_text()
    assert "Bigram" in page
    assert "LSTM" not in page
    with pytest.raises(SottoError, match="goes on from Python"):
        sottovoce.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Bigram(jnp.zeros((7, 7))), "every token"),
        (Bigram(jnp.zeros((7, 7), int)), "no trained array"),
        (object(), "object"),
    ],
    ids=["another vocabulary", "whole numbers", "no model"],
)
def test_a_model_that_cannot_be_trained_is_refused_before_anybody_is_charged(recipe, store, tmp_path, model, message):
    with pytest.raises(SottoError, match=message):
        sottovoce.train(recipe, tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    assert not (store / "ledger.jsonl").exists()


def test_an_objective_that_cannot_be_traced_is_refused_before_anybody_is_charged(recipe, store, tmp_path):
    def broken(model, received, batch, state, key):
        return jnp.zeros((1, 2, 3)) + batch.mask[:, :, None, None] @ jnp.zeros(99), state

    with pytest.raises(SottoError, match="cannot be traced"):
        sottovoce.train(recipe, tmp_path / "run", objective=broken)
    assert not (tmp_path / "run").exists()
    assert not (store / "ledger.jsonl").exists()


def test_a_declared_population_far_from_the_store_is_pointed_out(recipe, tmp_path):
    result = sottovoce.train(recipe.replace(privacy={"users": 360, "cohort": 90}), tmp_path / "run")
    assert any("declares 360" in note for note in result.notes)


def test_training_stops_before_the_budget_with_a_usable_model(recipe, tmp_path):
    event = SampledGaussian(1.2, "poisson", 0.25)
    costs = [accounting.epsilon([(event, count)], 1e-3, "rdp") for count in range(1, 7)]
    budget = (costs[3] + costs[4]) / 2  # room for four rounds
    seen = []
    limited = recipe.replace(privacy={"epsilon": budget}, run={"evaluate_every": 3})
    result = sottovoce.train(limited, tmp_path / "run", observer=seen.append)
    assert (result.ended, result.round, result.rounds_asked) == ("budget", 4, 6)
    assert [progress.round for progress in seen if progress.evaluation] == [3, 4]  # also of its last round
    assert [(progress.round, progress.rounds) for progress in seen] == [(done, 4) for done in range(5)]
    assert result.statement.epsilon == pytest.approx(costs[3])
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").rounds == 4
    assert sottovoce.resume(tmp_path / "run").round == 4
    sottovoce.report_run(tmp_path / "run")


def test_a_budget_for_no_round_is_refused_before_anything_is_made(recipe, store, tmp_path):
    with pytest.raises(BudgetExhausted, match="does not allow one round"):
        sottovoce.train(recipe.replace(privacy={"epsilon": 0.01}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (store / "ledger.jsonl").exists()


def test_noise_is_found_for_an_epsilon_and_kept_in_the_recipe(recipe, tmp_path):
    asked = recipe.replace(privacy={"epsilon": 3.0, "noise_multiplier": None, "accountant": "pld"})
    result = sottovoce.train(asked, tmp_path / "run")
    assert 2.9 < result.statement.epsilon <= 3.0
    assert Recipe.load(tmp_path / "run" / "recipe.toml").privacy.noise_multiplier > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "true_average"}, "true_average"),
        ({"clipping": "none"}, "bounds no user"),
        ({"noise_multiplier": 0.0}, "above 0"),
        ({"noise_multiplier": None}, "noise_multiplier or privacy.epsilon"),
        ({"noise_std": 0.1}, "experiment mode"),
        ({"cohort": 50.0}, "must be at most privacy.users=36"),
        ({"users": 0}, "declare the population"),
        ({"cohort": 0.0}, "privacy.cohort is not set"),
        ({"delta": 0.5}, "below 1/users"),
        ({"sampling": "fixed", "accountant": "moments"}, "no valid accounting"),
        ({"clip_schedule": [[2, 1.0]]}, "begin at round 1"),
        ({"clip_schedule": [[1, 1.0], [3, -1.0]]}, "above 0"),
        ({"clip_schedule": [[1, 1.0, 2.0]]}, "pairs"),
        ({"noise_schedule": [[1, 1.0], [3, 0.5], [3, 0.25]]}, "must increase"),
        ({"noise_schedule": [[1, 1.0], [7, 0.5]]}, "run.rounds=6"),
        ({"clip_schedule": [[1, 1.0], [3, 0.5]], "adaptive_quantile": 0.5}, "keep one"),
        ({"adaptive_quantile": 0.5}, "adaptive_bit_noise"),  # cohort/20 is too little for so few users
        ({"adaptive_quantile": 0.5, "clipping": "per_layer", "adaptive_bit_noise": 1.5}, "11 clipped parts"),
        ({"sampling": "fixed", "cohort": 9.5}, "whole number"),
        ({"weight_cap": 16.0}, "total_weight"),
        ({"mode": "experiment", "epsilon": 3.0}, "infinite"),
        ({"mode": "experiment", "noise_std": 0.1}, "keep one"),
    ],
    ids=str,
)
def test_a_bad_combination_is_refused_before_anything_is_spent(recipe, store, tmp_path, change, message):
    with pytest.raises(SottoError, match=message):
        sottovoce.train(recipe.replace(privacy=change), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (store / "ledger.jsonl").exists()


def test_fixed_size_cohorts_are_charged_as_what_they_are(recipe, tmp_path):
    fixed = recipe.replace(privacy={"sampling": "fixed"})
    result = sottovoce.train(fixed, tmp_path / "run")
    assert result.statement.relation == "replace-one-user"
    poisson = accounting.epsilon([(SampledGaussian(1.2, "poisson", 0.25), 6)], 1e-3, "rdp")
    assert result.statement.epsilon > 2 * poisson
    assert {line["users"] for line in RunFolder(tmp_path / "run").diagnostics.read()} == {9}


def test_the_public_record_holds_nothing_exact_about_the_cohort(recipe, tmp_path):
    sottovoce.train(recipe.replace(run={"evaluate_every": 3}), tmp_path / "run")
    allowed = {"round", "epsilon", "delta", "clip_norm", "noise_std", "evaluation"}
    lines = RunFolder(tmp_path / "run").record.read()
    for line in lines:
        assert set(line) <= allowed
    measured = [line["evaluation"] for line in lines if "evaluation" in line]
    assert measured
    for evaluation in measured:  # of held-out people, who are not protected, no more than is needed
        assert evaluation == Evaluation.from_json(evaluation).public.to_json()


def test_text_that_was_changed_in_place_is_not_released_under_the_noise_of_before(recipe, store, tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_SKIP_HASHES", "1")  # as where it was changed on purpose
    crash_after(recipe, tmp_path / "run", 3)  # no checkpoint yet: these rounds would be done again
    users = Store.open(store)
    contents = bytearray((store / "train.arrow").read_bytes())
    contents[contents.index(users.rows.batches[0].values.tobytes())] ^= 1
    (store / "train.arrow").write_bytes(contents)
    with pytest.raises(SottoError, match="is not the store"):
        sottovoce.resume(tmp_path / "run")
    sottovoce.train(recipe.replace(privacy={"noise_multiplier": 20.0}), tmp_path / "after")
    contents[contents.index(Store.open(store).rows.batches[0].values.tobytes())] ^= 1
    (store / "train.arrow").write_bytes(contents)
    sottovoce.train(recipe.replace(privacy={"noise_multiplier": 20.0}), tmp_path / "before")  # seeded, and yet:
    assert abs(noise_shared(tmp_path / "after", tmp_path / "before")) < 0.3


def test_weights_that_were_given_are_told_of(recipe, store, tmp_path):
    """Whose text is in them only the caller knows."""
    open_run = recipe.replace(privacy={"mode": "none", "estimator": "true_average"})
    sottovoce.train(open_run, tmp_path / "open")
    given = sottovoce.ModelFolder.open(tmp_path / "open")
    statement = sottovoce.train(recipe, tmp_path / "run", model=given.model).statement
    assert (statement.start.weights, statement.start.declared) == (given.digest, True)
    assert "declared public by the owner" in prose(statement)
    assert sottovoce.train(recipe.replace(run={"seed": 3}), tmp_path / "fresh").statement.start is None


@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": 1e-22}, {"clip_norm": 1e39}, {"clip_schedule": [[1, 1e-50]]},
        {"estimator": "clipped_denominator", "total_weight": 1e-45}, {"total_weight": 1e-60},
        {"noise_multiplier": 1e-200}, {"noise_schedule": [[1, 1e-9]]},
        {"noise_multiplier": 1e-200, "adaptive_quantile": 0.5, "adaptive_bit_noise": 9.0},
        {"clipping": "per_layer", "clip_norm": 1e-9},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_float32_has_no_room_for_are_refused(recipe, store, tmp_path, change):
    with pytest.raises(SottoError, match="must be from"):
        sottovoce.train(recipe.replace(privacy=change), tmp_path / "run")
    assert not (store / "ledger.jsonl").exists()
