"""`sotto practice`: what is said before, and how to look at it after."""

from __future__ import annotations

import pytest

from sottovoce.commands.forecast import Declined


@pytest.fixture
def trained(stub, result, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.practice.prepare_demo", lambda out, users, **more: out.mkdir())
    monkeypatch.setattr("sottovoce.commands.practice.mark_as_practice", lambda store: None)
    return stub("sottovoce.commands.train.train", result())


def test_it_says_that_nobody_is_charged_and_how_to_look_at_it(sotto, trained, capsys, tmp_path):
    sotto(["practice", "demo", "--out", str(tmp_path / "trial"), "--set", "run.rounds=3", "--set", "local.epochs=2"])
    out, err = capsys.readouterr()
    assert "6,000 synthetic people" in err
    assert "it says nothing about yours" in out
    assert f"sotto report {tmp_path / 'run'}" in out
    # Three rounds of the real run would cost all of its ε.
    assert out.endswith("for real: sotto train demo --out RUN --set local.epochs=2\n")
    trained.names["before_timing"]()
    assert "timing this machine" in capsys.readouterr().err
    recipe, folder = trained.places
    assert (recipe.run.rounds, recipe.data.store) == (3, str(tmp_path / "trial" / "store"))
    assert folder == tmp_path / "trial" / "run"


def test_the_result_is_one_json_object(answer, trained, tmp_path):
    assert answer("practice", "demo", "--out", tmp_path / "trial")["ended"] == "finished"
    assert trained.names["before_timing"] is None


def test_a_stop_before_the_first_round(sotto, stub, trained, capsys, tmp_path):
    stub("sottovoce.commands.train.train", Declined("stopped"))
    sotto(["practice", "demo", "--out", str(tmp_path / "trial")], status=130)
    assert capsys.readouterr().out.startswith("stopped; delete")


def test_bad_input_is_one_line(refusal, tmp_path):
    assert "privacy.users is not set" in refusal("practice", "small", "--out", tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
