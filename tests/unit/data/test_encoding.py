"""Threads encode blocks; what comes out is what one record after another gives."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import blocks as blocks_module
from sottovoce.data import encoding
from sottovoce.data.census import Census, form_of
from sottovoce.data.encoding import encoded
from sottovoce.data.grouping import Grouping
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words("abcdefgh")


def corpus(path: Path, count: int = 40) -> Path:
    rows = [
        {"user": f"user {number % 7}", "text": "abcdefgh"[number % 8] + " zz é" * (number % 3)}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_blocks_come_in_the_order_of_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that begin first end last, and the records come as they are in the file."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 200)
    monkeypatch.setattr(encoding, "cores", lambda: 4)
    real, begun = encoding.encode_block, []

    def slow(*given):
        begun.append(0)
        time.sleep(0.03 / len(begun))
        return real(*given)

    monkeypatch.setattr(encoding, "encode_block", slow)
    grouping, census = Grouping(), Census()
    source = corpus(tmp_path / "c.jsonl")
    found = list(encoded([source], grouping, WORDS, census))
    assert len(found) > 4
    rows = list(Grouping().records([source]))
    assert np.concatenate([block.names for block in found]).tobytes() == b"".join(
        grouping.name(user) for user, _ in rows
    )
    tokens = np.concatenate([block.column.tokens for block in found])
    assert tokens.tolist() == [token for _, text in rows for token in WORDS.encode_measured(text)]
    assert census.records == len(rows)


def test_the_first_fault_of_a_corpus_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is read earlier because its block is: the second file is no file of text at all."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 200)
    first = corpus(tmp_path / "1.jsonl", 8)
    first.write_text(first.read_text() + "oops\n" + first.read_text())
    packed = tmp_path / "2.jsonl.gz"
    packed.write_bytes(b"no gzip")
    with pytest.raises(SottoError, match=r"1\.jsonl:9: not JSON"):
        list(encoded([first, packed], Grouping(), WORDS, Census()))
    with pytest.raises(SottoError, match="not gzip"):
        list(encoded([corpus(tmp_path / "3.jsonl"), packed], Grouping(), WORDS, Census()))


def test_after_a_fault_no_block_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(encoding, "cores", lambda: 1)
    begun = []

    def interrupt(*given):
        begun.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(encoding, "encode_block", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(encoded([corpus(tmp_path / "c.jsonl", 400)], Grouping(), WORDS, Census()))
    assert len(begun) <= 3


def test_the_census_is_that_of_one_record_after_another() -> None:
    people = ["Ann", "ann", "null", "bob", "null", "2026-11-01", "Ann "]
    rows = [(user, "a") for user in people * 3]
    census, alone = Census(), Census()
    list(encoded(Grouping().sources(rows), Grouping(), WORDS, census))
    for user, _ in rows:
        alone.meet(form_of(user)[0], Grouping().name(user))
    assert (census.records, census.nameless, census.look_alikes) == (21, 6, 2)
    assert alone.look_alikes == 2
