"""What is typed for a choice among runs, and what is shown of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli import select as command
from sottovoce.cli.select import Drawn, select
from sottovoce.commands import select as selecting
from sottovoce.commands.select import Selected
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.statement import ChosenFacts


def test_public_text_is_needed_to_choose_by():
    with pytest.raises(SottoError, match="--public is missing"):
        select("demo", out=Path("a"))


def test_the_settings_that_are_tried_are_read_and_the_release_is_named(monkeypatch, capsys):
    asked = []

    def best(recipe, out, public, choice, publication):
        asked.append((recipe.run.rounds, choice, publication.license))
        chosen = ChosenFacts(2, "a score", "best-1")
        return Selected("out", 2.9871, 1e-6, chosen, 4.0, "geometric", 12.5, (), "sotto verify out --signer X")

    monkeypatch.setattr(selecting, "select_best", best)
    drawn = Drawn(4.0, "geometric", ["local.learning_rate=1 server.learning_rate=2", "local.learning_rate=3"])
    given = {"out": Path("out"), "public": [Path("p")], "settings": ["run.rounds=7"], "drawn": drawn}
    select("demo", **given, yes=True)
    ((rounds, choice, licence),) = asked
    assert (rounds, choice.runs, choice.distribution, licence) == (7, 4.0, "geometric", "other")
    assert choice.tried == (("local.learning_rate=1", "server.learning_rate=2"), ("local.learning_rate=3",))
    assert "released: out, with ε = 2.99 at δ = 1e-6" in capsys.readouterr().out
    monkeypatch.setattr(command, "confirmed", lambda question, otherwise: False)
    select("demo", **given)
    assert len(asked) == 1
    assert "nobody was charged" in capsys.readouterr().out
