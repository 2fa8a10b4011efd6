"""`sotto base`: what is passed on, and what is printed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce_evidence.bases import Base

TRAIN = "sottovoce.commands.base.train_base"
CARD = Base(
    "tiny", "lstm", {"hidden": 5}, "words", 60, "colours", 1200, "CC0", "a command", 2.0, 0.25, 12.5, {},
    "public", "en", None,
)  # fmt: skip


@pytest.fixture
def trained(stub):
    return stub(TRAIN, SimpleNamespace(out=Path("made"), base=CARD))


def test_a_base_is_named_after_its_folder(trained, sotto, capsys, tmp_path):
    sotto(["base", "train", "text", "--out", str(tmp_path / "tiny"), "--licence", "CC0", "--passes", "2"])
    store, out, about = trained.places
    assert (store, out) == (Path("text"), tmp_path / "tiny")
    assert (about.name, about.text, about.licence) == ("tiny", "public text", "CC0")
    assert (trained.names["passes"], trained.names["recipe"]) == (2.0, "base")
    printed = capsys.readouterr().out
    assert "25.00%, 12.5" in printed
    assert f"--from {tmp_path / 'tiny'}" in printed


def test_the_card_is_one_json_object(trained, answer, tmp_path):
    found = answer("base", "train", "text", "--out", tmp_path / "tiny", "--name", "other")
    assert trained.places[2].name == "other"
    assert (found["licence"], found["tokens"]) == ("CC0", 1200)


def test_the_bases_in_the_package_are_listed(answer):
    assert answer("base", "list")["english"]["kind"] == "lstm"
