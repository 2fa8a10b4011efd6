"""Records to users: whose a record is, who is held out, and all text of one user together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np

from sottovoce.data.census import Census
from sottovoce.data.contexts import declare
from sottovoce.data.corpus import Corpus, Dump, Pieces, Reading, Source, records, size_of, sources
from sottovoce.data.store import LARGEST_USER
from sottovoce.data.tokenizer import TokenColumn, Tokenizer
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.statement import EXACT, PRIVATE, HeldOut

PART_BYTES = 2**26
BUFFER_TOKENS = 2**24
BLOCK_TOKENS = 2**20  # of users that are sorted together
PROGRESS_EVERY = 1000
MOST_OWNERS = 64
# From so many users on, so large a share with one record each suggests that records, not people, were named as users.
SUSPECTED_FROM, SUSPECTED_SHARE = 100, 0.9
# 2026-11-01, 1.11.2026 18:30, 18:30:05
_DATE = re.compile(r"\s*(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{2,4}|\d\d?:\d\d(:\d\d)?)([T ,].*)?", re.ASCII)

Progress = Callable[[int, int], None]  # records read, and bytes of their files


@dataclass(frozen=True)
class Grouping:
    """How records become users: which fields, who is kept, where users are cut, who is held out.

    Every rule looks at one user alone: neither the order of the input nor one person joining moves any other user.
    With `plain_text` there are no users: pieces of text take their place, and protect no person.

    Args:
        user_field: names the user. Several fields, or a field that holds a list, name all owners of a record.
        text_field: holds the text.
        min_tokens: users with fewer are left out.
        tokens_per_user: users are cut to this many.
        test_users: the share of users held out.
        split_key: the key of the hash that decides who is held out.
        held_out: "exact": figures of users held out are exact and may be published, and these users are not protected;
            "private": no exact figure of them is ever computed, only `evaluate_privately` measures them.
        plain_text: public text without users.
        owners_per_record: a record of more owners is dropped; any other is in the text of each of its owners.
        every_record_is_a_user: nearly all users have one record each, and this is as it should be.
        delimiter: of tables; without it, the one with which their first line names the fields.
        encoding: of text files; without it UTF-8, or UTF-16 where a file begins so.
        dump: the files are a published dump, `Reddit()` or `StackOverflow()`, which has its own fields.
        context_field: says something of the writer of a record, such as a language, that the model is to know.
        context_values: its values, declared by hand: a list taken from people's data would be a release.
    """

    user_field: str | tuple[str, ...] = "user"
    text_field: str = "text"
    min_tokens: int = 1
    tokens_per_user: int = 1600
    test_users: float = 0.1
    split_key: str = "sottovoce"
    held_out: HeldOut = EXACT
    plain_text: bool = False
    owners_per_record: int = 1
    every_record_is_a_user: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    dump: Dump | None = None
    context_field: str | None = None
    context_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        length, least = self.tokens_per_user, self.min_tokens
        refused = {
            f"{{tokens_per_user}} must be in [2, {LARGEST_USER}]; users are cut to it": not 2 <= length <= LARGEST_USER,
            "{min_tokens} must be at least 1; smaller users are dropped": least < 1,
            "{min_tokens} is above {tokens_per_user}, to which users are cut; change one of them": least > length,
            "{test_users} must be in [0, 1); it is the share of users held out": not 0 <= self.test_users < 1,
            "{split_key.name} is empty; give any text, it decides which users are held out": not self.split_key,
            f"{{held_out!r}} must be {EXACT!r} or {PRIVATE!r}": self.held_out not in (EXACT, PRIVATE),
            "{held_out!r} protects people, and plain text has none; leave {plain_text.name} or {held_out.name} "
            "out": self.plain_text and self.held_out == PRIVATE,
            f"{{owners_per_record}} must be in [1, {MOST_OWNERS}]; records of more owners are dropped": not 1
            <= self.owners_per_record
            <= MOST_OWNERS,
            "{plain_text.name} is text without users, and a dump has users; leave one of them out": self.plain_text
            and self.dump is not None,
            "a dump names its own fields; leave {user_field.name} and {text_field.name} out": self.dump is not None
            and (self.reading.users, self.text_field) != (("user",), "text"),
            "{context_field} is read from records with users; leave it out": self.context_field is not None
            and (self.plain_text or self.dump is not None),
            "{context_values.name} are values of a field; name it with {context_field.name}": bool(self.context_values)
            and self.context_field is None,
        }
        for template, applies in refused.items():
            if applies:
                raise SettingError(template, **asdict(self))

    @cached_property
    def reading(self) -> Reading:
        fields = (self.user_field,) if isinstance(self.user_field, str) else tuple(self.user_field)
        return Reading(fields, self.text_field, self.delimiter, self.encoding, self.dump, self.context_field)

    def sources(self, corpus: Corpus) -> list[Source]:
        return sources(corpus, plain_text=self.plain_text, dump=self.dump)

    def with_contexts(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of the store: with a begin token for each value that may be known of a writer."""
        if self.context_field and not self.context_values and not tokenizer.contexts:
            raise SettingError(
                "name the values of {context_field} by hand, with {context_values.name}: a list taken from people's "
                "data would be a release",
                **asdict(self),
            )
        return declare(tokenizer, self.context_values)

    def records(
        self,
        corpus: list[Source],
        tokenizer: Tokenizer | None = None,
        census: Census | None = None,
        progress: Progress | None = None,
    ) -> Iterator[tuple[str, str]]:
        """The (user, text) pairs of a corpus: a record comes once for each owner, or not at all.

        Guarantee: whether a record counts is decided by the record alone, by the number of its owners, and whether its
        text is more than white space. So the records of one user say nothing of those of another. (`tokenizer` counts
        the tokens of plain text, which has no users.)
        """
        census, dated = census or Census(), 0
        if self.plain_text:
            if tokenizer is None:
                raise ValueError("plain text is cut by the tokens of a tokenizer")
            found = self.pieces(tokenizer).of(corpus, census)
        else:
            found = records(corpus, self.reading, census)
        for census.records, (owners, text, *_) in enumerate(found, 1):
            if len(owners) > self.owners_per_record:
                census.dropped += 1
            elif not text or text.isspace():
                census.empty += 1
            else:
                for owner in owners:
                    dated += is_date(owner)
                    yield owner, text
            if progress and census.records % PROGRESS_EVERY == 0:
                progress(census.records, census.position.bytes)
        self.check_records(corpus, census, dated)
        if progress:
            progress(census.records, census.position.bytes)

    def pieces(self, tokenizer: Tokenizer) -> Pieces:
        """How plain text is cut."""
        count, whole = (lambda text: len(tokenizer.encode(text))), not tokenizer.is_words
        return Pieces(self.tokens_per_user, count, self.encoding, whole)

    def check_records(self, corpus: list[Source], census: Census, dated: int) -> None:
        """Refuse a corpus without a record that counts, or one whose users are dates: those of `dated` texts."""
        if not census.kept:
            self._refuse_empty(corpus, census)
        if census.kept >= SUSPECTED_FROM and dated >= SUSPECTED_SHARE * census.kept:
            text = (
                "{user_field} names dates or times, not people, and then no person is protected; name the field of the"
            )
            raise SettingError(f"{text} person", user_field=" ".join(self.reading.users))

    def _refuse_empty(self, corpus: list[Source], census: Census) -> None:
        if not census.records:
            raise SottoError(f"no record in {', '.join(map(str, corpus))}; a corpus needs at least one")
        if census.empty:
            text = "{text_field} is empty in every record{}; name the field that holds the text"
            others = " that has not too many owners" if census.dropped else ""
            raise SettingError(text, others, text_field=self.text_field)
        text = "every record has more owners than {owners_per_record} allows; name the one who wrote it"
        raise SettingError(text, owners_per_record=self.owners_per_record)

    def check_users(self, users: int, single: int) -> None:
        """Refuse a corpus whose users look like records, where `single` of its users have one record.

        The rule is about how a corpus is laid out, and coarse: nine of ten users. Its answer is the owner's alone, as
        the counts are, and leaves no file.
        """
        if self.plain_text or self.every_record_is_a_user or users < SUSPECTED_FROM:
            return
        if single >= SUSPECTED_SHARE * users:
            raise SettingError(
                "nearly every user has one record: {user_field} may name messages, not people, and then no person is "
                "protected. Name the field of the person; or, if each record is another person's, give "
                "{every_record_is_a_user.name}",
                user_field=" ".join(self.reading.users),
                every_record_is_a_user=True,
            )

    def name(self, user: str) -> bytes:
        """A user's name in the store: 16 bytes that sort and split the users, and do not reveal the id."""
        hashed = self._keyed.copy()
        # JSON can hold half of a surrogate pair, and such an id must not stop the run.
        hashed.update(user.encode("utf-8", "surrogatepass"))
        return hashed.digest()

    def holds_out(self, name: bytes) -> bool:
        # The last bytes split and the first ones sort, so that the two are independent.
        return int.from_bytes(name[8:], "big") < int(self.test_users * 2**64)

    def are_held_out(self, names: np.ndarray) -> np.ndarray:
        """`holds_out` of many names, [users, 16] bytes."""
        halves = np.ascontiguousarray(names[:, 8:]).view(">u8")[:, 0]
        return halves < np.uint64(int(self.test_users * 2**64))

    @cached_property
    def _keyed(self) -> blake2b:
        return blake2b(key=blake2b(self.split_key.encode()).digest(), digest_size=16)


