"""`sotto practice`: what is said before, and how to look at it after."""

from __future__ import annotations

import pytest

from sottovoce.commands.forecast import Declined
from sottovoce.recipe import Recipe


@pytest.fixture
def trained(stub, result):
    stub("sottovoce.commands.practice.make_people", Recipe.load("demo"))
    return stub("sottovoce.commands.train.train", result())


def test_it_says_that_nobody_is_charged_and_how_to_look_at_it(sotto, trained, capsys, tmp_path):
    sotto(["practice", "demo", "--out", str(tmp_path / "trial"), "--set", "run.rounds=3"])
    out, err = capsys.readouterr()
    assert "6,000 synthetic people" in err
    assert f"sotto report {tmp_path / 'run'}" in out
    assert out.endswith("for real: sotto train demo --out RUN\n")
    assert trained.places[1] == tmp_path / "trial" / "run"


def test_the_result_is_one_json_object(answer, trained, tmp_path):
    assert answer("practice", "demo", "--out", tmp_path / "trial")["ended"] == "finished"


def test_a_stop_before_the_first_round(sotto, stub, trained, capsys, tmp_path):
    stub("sottovoce.commands.train.train", Declined("stopped"))
    sotto(["practice", "demo", "--out", str(tmp_path / "trial")])
    assert capsys.readouterr().out.startswith("stopped; delete")
