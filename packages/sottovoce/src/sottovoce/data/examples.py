"""Users' texts cut into examples: excerpts of a public length, and at most so many of one user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.data.rows import Rows
from sottovoce.data.store import Store


@dataclass(frozen=True, eq=False)
class ExampleRows(Rows):
    """Row u·`most` + j is the j-th excerpt of user u: `length` tokens, the last one fewer, those after the text none.

    Guarantee: no token of a user is in more than one example, and a user has `most` rows, whatever they wrote. What
    is beyond `most` excerpts is in no row.
    """

    length: int = 1
    most: int = 1

    @property
    def count(self) -> int:
        return super().count * self.most

    @property
    def with_text(self) -> int:
        """How many of the rows are not empty: private."""
        lengths = (np.diff(batch.offsets) for batch in self.batches)
        return sum(int(np.sum(-(-np.minimum(each, self.most * self.length) // self.length))) for each in lengths)

    def tokens(self, row: int) -> np.ndarray:
        return self.gather([row], self.length).tokens[0, : self.lengths([row])[0]]

    def _spans(self, rows: Sequence[int] | np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        users, places = np.divmod(np.asarray(rows, np.int64), self.most)
        for values, here, starts, ends in super()._spans(users):
            first = np.minimum(starts + places[here] * self.length, ends)
            yield values, here, first, np.minimum(first + self.length, ends)


def example_rows(store: Store, length: int, most: int) -> ExampleRows:
    return ExampleRows(store.rows.batches, store.rows.mappings, length, most)


def examples_of(store: Store, length: int, most: int) -> Store:
    """The same people, with a row for each of their examples instead of each of them."""
    rows = example_rows(store, length, most)
    return replace(store, rows=rows, tokens_per_user=length, first=store.first * most)
