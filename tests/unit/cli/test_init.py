"""`sotto init`: print a recipe, or write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.commands.init import FirstRecipe

WRITE = "sottovoce.commands.init.write_recipe"


@pytest.fixture
def made(stub):
    return stub(WRITE, FirstRecipe("[privacy]\nusers = 3900\n", 3900, ("a note",)))


def test_without_a_file_the_recipe_alone_is_on_standard_output(made, sotto, capsys):
    sotto(["init", "store"])
    out, err = capsys.readouterr()
    assert out == "[privacy]\nusers = 3900\n"
    assert err == "note: a note\n"
    assert made.places == (Path("store"),)


def test_with_a_file_the_next_command_is_named(made, sotto, capsys, tmp_path):
    sotto(["init", "store", "--users", "4000", "--out", str(tmp_path / "mine.toml")])
    assert made.names == {"users": 4000, "noisy_count": None, "base": None, "out": tmp_path / "mine.toml"}
    path = tmp_path / "mine.toml"
    assert f"next: sotto plan {path}, then sotto train {path} --out RUN" in capsys.readouterr().out


def test_the_answer_is_one_json_object(made, answer):
    found = answer("init", "store")
    assert (found["users"], found["notes"], found["out"]) == (3900, ["a note"], None)
    assert found["recipe"].startswith("[privacy]")


@pytest.mark.parametrize(("given", "epsilon"), [(["--noisy-count"], 0.1), (["--noisy-count", "0.5"], 0.5)])
def test_a_noisy_count_may_name_its_epsilon(made, sotto, given, epsilon):
    sotto(["init", "store", *given])
    assert made.names["noisy_count"] == epsilon
