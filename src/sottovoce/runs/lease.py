"""A lease on a run: which copy of its folder goes on at no further charge.

A store is charged ahead for the rounds of a run. If the folder were copied and both copies went on, their rounds would
differ and be paid for once. So store and folder hold a fencing token. It changes whenever the run is resumed, and again
before every round. A copy, also one of a run in flight, is left with an old token as soon as the other goes on.

The token ends in the checksum of the ledger's last line. A copy that was taken file by file while the run went on may
have a ledger that is older than its token and lacks rounds that were released. Such a copy does not hold the lease.
"""

from __future__ import annotations

import fcntl
import os
import secrets as os_entropy
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sottovoce.files import write_aside

_NAME, _MINE, _NEXT = "holder.name", "holder", "holder.next"
_RANDOM = 32  # characters that a token begins with


class LedgerState(NamedTuple):
    """The checksum of a ledger's last line, and those of all lines."""

    last: str
    known: Container[str]


@dataclass(frozen=True)
class Lease:
    """The token of one copy of a run's folder, and the store's record of who holds the run."""

    folder: Path  # the secrets of the run
    store: Path

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder.parent

    @property
    def name(self) -> str:
        """What tells this folder from its copies that went on; empty where nothing is charged."""
        return _read(self.folder / _NAME)

    def acquire(self, ledger: LedgerState, pay: Callable[[], None] = lambda: None) -> bool:
        """Make this folder the one that holds its run; True if it did already.

        If not, it pays first, and goes on under a name of its own: the rounds of two copies are two releases.
        """
        with self._alone():
            held = self._is_held(ledger)
            if not held:
                pay()
                if self.name:  # the copy that held it pays as well, should it go on: what was restored knows less
                    write_aside(self._at_store, _token(), private=True)
                # Not the name of the run, which two runs of one seed share.
                write_aside(self.folder / _NAME, _token(), private=True)
            self._write(ledger, partial(write_aside, private=True))
        return held

    def renew(self, ledger: LedgerState) -> bool:
        """Before a round, by a folder that acquired the lease: False, and nothing done, if another copy did since.

        This happens once a round, so nothing is forced to disk: after a power cut the folder may have lost the lease,
        and pay again.
        """
        with self._alone():
            held = self._is_held(ledger)
            if held:
                self._write(ledger, _write_over)
        return held

    @property
    def _at_store(self) -> Path:
        return self.store / "holders" / self.name

    def _is_held(self, ledger: LedgerState) -> bool:
        known = _read(self._at_store) if self.name else ""
        if known == "" or known not in (_read(self.folder / _MINE), _read(self.folder / _NEXT)):
            return False
        line = known[_RANDOM:]
        return line in ledger.known if line else True  # tokens of version 0.1 name no line

    def _write(self, ledger: LedgerState, write: Callable[[Path, bytes], None]) -> None:
        """The folder knows its next token before the store does: a crash in between does not lose the lease."""
        token = _token() + ledger.last.encode()
        for path in (self.folder / _NEXT, self._at_store, self.folder / _MINE):
            write(path, token)

    @contextmanager
    def _alone(self) -> Generator[None, None, None]:
        """Two copies that acquire the lease at once come one after the other."""
        folder = self.store / "holders"
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _token() -> bytes:
    return os_entropy.token_hex(_RANDOM // 2).encode()


def _write_over(path: Path, token: bytes) -> None:
    """In place, a token of the same length by one call; the system brings it to disk."""
    with open(path, "r+b", buffering=0) as file:
        file.write(token)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""
