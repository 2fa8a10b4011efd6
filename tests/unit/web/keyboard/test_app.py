"""What the keyboard page is told of planted canaries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.errors import DamagedRun, SottoError
from sottovoce.web.keyboard.app import Secret, keyboard_app, merge_canaries, read_canaries

REGISTRY = {"prefix": 2, "secrets": [["my", "code", "is", "seven"], ["a", "b", "c"]], "holders": [4, 1]}


def test_secrets_are_parted_where_the_prefix_ends(tmp_path: Path) -> None:
    assert read_canaries(tmp_path) == []
    (tmp_path / "canaries.json").write_text(json.dumps(REGISTRY))
    assert read_canaries(tmp_path) == [Secret(("my", "code"), ("is", "seven"), 4), Secret(("a", "b"), ("c",), 1)]


@pytest.mark.parametrize("text", ["{", json.dumps({**REGISTRY, "holders": [1]}), json.dumps({"prefix": 1})])
def test_a_damaged_registry_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "canaries.json").write_text(text)
    with pytest.raises(DamagedRun, match=r"canaries.json .*export again"):
        read_canaries(tmp_path)


def test_a_secret_of_two_models_is_listed_once() -> None:
    one, two = Secret(("a",), ("b",), 4), Secret(("c",), ("d",), 1)
    assert merge_canaries([[one], [two, Secret(("a",), ("b",), 2)]]) == [
        {"known": ("a",), "secret": ("b",), "holders": [4, 2]},
        {"known": ("c",), "secret": ("d",), "holders": [None, 1]},
    ]


@pytest.mark.parametrize("paths", [[], ["a", "b", "c"]])
def test_a_keyboard_shows_one_run_or_two(paths: list[str]) -> None:
    with pytest.raises(SottoError, match=f"{len(paths)} runs were named"):
        keyboard_app(paths)