def is_date(user: str) -> bool:
    """Is an id a date or a time?"""
    return _DATE.fullmatch(user) is not None


@dataclass(frozen=True, eq=False)
class UserTexts:
    """Some users in the order of their names, [users, 16] bytes: their tokens, one user after another, and lengths.

    `totals` are the tokens that users had before they were cut.
    """

    names: np.ndarray
    totals: np.ndarray
    column: TokenColumn

    def only(self, chosen: np.ndarray) -> UserTexts:
        lengths = self.column.lengths
        tokens = self.column.tokens[np.repeat(chosen, lengths)]
        return UserTexts(self.names[chosen], self.totals[chosen], TokenColumn(tokens, lengths[chosen]))


class Spill:
    """Records on disk, in parts by the first bytes of the user's name.

    All of a user is in one part, and the parts are in the order of the names. So sorting each part in memory sorts all
    users.
    """

    def __init__(self, folder: Path, parts: int, *, wide: bool) -> None:
        folder.mkdir(mode=0o700)
        self.single = 0  # users with one record, once all users have come back
        self._folder, self._parts = folder, parts
        self._kind = np.dtype(np.uint32 if wide else np.uint16)
        self._buffers = [(bytearray(), bytearray(), bytearray()) for _ in range(parts)]
        self._buffered = 0

    def add(self, name: bytes, ids: list[int]) -> None:
        """One record."""
        self.add_many(np.frombuffer(name, np.uint8)[None], TokenColumn.of([ids], self._kind == np.uint32))

    def add_many(self, names: np.ndarray, column: TokenColumn) -> None:
        """Records in order: the names of their users, [records, 16] bytes, and their tokens."""
        lengths = column.lengths.astype(np.uint32)
        tokens = column.tokens.astype(self._kind, copy=False)
        parts = (names[:, 0].astype(np.int64) * 256 + names[:, 1]) * self._parts >> 16
        if self._parts > 1:
            order = np.argsort(parts, kind="stable")
            ends = np.cumsum(column.lengths)
            tokens = tokens[spans(ends[order] - column.lengths[order], column.lengths[order])]
            names, lengths, parts = names[order], lengths[order], parts[order]
        bounds = np.flatnonzero(np.diff(parts, prepend=-1, append=self._parts))
        token_bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[bounds]
        for (first, last), (begin, end) in zip(pairwise(bounds), pairwise(token_bounds), strict=True):
            pieces = names[first:last], lengths[first:last], tokens[begin:end]
            for buffer, piece in zip(self._buffers[parts[first]], pieces, strict=True):
                buffer += np.ascontiguousarray(piece).data.cast("B")
        self._buffered += len(tokens) + 10 * len(lengths)  # a name and a length take as much as ten tokens
        if self._buffered >= BUFFER_TOKENS:
            self._flush()

    def users(self, limit: int) -> Iterator[tuple[bytes, int, np.ndarray]]:
        """Each user's name, number of tokens, and first `limit` tokens in order of appearance."""
        for found in self.blocks(limit):
            ends = np.cumsum(found.column.lengths)
            for name, total, end, size in zip(found.names, found.totals, ends, found.column.lengths, strict=True):
                yield name.tobytes(), int(total), found.column.tokens[end - size : end]

    def blocks(self, limit: int) -> Iterator[UserTexts]:
        """All users by name, some at a time, with their first `limit` tokens in order of appearance."""
        self._flush()
        for part in range(self._parts):
            files = self._files(part)
            if files[0].exists():
                yield from self._blocks_of(files, limit)
                for file in files:
                    file.unlink()

    def _blocks_of(self, files: tuple[Path, Path, Path], limit: int) -> Iterator[UserTexts]:
        names = np.fromfile(files[0], dtype=">u8").reshape(-1, 2)
        lengths = np.fromfile(files[1], dtype=np.uint32).astype(np.int64)
        # Mapped, so that one enormous user costs no memory beyond the limit. A plain view of it slices faster.
        tokens = np.asarray(np.memmap(files[2], dtype=self._kind, mode="r"))
        order = np.lexsort((names[:, 1], names[:, 0]))  # stable: a user's records stay in order of appearance
        starts = (np.cumsum(lengths) - lengths)[order]
        names, lengths = names[order], lengths[order]
        firsts = np.flatnonzero(np.concatenate([[True], (names[1:] != names[:-1]).any(axis=1)]))
        self.single += int(np.sum(np.diff(firsts, append=len(order)) == 1))
        totals = np.add.reduceat(lengths, firsts)
        # What is left of the limit when a record begins is what of it is taken.
        before = np.cumsum(lengths) - lengths
        taken = np.clip(limit - (before - np.repeat(before[firsts], np.diff(firsts, append=len(order)))), 0, lengths)
        kept = np.minimum(totals, limit)
        for first, last in pairwise(_cuts(kept, BLOCK_TOKENS)):
            rows = slice(firsts[first], firsts[last] if last < len(firsts) else len(order))
            column = TokenColumn(tokens[spans(starts[rows], taken[rows])], kept[first:last])
            yield UserTexts(names[firsts[first:last]].view(np.uint8), totals[first:last], column)

    def _files(self, part: int) -> tuple[Path, Path, Path]:
        folder = self._folder
        return folder / f"{part}.names", folder / f"{part}.lengths", folder / f"{part}.tokens"

    def _flush(self) -> None:
        for part, buffers in enumerate(self._buffers):
            for path, buffer in zip(self._files(part), buffers, strict=True):
                if buffer:
                    with path.open("ab") as file:
                        file.write(buffer)
                    buffer.clear()
        self._buffered = 0


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The places of several spans, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def _cuts(sizes: np.ndarray, most: int) -> list[int]:
    """Where to cut users with these sizes, so that a block has about `most` tokens, or one user."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(max(int(np.searchsorted(ends, before + most, side="right")), cuts[-1] + 1))
    return cuts


def parts_for(corpus: list[Source]) -> int:
    """How many parts keep each near PART_BYTES: tokens take half of their text."""
    return min(4096, 1 + sum(map(size_of, corpus)) // 2 // PART_BYTES)
