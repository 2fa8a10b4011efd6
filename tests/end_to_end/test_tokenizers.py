"""Tokens that are not English words, from text to a release: each folder has its tokenizer, and refuses another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_world import RECIPE, Sotto, World, call, parse_json

import sottovoce as sv
from sottovoce.data.tokenizer_files import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pieces(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of public text, a store of pieces, and a private run on it."""
    folder = tmp_path_factory.mktemp("pieces")
    public = [json.loads(line)["text"] for line in world.corpus.read_text(encoding="utf-8").splitlines()]
    (folder / "public.txt").write_text("\n".join(public), encoding="utf-8")
    own = ("tokenizer", "train", folder / "public.txt", "--public", "--size", 290, "--out", folder / "tokenizer.json")
    assert call(*own) == 0
    store = ("--tokenizer", folder / "tokenizer.json", "--test-users", 0.2, "--tokens-per-user", 60, "--json")
    assert call("prepare", world.corpus, "--out", folder / "store", *store) == 0
    (folder / "recipe.toml").write_text(RECIPE.format(store=folder / "store"), encoding="utf-8")
    secret = ("--set", "privacy.secrets=entropy")
    assert call("train", folder / "recipe.toml", "--out", folder / "run", "--json", *secret) == 0
    return folder


def test_a_run_of_pieces_is_measured_released_and_loaded(pieces: Path, sotto: Sotto, tmp_path: Path) -> None:
    own = load_tokenizer(pieces)
    assert (pieces / "run" / "model" / "tokenizer.json").read_bytes() == own.contents
    assert not (pieces / "run" / "model" / "vocabulary.txt").exists()
    statement = json.loads((pieces / "run" / "privacy.json").read_text())
    assert statement["vocabulary"]["fingerprint"] == own.fingerprint
    assert (statement["vocabulary"]["kind"], statement["vocabulary"]["source"]) == ("bpe", "declared")
    found = parse_json(sotto("evaluate", pieces / "run", "--json").out)
    assert "bits_per_byte" in json.dumps(found)
    released = sotto("release", pieces / "run", "--out", tmp_path / "release", "--yes")
    assert released.status == 0, released.err
    assert (tmp_path / "release" / "tokenizer.json").read_bytes() == own.contents
    assert sotto("verify", tmp_path / "release").status == 0
    loaded = sv.ModelFolder.open(tmp_path / "release")
    assert loaded.tokenizer == own
    assert loaded.evaluate(pieces / "store").perplexity > 1
    changed = tmp_path / "release" / "tokenizer.json"
    changed.write_bytes(changed.read_bytes() + b" ")
    assert sotto("evaluate", tmp_path / "release", "--store", pieces / "store").status == 2


def test_a_run_does_not_start_from_a_model_of_other_tokens(
    pieces: Path, world: World, sotto: Sotto, tmp_path: Path
) -> None:
    start = ("--set", f"model.initial={world.run}")
    refused = sotto("train", pieces / "recipe.toml", "--out", tmp_path / "run", *start)
    assert refused.status == 2
    assert "has other tokens than" in refused.err
    assert not (tmp_path / "run").exists()
