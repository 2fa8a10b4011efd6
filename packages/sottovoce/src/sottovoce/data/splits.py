"""The two splits of a store, or of one shard of it: users in the order of their names, and counts of what was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType

import numpy as np

from sottovoce.data.grouping import Grouping, UserTexts
from sottovoce.data.rows import RecordBatch, SplitWriter
from sottovoce.data.tokenizer import TokenColumn, Tokenizer
from sottovoce_evidence.files import Facts


@dataclass(frozen=True)
class SplitCounts(Facts):
    """What became of users: exact, so private. Those of several shards are added."""

    seen: int = 0
    single: int = 0  # users with one record
    cut: int = 0
    tokens_seen: int = 0
    tokens_cut: int = 0
    unknown: int = 0
    needed: int = 0  # tokens that show that the vocabulary is one of this text
    largest: int = 0
    train_users: int = 0
    train_tokens: int = 0
    test_users: int = 0
    test_tokens: int = 0

    def __add__(self, other: SplitCounts) -> SplitCounts:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return SplitCounts(**sums | {"largest": max(self.largest, other.largest)})


class Splits:
    """Writes the files of `train` and `test`; `needed` are the tokens that a text of this vocabulary has."""

    def __init__(
        self, files: Mapping[str, Path], grouping: Grouping, vocabulary: Tokenizer, needed: np.ndarray
    ) -> None:
        self.counts = SplitCounts()
        self._grouping, self._vocabulary, self._needed = grouping, vocabulary, needed
        self._writers = {split: SplitWriter(file, vocabulary.size) for split, file in files.items()}

    def add(self, found: UserTexts) -> None:
        """Users in the order of their names. Those with too few tokens are left out."""
        held_out, enough = self._grouping.are_held_out(found.names), found.totals >= self._grouping.min_tokens
        counts = SplitCounts(
            seen=len(found.names), tokens_seen=int(found.totals.sum()), largest=int(found.totals.max(initial=0))
        )
        for split, chosen in (("train", enough & ~held_out), ("test", enough & held_out)):
            users = found.only(chosen)
            batch = separated(users.column, self._vocabulary)
            self._writers[split].add_block(users.names, batch)
            lost = users.totals - users.column.lengths
            counts += SplitCounts(
                cut=int(np.sum(lost > 0)),
                tokens_cut=int(lost.sum()),
                unknown=len(batch.unknown.values) if batch.unknown else 0,
                needed=int(self._needed[batch.values].sum()),
                **{f"{split}_users": len(users.names), f"{split}_tokens": len(batch.values)},
            )
        self.counts += counts

    def __enter__(self) -> Splits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.__exit__(kind, error, trace)


def separated(column: TokenColumn, vocabulary: Tokenizer) -> RecordBatch:
    """The tokens of some users, and the lengths of their words outside the vocabulary."""
    tokens, letters = vocabulary.separate(column.tokens)
    offsets = np.concatenate([[0], np.cumsum(column.lengths)])
    outside = np.concatenate([[0], np.cumsum(column.tokens >= vocabulary.size)])[offsets]
    return RecordBatch(tokens, offsets, RecordBatch(letters, outside))
