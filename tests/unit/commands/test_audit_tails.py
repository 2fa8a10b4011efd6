"""Audits by tails with ratios that are given: pairs, directions, and what is no pair."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from sottovoce.commands import audit_tails as command
from sottovoce.commands.audit_tails import audit_tails, fit_tails
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Texts with a Pareto tail of α = 4, whatever the models; the keys that drew them."""
    keys: list[bytes] = []

    def draw(writer, other, specials, texts, key):
        keys.append(np.asarray(jax.random.key_data(key)).tobytes())
        return np.random.default_rng(len(keys)).exponential(1 / 4, texts)

    monkeypatch.setattr(command, "log_ratios", draw)
    return keys


@pytest.fixture
def without(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy, for a run that lacks a user."""
    return RunFolder(Path(shutil.copytree(run.path, tmp_path / "without")))


def test_each_pair_has_a_tail_of_the_texts_of_either_model(run, without, ratios):
    done: list[tuple[int, int]] = []
    found = fit_tails(run, [without.path], texts=2000, progress=lambda *steps: done.append(steps))
    assert [(one.pair, one.texts_of) for one in found] == [("without", "with"), ("without", "without")]
    assert all(2 < one.tail.alpha < 8 for one in found)
    assert len(set(ratios)) == 2
    assert done == [(1, 1)]


def test_the_result_has_the_largest_epsilon_and_is_written(run, without, ratios):
    found = audit_tails(run.path, [without.path], texts=2000, delta=1e-3)
    assert (found.delta, len(found.pairs), found.proved.private) == (1e-3, 2, True)
    assert found.epsilon == max(pair.epsilon for pair in found.pairs) > 0
    assert "drew their own cohorts and their own noise" in found.about
    pair = found.pairs[0]
    assert (pair.texts, pair.k) == (2000, fit_tails(run, [without.path], texts=2000)[0].tail.k)
    assert run.read_audit("tails")["pairs"][0]["alpha"] == pair.alpha
    assert (run.audits / "tails.png").exists()


def test_models_that_are_the_same_have_no_figure(run, without, monkeypatch):
    monkeypatch.setattr(command, "log_ratios", lambda *given: np.zeros(given[3]))
    assert audit_tails(run.path, [without.path], texts=200, delta=0.01).epsilon == 0
    assert not (run.audits / "tails.png").exists()


def test_a_pair_is_named_or_trained_and_not_both(run, without, ratios):
    for given in ({"without": [without.path], "leave_out": 1}, {}):
        with pytest.raises(SottoError, match=r"--leave-out 5: one of the two"):
            audit_tails(run.path, **given)


def test_what_is_no_pair_is_refused(run, without, ratios):
    with pytest.raises(SottoError, match="is the run itself"):
        audit_tails(run.path, [run.path])
    recipe = Recipe.of(without)
    without.recipe_file.write_text(recipe.replace(local={"learning_rate": 0.5}).to_toml())
    with pytest.raises(SottoError, match=r"local\.learning_rate is 1\.0 in .* and 0\.5 in"):
        audit_tails(run.path, [without.path])
    without.recipe_file.write_text(recipe.replace(data={"store": "/elsewhere"}).to_toml())
    assert audit_tails(run.path, [without.path], texts=2000).pairs
