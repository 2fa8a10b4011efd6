"""Canaries in a whole run: planted, told of, scored beside training, audited; through crashes, and in a twin."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from small_world import Sotto, World, call, files_of, parse_json, read_lines
from tiny_run import crash_after, make_recipe, make_store

import sottovoce
from sottovoce.audit.one_run import CanaryScorer
from sottovoce.commands.insert_canaries import saved_canary_scores
from sottovoce.runs import checkpoint
from sottovoce.training.types import RoundTrace
from sottovoce_evidence.accounting import SampledGaussian, epsilon
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe

PLANTS = ("audit.users=40", "audit.secrets=4", "audit.holders=[1, 2]", "audit.words=2")


def settings(*more: str) -> list[str]:
    """What plants canaries, with more values, or others."""
    values = dict(setting.split("=", 1) for setting in (*PLANTS, *more))
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def planted(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with canaries that finished. Copy it before you change it."""
    out = tmp_path_factory.mktemp("planted") / "run"
    assert call("train", world.recipe, "--out", out, "--json", *settings("run.evaluate_every=0")) == 0
    return out


def scores_of(run: Path) -> np.ndarray:
    saved = checkpoint.newest(run / "checkpoints")
    assert saved is not None
    return saved_canary_scores(saved)


@pytest.mark.slow
def test_what_was_planted_is_told_wherever_the_run_is(planted: Path) -> None:
    registry = parse_json((planted / "canaries.json").read_text())
    assert (len(registry["users"]), registry["holders"]) == (40, [1, 2, 1, 2])
    told = {"users": 40, "secrets": 4, "holders": 6}
    statement = parse_json((planted / "privacy.json").read_text())
    for canaries in (read_lines(planted / "ledger.jsonl")[0]["canaries"], statement["canaries"]):
        assert {name: canaries[name] for name in told} == told


@pytest.mark.slow
def test_the_claim_is_that_of_the_declared_population(planted: Path, world: World) -> None:
    """q and W are the people's: with canaries the same is declared, charged, and divided by."""
    with_them, without = (parse_json((run / "privacy.json").read_text()) for run in (planted, world.run))
    for name in ("epsilon", "privacy", "mechanism", "charged"):
        assert with_them[name] == without[name]
    assert [line["event"] for line in read_lines(planted / "ledger.jsonl")[1:]] == [
        line["event"] for line in read_lines(world.run / "ledger.jsonl")[1:]
    ]


@pytest.mark.slow
def test_scores_are_for_the_owner_alone(planted: Path) -> None:
    scores = scores_of(planted)
    assert scores.shape == (40,)
    assert np.all(np.isfinite(scores))
    assert np.ptp(scores) > 0
    assert stat.S_IMODE((planted / "checkpoints").stat().st_mode) == 0o700
    public = [path for path in planted.iterdir() if path.is_file() and path.name != "diagnostics.jsonl"]
    for path in [*public, *(planted / "model").iterdir()]:
        text = path.read_bytes()
        assert not any(f"{score:.5g}".encode() in text for score in scores)


@pytest.mark.slow
def test_a_run_that_was_killed_has_the_scores_of_one_that_was_not(tmp_path: Path) -> None:
    """Rounds 5 and 6 are played twice, and counted once."""
    recipe = make_recipe(make_store(tmp_path)).replace(audit={"users": 40, "secrets": 1, "prefix": 3, "words": 1})
    sottovoce.train(recipe, tmp_path / "unbroken")
    crash_after(recipe, tmp_path / "broken", 5)
    assert not np.array_equal(scores_of(tmp_path / "broken"), scores_of(tmp_path / "unbroken"))
    sottovoce.resume(tmp_path / "broken")
    assert np.array_equal(scores_of(tmp_path / "broken"), scores_of(tmp_path / "unbroken"))
    assert np.any(scores_of(tmp_path / "broken"))
    weights = [(tmp_path / name / "model/weights.safetensors").read_bytes() for name in ("broken", "unbroken")]
    assert weights[0] == weights[1]
    registry = tmp_path / "broken/canaries.json"
    registry.write_text(registry.read_text().replace("sky", "tree"))
    with pytest.raises(DamagedRun, match="not what was inserted"):
        sottovoce.resume(tmp_path / "broken")


