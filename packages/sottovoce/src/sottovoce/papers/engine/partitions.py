"""Text in other partitions than by author: users pooled on nodes, and a benchmark cut into parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sottovoce.data.lines import lines
from sottovoce.data.store import Store, made_up_names
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

NODES = 4  # parts of the benchmark; the paper does not say how many it had
PIECES = 16  # of its held-out text, read in parallel
_ENDINGS = ("", ".gz", ".zst")

Splits = tuple[Store, Store]


def pool_users(folder: Path, nodes: int, users: int) -> Splits:
    """The text of the first `users` users on `nodes` nodes; held-out users are unchanged."""
    train, test = Store.open(folder), Store.open(folder, "test")
    shares = np.array_split(np.arange(min(users, train.users)), nodes)
    texts = [np.concatenate([train[row] for row in rows]) for rows in shares]
    return Store.from_users(texts, train.vocabulary, names=made_up_names(nodes)), test


def as_plain_text(folder: Path) -> Splits:
    """A store of users as a store of plain text."""
    train, test = (replace(Store.open(folder, split), people=False) for split in ("train", "test"))
    return train, test


def penn_treebank(folder: Path) -> Splits:
    """The Penn Treebank's text: tokenised already, one sentence a line, every word but <unk> in the vocabulary.

    BOS begins a line and is no target; EOS ends it and is one.
    """
    sentences = {split: list(_sentences(folder, split)) for split in ("train", "test")}
    counts = Counter(word for sentence in sentences["train"] for word in sentence)
    vocabulary = Vocabulary.from_tokens(word for word, _ in counts.most_common())
    bos, eos, unk, _ = vocabulary.specials
    ids = {word: number for number, word in enumerate(vocabulary.words)}
    texts = {
        split: [np.array([bos, *(ids.get(word, unk) for word in each), eos], np.int32) for each in found]
        for split, found in sentences.items()
    }
    parts = {split: _parts(texts[split], count) for split, count in (("train", NODES), ("test", PIECES))}
    train, test = (
        replace(Store.from_users(parts[split], vocabulary, names=made_up_names(len(parts[split]))), people=False)
        for split in ("train", "test")
    )
    return train, test


def _sentences(folder: Path, split: str) -> Iterator[list[str]]:
    names = [f"ptb.{split}.txt{ending}" for ending in _ENDINGS]
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise SottoError(f"{folder} has none of {', '.join(names)}; name the folder of the Penn Treebank's text")
    return (line.split() for line in lines(found[0]) if line.strip())


def _parts(texts: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """`count` streams of about equal length, cut between sentences."""
    if len(texts) < count:
        raise SottoError(f"{len(texts)} lines cannot be cut into {count} parts; give the benchmark's whole text")
    ends = np.cumsum([len(text) for text in texts])
    cuts = 1 + np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    return [np.concatenate(texts[start:end]) for start, end in zip([0, *cuts], [*cuts, len(texts)], strict=True)]
