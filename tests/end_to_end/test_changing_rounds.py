"""Runs whose clip norm or noise changes from round to round: what is done is what is charged, also after a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_run import StopAfter, crash_after, make_recipe, make_store

import sottovoce
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import prose

ADAPTIVE = {"adaptive_quantile": 0.4, "adaptive_bit_noise": 4.0, "clip_norm": 2.0}
STEPS = {"noise_schedule": [[1, 1.5], [3, 1.0], [6, 0.75]]}
CHANGES = {
    "adaptive": ADAPTIVE,
    "adaptive, per layer": {**ADAPTIVE, "clipping": "per_layer", "adaptive_bit_noise": 9.0},
    "noise by steps": STEPS,
}


@pytest.fixture
def store(tmp_path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store) -> Recipe:
    return make_recipe(store)


def z_event(z: float) -> SampledGaussian:
    return SampledGaussian(z, "poisson", 0.25)


# A change that is kept with the model, and one that is charged; the others are slow tests.
QUICK = ("adaptive", "noise by steps")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [change if change in QUICK else pytest.param(change, marks=pytest.mark.slow) for change in CHANGES]
)
def test_a_run_broken_off_goes_on_as_if_nothing_had_been(recipe, tmp_path, change):
    """What adapts is saved with the model: round 5 of the resumed run clips to what round 5 of the other clipped to."""
    recipe = recipe.replace(privacy=CHANGES[change], run={"rounds": 8})
    whole = sottovoce.train(recipe, tmp_path / "whole")
    sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(3))
    sottovoce.resume(tmp_path / "stopped")
    crash_after(recipe, tmp_path / "crashed", 6)
    sottovoce.resume(tmp_path / "crashed")
    weights = load_file(whole.path / "model" / "weights.safetensors")
    for other in ("stopped", "crashed"):
        others = load_file(tmp_path / other / "model" / "weights.safetensors")
        for name in weights:
            np.testing.assert_array_equal(weights[name], others[name])
        assert RunFolder(tmp_path / other).record.read() == RunFolder(whole.path).record.read()


@pytest.mark.slow
def test_an_adaptive_run_clips_to_what_it_says_and_is_charged_z(recipe, tmp_path):
    result = sottovoce.train(recipe.replace(privacy=ADAPTIVE), tmp_path / "run")
    record = RunFolder(tmp_path / "run").record.read()
    norms = [line["clip_norm"] for line in record]
    assert norms[0] == 2.0
    assert len(set(norms)) == 6, "the clip norm did not move"
    ratios = [line["noise_std"] / line["clip_norm"] for line in record]
    assert ratios == pytest.approx([ratios[0]] * 6, rel=1e-6)
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").spent() == [(z_event(1.2), 6)]
    assert result.statement.epsilon == accounting.epsilon([(z_event(1.2), 6)], 1e-3, "rdp")
    assert "adaptive quantile: 0.4" in prose(result.statement)


@pytest.mark.slow
def test_a_noise_that_changes_is_charged_round_by_round_and_ahead_to_the_store(recipe, store, tmp_path):
    result = sottovoce.train(recipe.replace(privacy=STEPS), tmp_path / "run")
    charged = [(z_event(1.2 * 1.5), 2), (z_event(1.2), 3), (z_event(1.2 * 0.75), 1)]
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").spent() == charged
    assert StoreLedger(store / "ledger.jsonl").spent() == charged
    assert result.statement.epsilon == accounting.epsilon(charged, 1e-3, "rdp")
    shown = [line["epsilon"] for line in RunFolder(tmp_path / "run").record.read()]
    exact = [accounting.epsilon(charged[:1], 1e-3, "rdp"), accounting.epsilon(charged, 1e-3, "rdp")]
    assert [shown[1], shown[5]] == pytest.approx(exact)
    assert shown == sorted(shown)


@pytest.mark.slow
def test_noise_is_found_for_a_whole_schedule_and_the_budget_holds(recipe, tmp_path):
    asked = {"noise_multiplier": None, "epsilon": 4.0, "accountant": "pld", **STEPS}
    result = sottovoce.train(recipe.replace(privacy=asked), tmp_path / "run")
    assert result.ended == "finished"
    assert 3.9 < result.statement.epsilon <= 4.0


@pytest.mark.slow
def test_the_hard_stop_counts_what_each_round_costs(recipe, tmp_path):
    """The last round is noisier than the rest here, so it would fit where another of the first would not."""
    steps = {"noise_schedule": [[1, 1.0], [5, 0.5]]}
    full = [(z_event(1.2), 4), (z_event(0.6), 1)]
    budget = accounting.epsilon(full, 1e-3, "rdp") * 1.001
    result = sottovoce.train(recipe.replace(privacy={**steps, "epsilon": budget}), tmp_path / "run")
    assert (result.ended, result.round) == ("budget", 5)
    assert dict(Ledger.open(tmp_path / "run" / "ledger.jsonl").spent()) == dict(full)
    assert result.statement.epsilon <= budget
