"""Rows come back as they were written, and the memory they took is given back."""

from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import rows as rows_module
from sottovoce.data.rows import SplitWriter, read_rows
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary

WORDS = Vocabulary.from_words([f"word{chr(97 + i)}" for i in range(26)])
USERS = [[0, 40, 41, 1], [0, 42, 1], [], [0, 43, 44, 45, 46, 1]]


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_outside_the_store_are_refused(row: int) -> None:
    store = Store.from_users(USERS, WORDS)
    for use in (store.gather, store.lengths):
        with pytest.raises(IndexError, match="4 users"):
            use([0, row])
    with pytest.raises(IndexError):
        store[row]


@pytest.mark.parametrize(("size", "wide"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_mapped_rows_equal_what_was_written_across_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, wide: type
) -> None:
    """Ids up to the last of the vocabulary survive; batches break between users, also around one that is too large."""
    monkeypatch.setattr(rows_module, "BATCH_TOKENS", 50)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, size, length).astype(wide) for length in [*rng.integers(1, 20, 60), 80, 3, 0]]
    rows[0][0] = size - 1
    with SplitWriter(tmp_path / "train.arrow", size) as writer:
        for number, row in enumerate(rows):
            writer.add(f"{number:x}", row)
    store = Store(WORDS, 80, read_rows(tmp_path / "train.arrow"))
    batches = store.rows.batches
    assert len(batches) > 10
    assert max(len(batch.values) for batch in batches) == 80
    assert batches[0].values.dtype == wide
    assert store.users == len(rows) == writer.users
    assert all(np.array_equal(store[number], row) for number, row in enumerate(rows))
    picked = rng.integers(0, len(rows), 200)
    block = store.gather(picked)
    assert np.array_equal(block.lengths, store.lengths(picked))
    for number, row in enumerate(picked):
        assert np.array_equal(block.tokens[number, : len(rows[row])], rows[row])
        assert not block.tokens[number, len(rows[row]) :].any()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="how much is mapped is read from /proc")
def test_rows_that_were_gathered_are_not_held_in_memory(tmp_path: Path) -> None:
    users, tokens = 2000, np.zeros(8000, np.uint16)
    with SplitWriter(tmp_path / "train.arrow", WORDS.size) as writer:
        for number in range(users):
            writer.add(f"{number:x}", tokens)
    store = Store(WORDS, len(tokens), read_rows(tmp_path / "train.arrow"))
    before = mapped_bytes()
    for start in range(0, users, 100):
        store.gather(range(start, start + 100))
    assert mapped_bytes() - before < users * tokens.nbytes / 8


def mapped_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile:")]
    return int(line.split()[1]) * 1024
