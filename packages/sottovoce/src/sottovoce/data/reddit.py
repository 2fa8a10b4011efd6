"""Dumps of Reddit's comments, as Pushshift wrote them: a JSON object a line, with author, body and created_utc.

Whose a comment is, and whether it counts, is decided by the comment alone.
"""

from __future__ import annotations

import heapq
import html
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.data.census import Census
from sottovoce.data.corpus import Reading, Record, json_rows, numbered, show_value
from sottovoce.data.lines import Position, format_of, opened
from sottovoce_evidence.errors import SottoError

AUTHOR, BODY, TIME = "author", "body", "created_utc"
_FIELDS = Reading((AUTHOR, TIME), BODY)
_GONE = ("", "[deleted]", "[removed]")
_PROGRAMS = ("automoderator", "autotldr", "totesmessenger")  # programs whose names do not end in "bot"
_BEHIND_BOT = "0123456789-_"
# Comments that may come later than their time says: dumps are in the order of ids, which is nearly that of time.
_WAITING = 2**16
_MOST_FILES = 512  # that are open at once, to be merged by time

_Timed = tuple[int, int, int, Record]  # time, number of the file, number of the line


@dataclass(frozen=True)
class Reddit:
    """Comments by their authors, in the order of time, over all files.

    Left out: comments whose author or body is deleted or removed, those of bots (`is_bot`), and quoted lines, which
    another person wrote.
    """

    def holds(self, path: Path) -> bool:
        """A dump often has no suffix but that of packing, as `RC_2017-11.zst`."""
        return format_of(path)[0] in ("", ".json", ".jsonl", ".ndjson") or path.stem.startswith("RC_")

    def records(self, files: list[Path], census: Census) -> Iterator[Record]:
        """The author and the text of each comment that counts.

        Guarantee: comments of one author come in the order of their times; at the same time, in that of files and
        lines. A file that is out of order by more than some thousand comments is refused.
        """
        if len(files) > _MOST_FILES:
            raise SottoError(f"{len(files)} files cannot be merged by time; give at most {_MOST_FILES} of them")
        census.position = _Together()
        with ExitStack() as stack:
            streams = [
                stack.enter_context(closing(_in_order(path, number, census))) for number, path in enumerate(files)
            ]
            # Each file's times do not decrease, and its number comes next: records themselves are never compared.
            for *_, record in heapq.merge(*streams):
                yield record


def is_bot(author: str) -> bool:
    """By the name: AutoModerator, two other well-known programs, and names that end in "bot", in any case.

    Digits, - and _ may come behind it. A person called Talbot is left out, too.
    """
    name = author.lower()
    return name in _PROGRAMS or name.rstrip(_BEHIND_BOT).endswith("bot")


def own_words(body: str) -> str:
    """A body without HTML's names of characters, and without the lines that quote others."""
    kept = (line for line in html.unescape(body).splitlines() if not line.lstrip().startswith(">"))
    return "\n".join(kept).strip()


class _Together(Position):
    """How far several files have been read, that are open at once."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Position] = []

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def add(self) -> Position:
        self.parts.append(Position())
        return self.parts[-1]


def _in_order(path: Path, number: int, census: Census) -> Generator[_Timed, None, None]:
    """The comments of a file by time. A few wait, so that those after them may be older."""
    waiting: list[_Timed] = []
    last = 0
    with closing(_comments(path, number, census)) as comments:
        for timed in comments:
            if timed[0] < last:
                raise SottoError(
                    f"{path}:{timed[2]}: a comment is older than many before it; sort the lines by {TIME} "
                    "(a dump is in this order, more or less)"
                )
            heapq.heappush(waiting, timed)
            if len(waiting) > _WAITING:
                first = heapq.heappop(waiting)
                last = first[0]
                yield first
    while waiting:
        yield heapq.heappop(waiting)


def _comments(path: Path, number: int, census: Census) -> Generator[_Timed, None, None]:
    assert isinstance(census.position, _Together)
    with (
        opened(path, position=census.position.add()) as reader,
        closing(json_rows(path, numbered(reader), _FIELDS)) as rows,
    ):
        for line, row in rows:
            for field in _FIELDS.fields:
                if field not in row:
                    raise SottoError(
                        f"{path}:{line}: no field {field!r}; a dump of comments has {AUTHOR}, {BODY} and {TIME}"
                    )
            found = _comment(row, f"{path}:{line}")
            census.filtered += found is None
            if found is not None:
                yield found[0], number, line, found[1]


def _comment(row: Any, place: str) -> tuple[int, Record] | None:
    """The time and the record of a comment; None where it does not count."""
    author, body = (None if row[field] is None else row[field] for field in (AUTHOR, BODY))
    for field, value in ((AUTHOR, author), (BODY, body)):
        if value is not None and type(value) is not str:
            raise SottoError(f"{place}: {field!r} is {show_value(value)}; it must be a string, or null")
    if author is None or body is None or author in _GONE or body in _GONE or is_bot(author):
        return None
    text = own_words(body)
    return (_time(row[TIME], place), ((author,), text)) if text else None


def _time(value: object, place: str) -> int:
    """Seconds since 1970: a number, or in some dumps a number as text."""
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return int(float(value))
    except (ValueError, OverflowError):
        pass
    raise SottoError(f"{place}: {TIME!r} is not a number; it must be the seconds since 1970")
