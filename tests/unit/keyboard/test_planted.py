"""The registry of a run as the page shows it."""

from __future__ import annotations

import json

import pytest

from sottovoce.errors import DamagedRun
from sottovoce.web.keyboard.app import Secret, read_canaries, together

REGISTRY = {"registry": 1, "prefix": 2, "secrets": [["a", "b", "c"], ["d", "e", "f"]], "holders": [1, 4], "users": []}


def test_a_secret_is_what_follows_the_known_words(tmp_path):
    assert read_canaries(tmp_path) == []
    (tmp_path / "canaries.json").write_text(json.dumps(REGISTRY))
    assert read_canaries(tmp_path) == [Secret(("a", "b"), ("c",), 1), Secret(("d", "e"), ("f",), 4)]


def test_two_models_share_a_row_where_both_had_the_secret():
    here, there = Secret(("a",), ("b",), 3), Secret(("a",), ("b",), 7)
    rows = together([[here, Secret(("x",), ("y",), 1)], [there]])
    assert [(row["known"], row["holders"]) for row in rows] == [(("a",), [3, 7]), (("x",), [1, None])]


@pytest.mark.parametrize("change", [{"prefix": None}, {"holders": [1]}, {"secrets": 3}])
def test_a_damaged_registry_is_an_error(tmp_path, change):
    (tmp_path / "canaries.json").write_text(json.dumps(REGISTRY | change))
    with pytest.raises(DamagedRun, match="cannot read canaries"):
        read_canaries(tmp_path)
