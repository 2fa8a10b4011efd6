"""`sotto reproduce` at the smallest size, on synthetic users."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_world import Sotto

from sottovoce.papers import reproduce as running
from sottovoce.papers.engine import runner
from sottovoce.papers.engine.runner import Console
from sottovoce.papers.mcmahan2018.trials import EXPERIMENTS, SIZES
from sottovoce.papers.registry import MCMAHAN2018, SCHULTZ2019


def run(names: list[str], out: Path, *, paper=MCMAHAN2018, rounds=None, seeds=1, **console) -> bool:
    request = running.Request(paper, names, paper.size("smoke", rounds), seeds)
    return running.reproduce(request, out, console=Console(**console))


def results_of(out: Path) -> dict[str, dict]:
    found = {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}
    return {name: {key: value for key, value in row.items() if key != "seconds"} for name, row in found.items()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduction") / "out"
    assert run(["sigma"], out, seeds=2)
    return out


@pytest.fixture(scope="module")
def figure_8(done: Path) -> Path:
    assert run(["figure-8"], done)
    return done


@pytest.mark.slow
def test_an_experiment_ends_with_runs_results_a_figure_and_a_table(done: Path):
    results = results_of(done)
    shared = {
        f"fedavg-flat-S15-sigma{sigma}-seed{seed}" for sigma in ("0", "0.003", "0.006", "0.012") for seed in (0, 1)
    }
    assert shared == set(results)
    for name in results:
        assert (done / "runs" / name / "recipe.toml").is_file()
    table = (done / "sigma.md").read_text()
    assert (done / "sigma.png").read_bytes().startswith(b"\x89PNG")
    assert table.count("\n| ") >= 4
    assert "| σ = 0.012, S = 15 | 2 |" in table
    assert " ± " in table


@pytest.mark.slow
def test_a_switch_goes_on_from_the_other_runs_model(figure_8: Path):
    done = figure_8
    assert (done / "figure-8.png").read_bytes().startswith(b"\x89PNG")
    assert "## Figure 8" in (done / "results.md").read_text()
    name = "fedavg-flat-S7.9-sigma0.00474-after-fedavg-flat-S20-sigma0.012-seed0"
    result = results_of(done)[name]
    rounds = SIZES["smoke"].rounds
    assert (result["first"], result["rounds"]) == (rounds, rounds)
    assert [row[0] for row in result["curve"]] == [8, 10, 12]
    before = results_of(done)["fedavg-flat-S20-sigma0.012-seed0"]["curve"]
    assert result["curve"][0][2] < before[0][2]  # perplexity: not from scratch


@pytest.mark.slow
def test_what_is_done_is_not_done_again(done: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "train", refuse)
    monkeypatch.setattr(runner, "resume", refuse)
    assert run(["sigma"], done)


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_to_the_same_end(done: Path, tmp_path: Path):
    rounds_seen = 0

    @contextmanager
    def counting(name: str):
        def observe(progress) -> None:
            nonlocal rounds_seen
            rounds_seen += 1

        yield observe

    out = tmp_path / "out"
    # Ten rounds on: the second run is half done.
    assert not run(["sigma"], out, seeds=2, progress=counting, stop=lambda: rounds_seen >= 10)
    assert len(results_of(out)) == 1
    assert len([each for each in (out / "runs").iterdir() if each.is_dir()]) == 2
    assert run(["sigma"], out, seeds=2)
    whole = results_of(done)
    assert results_of(out) == {name: row for name, row in whole.items() if name in results_of(out)}


@pytest.mark.slow
def test_claims_and_drawings_need_no_training(sotto: Sotto, done: Path):
    told = sotto("reproduce", "--claims", "--out", done, "--json").json()["claims"]
    assert {row["claim"] for row in told} >= {"small noise", "cohorts"}
    assert (done / "claims.md").is_file()
    outcome = sotto("reproduce", "--from-results", "--experiment", "sigma", "--out", done)
    assert outcome.status == 0
    assert "σ = 0.003" in outcome.out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_everything_runs_at_the_smallest_size(tmp_path: Path):
    out = tmp_path / "out"
    assert run([], out)
    for experiment in EXPERIMENTS.values():
        assert (out / f"{experiment.name}.md").is_file()
        assert (out / f"{experiment.name}.png").is_file() == bool(experiment.view)
    checked, _ = running.check_claims(out)
    findings = {each.claim.name: each.finding for each in checked}
    assert findings["accounting"].verdict == "holds"
    assert findings["other corpus"].measured != "not run"


@pytest.fixture(scope="module")
def schultz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted in the second model, central training, and taken up again."""
    out, rounds_seen = tmp_path_factory.mktemp("schultz2019") / "out", 0

    @contextmanager
    def counting(name: str):
        def observe(progress) -> None:
            nonlocal rounds_seen
            rounds_seen += 1

        yield observe

    assert not run(["table-1"], out, paper=SCHULTZ2019, progress=counting, stop=lambda: rounds_seen >= 5)
    assert len(results_of(out)) == 1
    assert (out / "runs" / "central-seed0").is_dir()
    assert run(["table-1", "figure-2"], out, paper=SCHULTZ2019)
    return out


@pytest.mark.slow
def test_another_paper_runs_in_the_same_frame(schultz: Path):
    results = results_of(schultz)
    assert len(results) == 12 + 4  # the twelve models, and four of them at the other learning rate
    central, clipped = results["central-seed0"], results["fedavg-flat-S5-sigma0-sampling-poisson-seed0"]
    assert central["recipe"]["privacy"]["mode"] == "none"
    for row in (central, clipped):
        assert [point[0] for point in row["curve"]] == [1, 2, 3]
        assert [point[0] for point in row["series: local loss"]] == [1, 2, 3]
    assert "| Central | not private | 39.13 (8) |" in (schultz / "table-1.md").read_text()
    assert (schultz / "figure-2.png").is_file()
