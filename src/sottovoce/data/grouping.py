"""Records to users: whose a record is, who is held out, and all text of one user together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np

from sottovoce.data.corpus import PACKED, Paths, corpus_files, pieces, records
from sottovoce.data.store import LARGEST_USER
from sottovoce.errors import SettingError, SottoError

PART_BYTES = 2**27
BUFFER_TOKENS = 2**24
PROGRESS_EVERY = 1000


@dataclass(frozen=True)
class Grouping:
    """How records become users: which fields, who is kept, where users are cut, who is held out.

    Every rule looks at one user alone: neither the order of the input nor one person joining moves any other user.
    With `plain_text` there are no users: pieces of text take their place, and protect no person.
    """

    user_field: str = "user"
    text_field: str = "text"
    min_tokens: int = 1
    tokens_per_user: int = 1600
    test_users: float = 0.1
    split_key: str = "sottovoce"
    plain_text: bool = False

    def __post_init__(self) -> None:
        length, least = self.tokens_per_user, self.min_tokens
        refused = {
            f"{{tokens_per_user}} must be in [2, {LARGEST_USER}]; users are cut to it": not 2 <= length <= LARGEST_USER,
            "{min_tokens} must be at least 1; smaller users are dropped": least < 1,
            "{min_tokens} is above {tokens_per_user}, to which users are cut; change one of them": least > length,
            "{test_users} must be in [0, 1); it is the share of users held out": not 0 <= self.test_users < 1,
            "{split_key.name} is empty; give any text, it decides which users are held out": not self.split_key,
        }
        for template, applies in refused.items():
            if applies:
                raise SettingError(template, **asdict(self))

    def files(self, paths: Paths) -> list[Path]:
        return corpus_files(paths, plain_text=self.plain_text)

    def records(self, files: list[Path], progress: Callable[[int], None] | None = None) -> Iterator[tuple[str, str]]:
        """The (user, text) pairs of a corpus. `progress` is called with the number of records read."""
        if self.plain_text:
            found = pieces(files, self.tokens_per_user)
        else:
            found = records(files, self.user_field, self.text_field)
        number = 0
        for number, record in enumerate(found, 1):
            yield record
            if progress and number % PROGRESS_EVERY == 0:
                progress(number)
        if not number:
            raise SottoError(f"no record in {', '.join(map(str, files))}; a corpus needs at least one")
        if progress and number % PROGRESS_EVERY:
            progress(number)

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
        self.records = 0
        self._folder, self._parts = folder, parts
        self._code = "I" if wide else "H"
        self._buffers = [(bytearray(), array("I"), array(self._code)) for _ in range(parts)]
        self._buffered = 0

    def add(self, name: bytes, ids: list[int]) -> None:
        names, lengths, tokens = self._buffers[int.from_bytes(name[:2], "big") * self._parts >> 16]
        names += name
        lengths.append(len(ids))
        tokens.extend(ids)
        self.records += 1
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
        for first, last in zip([0, *changes.tolist()], [*changes.tolist(), len(order)], strict=True):
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


def parts_for(files: list[Path]) -> int:
    """How many parts keep each near PART_BYTES: packed text grows about fivefold, tokens take half of their text."""
    text = sum(file.stat().st_size * (5 if file.suffix.lower() in (*PACKED, ".parquet") else 1) for file in files)
    return min(4096, 1 + text // 2 // PART_BYTES)
