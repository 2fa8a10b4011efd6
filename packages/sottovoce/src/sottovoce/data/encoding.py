"""The records of a corpus as tokens with their users' names, encoded by several threads, in the order of the corpus."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sottovoce.cores import cores
from sottovoce.data.blocks import Block, OwnedTexts, blocks, blocks_of
from sottovoce.data.census import Census, form_of
from sottovoce.data.contexts import begun_with
from sottovoce.data.corpus import Source
from sottovoce.data.grouping import Grouping, Progress, is_date
from sottovoce.data.tokenizer import TokenColumn, Tokenizer
from sottovoce_evidence.errors import SottoError

MOST_THREADS = 8  # beyond this they wait for one another's Python


@dataclass(frozen=True)
class Met:
    """A user of a block: the name in the store, the form of the id (`census.form_of`), and what it looks like."""

    name: bytes
    form: int
    nameless: bool
    date: bool


@dataclass(frozen=True, eq=False)
class EncodedBlock:
    """Consecutive records: text i has the tokens of row i of `column`, and is of `users[owner[i]]` and `record[i]`."""

    users: list[Met]
    owner: np.ndarray
    column: TokenColumn
    record: np.ndarray
    records: int
    dropped: int
    empty: int
    known: int = 0  # texts that begin with a context

    @property
    def names(self) -> np.ndarray:
        """The name of each text's user, [texts, 16] bytes."""
        known = np.frombuffer(b"".join(user.name for user in self.users), np.uint8).reshape(-1, 16)
        return known[self.owner]


def encode_block(texts: OwnedTexts, grouping: Grouping, tokenizer: Tokenizer) -> EncodedBlock:
    """The tokens of the texts that are not empty."""
    texts = texts.filled()
    users = [Met(grouping.name(user), *form_of(user), is_date(user)) for user in texts.users]
    column, known = tokenizer.encode_many(texts.texts), 0
    if texts.contexts is not None:
        column = begun_with(column, texts.contexts, tokenizer)
        known = sum(value in tokenizer.contexts for value in texts.contexts)
    return EncodedBlock(users, texts.owner, column, texts.record, texts.records, texts.dropped, texts.empty, known)


def encoded(
    corpus: list[Source], grouping: Grouping, tokenizer: Tokenizer, census: Census, progress: Progress | None = None
) -> Iterator[EncodedBlock]:
    """All records of a corpus. At the end the census has met everybody, and a corpus without people is refused.

    Guarantee: blocks come in the order of the corpus, whatever thread is done first; the first fault in this order is
    the one that is reported. So a store does not depend on the number of threads.
    """
    dated = 0
    for block in _in_order(_blocks(corpus, grouping, tokenizer, census), grouping, tokenizer):
        census.records += block.records
        census.dropped += block.dropped
        census.empty += block.empty
        census.known += block.known
        texts = np.bincount(block.owner, minlength=len(block.users)).tolist()
        for user, count in zip(block.users, texts, strict=True):
            census.nameless += count * user.nameless
            dated += count * user.date
            census.meet(user.form, user.name)
        yield block
        if progress:
            progress(census.records, census.position.bytes)
    grouping.check_records(corpus, census, dated)
    if progress:
        progress(census.records, census.position.bytes)


def _blocks(corpus: list[Source], grouping: Grouping, tokenizer: Tokenizer, census: Census) -> Iterator[Block]:
    if grouping.plain_text:
        return blocks_of(grouping.pieces(tokenizer).of(corpus, census))
    return blocks(corpus, grouping.reading, census)


def _in_order(found: Iterator[Block], grouping: Grouping, tokenizer: Tokenizer) -> Iterator[EncodedBlock]:
    """Some blocks ahead of the one that is taken, so that memory does not grow with the corpus."""

    def encode(block: Block) -> EncodedBlock:
        return encode_block(block.read(grouping.reading, grouping.owners_per_record), grouping, tokenizer)

    threads = min(cores(), MOST_THREADS)
    waiting: deque[Future[EncodedBlock]] = deque()
    with ThreadPoolExecutor(threads, "encode") as pool:
        try:
            fault = None
            while (block := _next(found)) is not None:
                if isinstance(block, SottoError):
                    fault = block
                    break
                waiting.append(pool.submit(encode, block))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            if fault is not None:
                raise fault
        finally:  # after a fault or Ctrl-C those that have not begun do not
            pool.shutdown(cancel_futures=True)


def _next(found: Iterator[Block]) -> Block | SottoError | None:
    """The next block; or a fault, which waits until what comes before it is encoded, and may have faults itself."""
    try:
        return next(found, None)
    except SottoError as fault:
        return fault
