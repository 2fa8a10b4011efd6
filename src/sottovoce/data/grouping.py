"""Records to users: whose a record is, who is held out, and all text of one user together."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np

from sottovoce.data.census import Census
from sottovoce.data.corpus import Corpus, Pieces, Reading, Source, records, size_of, sources
from sottovoce.data.store import LARGEST_USER
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.errors import SettingError, SottoError

PART_BYTES = 2**27
BUFFER_TOKENS = 2**24
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
        plain_text: public text without users.
        owners_per_record: a record of more owners is dropped; any other is in the text of each of its owners.
        every_record_is_a_user: nearly all users have one record each, and this is as it should be.
        delimiter: of tables; without it, the one with which their first line names the fields.
        encoding: of text files; without it UTF-8, or UTF-16 where a file begins so.
    """

    user_field: str | tuple[str, ...] = "user"
    text_field: str = "text"
    min_tokens: int = 1
    tokens_per_user: int = 1600
    test_users: float = 0.1
    split_key: str = "sottovoce"
    plain_text: bool = False
    owners_per_record: int = 1
    every_record_is_a_user: bool = False
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        length, least = self.tokens_per_user, self.min_tokens
        refused = {
            f"{{tokens_per_user}} must be in [2, {LARGEST_USER}]; users are cut to it": not 2 <= length <= LARGEST_USER,
            "{min_tokens} must be at least 1; smaller users are dropped": least < 1,
            "{min_tokens} is above {tokens_per_user}, to which users are cut; change one of them": least > length,
            "{test_users} must be in [0, 1); it is the share of users held out": not 0 <= self.test_users < 1,
            "{split_key.name} is empty; give any text, it decides which users are held out": not self.split_key,
            f"{{owners_per_record}} must be in [1, {MOST_OWNERS}]; records of more owners are dropped": not 1
            <= self.owners_per_record
            <= MOST_OWNERS,
        }
        for template, applies in refused.items():
            if applies:
                raise SettingError(template, **asdict(self))

    @cached_property
    def reading(self) -> Reading:
        fields = (self.user_field,) if isinstance(self.user_field, str) else tuple(self.user_field)
        return Reading(fields, self.text_field, self.delimiter, self.encoding)

    def sources(self, corpus: Corpus) -> list[Source]:
        return sources(corpus, plain_text=self.plain_text)

    def records(
        self,
        corpus: list[Source],
        tokenizer: Tokenizer | None = None,
        census: Census | None = None,
        progress: Progress | None = None,
    ) -> Iterator[tuple[str, str]]:
        """The (user, text) pairs of a corpus: a record comes once for each owner, or not at all.

        Guarantee: whether a record counts is decided by the record alone, by the number of its owners. So the records
        of one user say nothing of those of another. (`tokenizer` counts the tokens of plain text, which has no users.)
        """
        census, dated = census or Census(), 0
        if self.plain_text:
            if tokenizer is None:
                raise ValueError("plain text is cut by the tokens of a tokenizer")
            pieces = Pieces(
                self.tokens_per_user, lambda text: len(tokenizer.encode(text)), self.encoding, not tokenizer.is_words
            )
            found = pieces.of(corpus, census)
        else:
            found = records(corpus, self.reading, census)
        for census.records, (owners, text) in enumerate(found, 1):
            if len(owners) <= self.owners_per_record:
                for owner in owners:
                    dated += _DATE.fullmatch(owner) is not None
                    yield owner, text
            else:
                census.dropped += 1
            if progress and census.records % PROGRESS_EVERY == 0:
                progress(census.records, census.position.bytes)
        if census.records == census.dropped:
            self._refuse_empty(corpus, census)
        if census.records >= SUSPECTED_FROM and dated >= SUSPECTED_SHARE * census.records:
            text = (
                "{user_field} names dates or times, not people, and then no person is protected; name the field of the"
            )
            raise SettingError(f"{text} person", user_field=" ".join(self.reading.users))
        if progress:
            progress(census.records, census.position.bytes)

    def _refuse_empty(self, corpus: list[Source], census: Census) -> None:
        if not census.records:
            raise SottoError(f"no record in {', '.join(map(str, corpus))}; a corpus needs at least one")
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

    @cached_property
    def _keyed(self) -> blake2b:
        return blake2b(key=blake2b(self.split_key.encode()).digest(), digest_size=16)


class Spill:
    """Records on disk, in parts by the first bytes of the user's name.

    All of a user is in one part, and the parts are in the order of the names. So sorting each part in memory sorts all
    users.
    """

    def __init__(self, folder: Path, parts: int, *, wide: bool) -> None:
        folder.mkdir(mode=0o700)
        self.single = 0  # users with one record, once all users have come back
        self._folder, self._parts = folder, parts
        self._code = "I" if wide else "H"
        self._buffers = [(bytearray(), array("I"), array(self._code)) for _ in range(parts)]
        self._buffered = 0

    def add(self, name: bytes, ids: list[int]) -> None:
        names, lengths, tokens = self._buffers[int.from_bytes(name[:2], "big") * self._parts >> 16]
        names += name
        lengths.append(len(ids))
        tokens.extend(ids)
        self._buffered += len(ids) + 10  # a name and a length take as much as ten tokens
        if self._buffered >= BUFFER_TOKENS:
            self._flush()

    def users(self, limit: int) -> Iterator[tuple[bytes, int, np.ndarray]]:
        """Each user's name, number of tokens, and first `limit` tokens in order of appearance."""
        self._flush()
        for part in range(self._parts):
            files = self._files(part)
            if files[0].exists():
                yield from self._users_of(files, limit)
                for file in files:
                    file.unlink()

    def _users_of(self, files: tuple[Path, Path, Path], limit: int) -> Iterator[tuple[bytes, int, np.ndarray]]:
        names = np.fromfile(files[0], dtype=">u8").reshape(-1, 2)
        lengths = np.fromfile(files[1], dtype=np.uint32).astype(np.int64)
        # Mapped, so that one enormous user costs no memory beyond the limit. A plain view of it slices faster.
        tokens = np.asarray(np.memmap(files[2], dtype=self._code, mode="r"))
        ends = np.cumsum(lengths)
        order = np.lexsort((names[:, 1], names[:, 0]))  # stable: a user's records stay in order of appearance
        names = names[order]
        changes = np.flatnonzero((names[1:] != names[:-1]).any(axis=1)) + 1
        bounds = [0, *changes.tolist(), len(order)]
        self.single += int(np.sum(np.diff(bounds) == 1))
        for first, last in pairwise(bounds):
            rows = order[first:last]
            totals = np.cumsum(lengths[rows])
            needed = rows[: int(np.searchsorted(totals, limit)) + 1]
            pieces = [tokens[end - length : end] for end, length in zip(ends[needed], lengths[needed], strict=True)]
            yield names[first].tobytes(), int(totals[-1]), np.concatenate(pieces)[:limit]

    def _files(self, part: int) -> tuple[Path, Path, Path]:
        folder = self._folder
        return folder / f"{part}.names", folder / f"{part}.lengths", folder / f"{part}.tokens"

    def _flush(self) -> None:
        for part, buffers in enumerate(self._buffers):
            for path, buffer in zip(self._files(part), buffers, strict=True):
                if buffer:
                    with path.open("ab") as file:
                        file.write(buffer)
                    del buffer[:]
        self._buffered = 0


def parts_for(corpus: list[Source]) -> int:
    """How many parts keep each near PART_BYTES: tokens take half of their text."""
    return min(4096, 1 + sum(map(size_of, corpus)) // 2 // PART_BYTES)
