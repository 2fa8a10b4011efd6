"""Call a command with the function below it replaced: what is passed on, what is printed, how it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import make_statement

from sottovoce.cli.main import main
from sottovoce.commands.train import RunResult
from sottovoce.evaluation.figures import Evaluation

SCORES = Evaluation(
    users=4,
    targets=100,
    top1=0.25,
    top3=0.4,
    top5=0.5,
    top1_words=0.2,
    perplexity=12.5,
    perplexity_in_vocabulary=11.0,
    oov_rate=0.05,
)


@dataclass
class Stub:
    """A function that keeps its arguments and gives an answer."""

    answer: Any = None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __call__(self, *places: Any, **names: Any) -> Any:
        self.calls.append((places, names))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    @property
    def places(self) -> tuple[Any, ...]:
        """Of the only call."""
        ((places, _),) = self.calls
        return places

    @property
    def names(self) -> dict[str, Any]:
        ((_, names),) = self.calls
        return names


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stub]:
    """Replace a function, by its dotted name, with one that gives an answer."""

    def replace(name: str, answer: Any = None) -> Stub:
        made = Stub(answer)
        monkeypatch.setattr(name, made)
        return made

    return replace


@pytest.fixture
def sotto() -> Callable[..., None]:
    """Call a command that must end well, or with another status."""

    def call(arguments: list[str], status: int = 0) -> None:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status

    return call


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call a command that must be refused: status 2, and one line on standard error, which is given back."""

    def call(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return call


@pytest.fixture
def answer(sotto: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Call a command with --json: the one object that it prints."""

    def call(*arguments: object) -> Any:
        sotto([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert out.count("\n") == 1
        assert err == ""
        return json.loads(out)

    return call


@pytest.fixture
def result(tmp_path: Path) -> Callable[..., RunResult]:
    """How a run ended."""

    def make(ended: str = "finished", private: bool = True, **more: Any) -> RunResult:
        statement = make_statement(private=private, done=30 if ended == "stopped" else 60)
        return RunResult(tmp_path / "run", statement.rounds_done, ended, statement, SCORES, **more)

    return make