@pytest.mark.slow
def test_a_recipe_that_plants_nothing_is_the_recipe_it_was(world: World) -> None:
    recipe = Recipe.load(world.recipe)
    assert recipe.replace(audit={"users": 0}).sha256() == recipe.sha256()
    assert recipe.replace(audit={"users": 40}).sha256() != recipe.sha256()
    assert Recipe.parse(recipe.replace(audit={"secrets": 3}).to_toml()).audit.secrets == 3
    assert not (world.run / "canaries.json").exists()
    assert "canaries" not in read_lines(world.run / "ledger.jsonl")[0]


@pytest.mark.slow
def test_an_audit_gives_each_number_and_leaves_the_rest_alone(sotto: Sotto, planted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(planted, tmp_path / "run"))
    before = files_of(run)
    found = sotto("audit", "canaries", run, planted, "--json").json()
    assert found["itself"] is True
    assert found["claimed"] == pytest.approx(epsilon([(SampledGaussian(1.0, "poisson", 0.3), 4)], 0.01, "rdp"))
    assert 0 <= found["shown"] < found["claimed"]
    assert found["contradicted"] is False
    assert found["one_run"]["canaries"] == 40
    figures = {"shown", "correct", "guesses", "most", "noise", "by_curve"}
    for attack in ("rounds", "model", "weights"):
        assert set(found["one_run"][attack]) == figures
    assert [point["holders"] for point in found["curve"]] == [1, 2]
    assert len(found["exposure"]) == 4
    assert all(one["whole_space"] and one["references"] == 18**2 for one in found["exposure"])
    assert found["beside"][0]["curve"] == found["curve"]
    after = files_of(run)
    assert {name for name in after if name not in before} == {"audit", "audit/canaries.json", "audit/canaries.png"}
    assert {name: after[name] for name in before} == before
    assert stat.S_IMODE((run / "audit/canaries.json").stat().st_mode) == 0o600
    kept = parse_json((run / "audit/canaries.json").read_text())
    assert kept.pop("checksum")
    assert kept == found
    told = sotto("audit", "canaries", run)
    assert told.status == 0
    assert "of this model" in told.out
    assert "CONTRADICTED" not in told.out
    assert "released weights" in told.out
    assert "means: an attacker with the" in told.out


@pytest.mark.slow
def test_a_twin_is_trained_for_a_run_without_canaries_and_not_kept(sotto: Sotto, run: Path, world: World) -> None:
    before = files_of(run), files_of(world.store)
    told = sotto("audit", "canaries", run, *settings())
    assert told.status == 0, told.err
    assert "a copy trained for the audit" in told.out
    after = files_of(run)
    assert {name for name in after if name not in before[0]} == {"audit", "audit/canaries.json", "audit/canaries.png"}
    assert {name: after[name] for name in before[0]} == before[0]
    assert files_of(world.store) == before[1]  # nobody is charged for what nobody sees
    found = json.loads((run / "audit/canaries.json").read_text())
    assert found["itself"] is False
    assert "charged as a second run" in found["of"]
    assert found["claimed"] == pytest.approx(epsilon([(SampledGaussian(1.0, "poisson", 0.3), 4)], 0.01, "rdp"))


@pytest.mark.slow
def test_a_leaky_build_is_contradicted_with_status_1(
    sotto: Sotto, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that give every coin away: what rounds would tell in which nothing is hidden."""

    def tell_all(self: CanaryScorer, seen: RoundTrace) -> None:
        self.scores += self.inserted.lengths(self.rows) > 0

    monkeypatch.setattr(CanaryScorer, "__call__", tell_all)
    small = ("privacy.noise_multiplier=4.0", "privacy.delta=1e-6", "run.evaluate_every=0", "audit.users=100")
    assert call("train", world.recipe, "--out", tmp_path / "run", "--json", *settings(*small)) == 0
    told = sotto("audit", "canaries", tmp_path / "run")
    assert told.status == 1, told.out
    assert "CONTRADICTED" in told.out
    gate = sotto("release", tmp_path / "run", "--out", tmp_path / "out")
    assert gate.status == 1
    assert "the audit by canaries shows ε >= " in gate.out
