"""`sotto demo` with its steps replaced: what is planned, trained and reported."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands import demo
from sottovoce.commands.train import RunResult
from sottovoce_evidence.errors import SottoError


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    done = SimpleNamespace(recipes=[], reports=[], ended="finished")

    def train(recipe, out, *, observer, stop):
        done.recipes.append(recipe)
        return RunResult(Path(out), recipe.run.rounds, done.ended, None, None)

    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "evaluate_run", lambda path: SimpleNamespace(evaluation=f"scores of {path.name}"))
    monkeypatch.setattr(demo, "report_run", lambda path: done.reports.append(path.name))
    monkeypatch.setattr(demo, "compare_runs", lambda paths: [path.name for path in paths])
    monkeypatch.setattr(demo, "write_comparison", lambda runs, out: done.reports.append((*runs, out.name)))
    monkeypatch.setattr(demo, "prepare_demo", lambda out, users: SimpleNamespace(train_users=users, test_users=9))
    monkeypatch.setattr(demo.Store, "open", lambda folder, split="train": split)
    monkeypatch.setattr(demo, "public_baselines", lambda test: SimpleNamespace(constant=SimpleNamespace(top1=0.07)))
    return done


def run(out: Path, lines: list[str]) -> demo.DemoResult | None:
    return demo.run_demo(out, log=lines.append, progress=lambda name: nullcontext(name))


def test_the_same_model_is_trained_with_and_without_privacy(steps, tmp_path):
    lines: list[str] = []
    result = run(tmp_path / "demo", lines)
    private, plain = steps.recipes
    assert (private.privacy.mode, plain.privacy.mode) == ("private", "none")
    assert (plain.privacy.clipping, plain.privacy.estimator) == ("none", "true_average")
    assert private.data.store == plain.data.store == str(tmp_path / "demo" / "store")
    assert (private.model, private.local, private.run) == (plain.model, plain.local, plain.run)
    assert (result.private.evaluation, result.plain.evaluation) == ("scores of private", "scores of not-private")
    assert result.baseline == 0.07
    assert steps.reports == ["private", "not-private", ("private", "not-private", "compare.html")]
    assert [line.split()[0] for line in lines] == ["plan", "prepare", "report"]
    assert f"ε = {private.privacy.epsilon:g}" in lines[0]


def test_a_demo_that_is_stopped_reports_nothing(steps, tmp_path):
    steps.ended = "stopped"
    assert run(tmp_path / "demo", []) is None
    assert (len(steps.recipes), steps.reports) == (1, [])


def test_a_folder_in_use_is_left_alone(steps, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(SottoError, match="is not an empty folder"):
            run(out, [])
    assert steps.recipes == []
