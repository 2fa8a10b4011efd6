"""Which copy of a run's folder goes on at no further charge.

A store is charged ahead for the rounds of a run. Were the folder copied and both copies taken up, their rounds would
differ and be paid for once. So the store and the folder hold a token that changes whenever the run is taken up, and
again before every round: a copy, also one of a run in flight, is left with an old one as soon as the other goes on.

The token ends in the checksum of the ledger's last line. A copy that was taken file by file while the run went on may
have a ledger of before its token, which lacks rounds that were released: it is a stranger, too.
"""

from __future__ import annotations

import fcntl
import os
import secrets as os_entropy
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sottovoce.files import write_aside

_NAME, _MINE, _NEXT = "holder.name", "holder", "holder.next"
_RANDOM = 32  # characters that a token begins with


class State(NamedTuple):
    """Of the ledger beside the token: the checksum of its last line, and those of all lines."""

    last: str
    known: Container[str]


def take_up(folder: Path, store: Path, ledger: State, pay: Callable[[], None] = lambda: None) -> bool:
    """Make this folder the one that holds its run; True if it was already.

    If not, it pays first, and goes on under a name of its own: the rounds of two copies are two releases.
    """
    with _alone(store):
        rightful = _is_held(folder, store, ledger)
        if not rightful:
            pay()
            if name_of(folder):  # whoever held it pays as well, should it go on: what was restored knows less
                write_aside(_theirs(folder, store), _token(), private=True)
            # Not the name of the run, which two runs of one seed share.
            write_aside(folder / _NAME, _token(), private=True)
        _renew(folder, store, ledger, partial(write_aside, private=True))
    return rightful


def name_of(folder: Path) -> str:
    """What tells this folder from its copies that went on; nothing where nobody is charged."""
    return _read(folder / _NAME)


def hold_on(folder: Path, store: Path, ledger: State) -> bool:
    """The same before a round, of a folder that was taken up: False, and nothing done, if another was since.

    Once a round, so it is quick: after a power cut the folder may be a stranger, and pay again.
    """
    with _alone(store):
        rightful = _is_held(folder, store, ledger)
        if rightful:
            _renew(folder, store, ledger, _write_over)
    return rightful


def _is_held(folder: Path, store: Path, ledger: State) -> bool:
    known = _read(_theirs(folder, store)) if name_of(folder) else ""
    if known == "" or known not in (_read(folder / _MINE), _read(folder / _NEXT)):
        return False
    line = known[_RANDOM:]
    return line in ledger.known if line else True  # tokens of version 0.1 name no line


def _renew(folder: Path, store: Path, ledger: State, write: Callable[[Path, bytes], None]) -> None:
    """The folder knows its next token before the store does: a crash in between does not make it a stranger."""
    token = _token() + ledger.last.encode()
    for path in (folder / _NEXT, _theirs(folder, store), folder / _MINE):
        write(path, token)


def _token() -> bytes:
    return os_entropy.token_hex(_RANDOM // 2).encode()


def _write_over(path: Path, token: bytes) -> None:
    """In place, a token of the same length by one call, and left to the system to bring to disk."""
    with open(path, "r+b", buffering=0) as file:
        file.write(token)


def _theirs(folder: Path, store: Path) -> Path:
    return store / "holders" / name_of(folder)


@contextmanager
def _alone(store: Path) -> Generator[None, None, None]:
    """Two that are taken up at once come one after the other."""
    folder = store / "holders"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""
