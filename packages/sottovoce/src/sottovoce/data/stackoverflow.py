"""StackOverflow's sentences by user, as TensorFlow Federated publishes them: an SQLite or an HDF5 file.

The text is cut into words already, with a space between them (https://www.tensorflow.org/federated/api_docs/python/tff/
simulation/datasets/stackoverflow/load_data).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.data.census import Census
from sottovoce.data.corpus import Record
from sottovoce.data.lines import one_line, readable
from sottovoce_evidence.errors import SettingError, SottoError

SPLITS = ("train", "heldout", "test")
_SQLITE, _HDF5 = b"SQLite format 3\x00", b"\x89HDF\r\n\x1a\n"
_TOKENS = "tokens"


@dataclass(frozen=True)
class StackOverflow:
    """The sentences of each user in the order of the file, as many and as long as most papers take.

    Args:
        sentences_per_user: the first so many of a user are read.
        sentence_tokens: a sentence is cut after so many words.
        split: of an SQLite file: train (posts before 2018), heldout (other users), test (posts from 2018 on). An HDF5
            file holds one split.
    """

    sentences_per_user: int = 256
    sentence_tokens: int = 20
    split: str = "train"

    def __post_init__(self) -> None:
        for name in ("sentences_per_user", "sentence_tokens"):
            if getattr(self, name) < 1:
                raise SettingError(f"{{{name}}} must be at least 1", **asdict(self))
        if self.split not in SPLITS:
            raise SettingError(f"{{split!r}} must be one of {', '.join(SPLITS)}", **asdict(self))

    def holds(self, path: Path) -> bool:
        """By the name of the file."""
        return path.suffix in (".sqlite", ".sqlite3", ".db", ".h5", ".hdf5")

    def records(self, files: list[Path], census: Census) -> Iterator[Record]:
        """The user and the text of each sentence that counts.

        Guarantee: no user has more than `sentences_per_user` sentences, over all files.
        """
        taken: dict[str, int] = {}
        for path in files:
            with readable(path), census.position.within(path, int), closing(self._sentences(path)) as found:
                for number, (user, raw) in enumerate(found, 1):
                    count = taken.get(user, 0)
                    if count < self.sentences_per_user:
                        taken[user] = count + 1
                        yield (user,), " ".join(_text(raw, path, number).split()[: self.sentence_tokens])
                    else:
                        census.filtered += 1

    def _sentences(self, path: Path) -> Generator[tuple[str, Any], None, None]:
        """The user of each sentence, and an example or the bytes of its text."""
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
        if start == _SQLITE:
            yield from _of_sqlite(path, self.split)
        elif start.startswith(_HDF5):
            yield from _of_hdf5(path)
        else:
            raise SottoError(
                f"{path} is neither an SQLite nor an HDF5 file; unpack what TensorFlow Federated publishes (xz -d, tar)"
            )


def _of_sqlite(path: Path, split: str) -> Generator[tuple[str, Any], None, None]:
    # In the order of the rows: by its index, all rows of a split would be sorted first.
    query = "SELECT client_id, serialized_example_proto FROM examples NOT INDEXED WHERE split_name = ? ORDER BY rowid"
    empty = True
    try:
        # Read-only and as it is: no file is written next to it.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            for user, example in database.execute(query, (split,)):
                empty = False
                yield str(user), _Example(example)
    except sqlite3.Error as error:
        raise SottoError(
            f"{path} cannot be read as TensorFlow Federated's file ({one_line(error)}); copy or unpack it again"
        ) from None
    if empty:
        raise SettingError(
            f"{path} has no sentence of {{split}}; name another, one of {', '.join(SPLITS)}", split=split
        )


def _of_hdf5(path: Path) -> Generator[tuple[str, Any], None, None]:
    try:
        import h5py
    except ImportError:
        raise SottoError(f"{path} is HDF5, which h5py reads; `pip install 'sottovoce[dumps]'`") from None
    number = 0
    try:
        with h5py.File(path, "r") as file:
            for user, group in file["examples"].items():
                for raw in group[_TOKENS][()]:
                    number += 1
                    yield user, raw
    except (KeyError, OSError, RuntimeError, AttributeError) as error:
        # Its own words name groups, which are people.
        found = f"{type(error).__name__} after sentence {number}"
        raise SottoError(
            f"{path} is not TensorFlow Federated's file, or not whole ({found}); it has examples/USER/{_TOKENS}"
        ) from None


class _Example(NamedTuple):
    """A sentence that is not read yet."""

    serialised: Any


def _text(given: Any, path: Path, number: int) -> str:
    raw = feature_of(given.serialised, _TOKENS) if isinstance(given, _Example) else given
    if not isinstance(raw, bytes):
        raise SottoError(f"{path}: sentence {number} has no {_TOKENS!r}; every example needs them, as bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SottoError(f"{path}: sentence {number} is not UTF-8; copy or unpack the file again") from None


def feature_of(example: Any, wanted: str) -> bytes | None:
    """The first value of a feature of bytes in a serialised tf.train.Example; None where there is none.

    An example has the map `features.feature` (fields 1 and 1, entries of key 1 and value 2); a value has a list of
    bytes (field 1) or of numbers. (tensorflow/core/example/example.proto and feature.proto.)
    """
    try:
        for entry in _fields(b"".join(_fields(example, 1)), 1):
            if b"".join(_fields(entry, 1)) == wanted.encode():
                lists = (bag for value in _fields(entry, 2) for bag in _fields(value, 1))
                return next((value for bag in lists for value in _fields(bag, 1)), None)
    except (IndexError, TypeError, ValueError):
        return None
    return None


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The values of a field, those that have a length, in a message of protocol buffers."""
    place, end = 0, len(message)
    while place < end:
        tag, place = message[place], place + 1
        if tag > 127:
            tag, place = _varint(message, place - 1)
        kind = tag & 7
        if kind == 2:
            size, place = message[place], place + 1
            if size > 127:
                size, place = _varint(message, place - 1)
            after = place + size
            if after > end:
                raise ValueError("a message ends in the middle")
            if tag >> 3 == wanted:
                yield message[place:after]
            place = after
        elif kind == 0:
            _, place = _varint(message, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError("no message")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
