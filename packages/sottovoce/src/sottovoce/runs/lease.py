"""A lease on a run: which copy of its folder may go on at no further charge.

A store is charged ahead for the rounds of a run. If a folder is copied and both copies go on, their rounds differ and
would be paid for once. So store and folder hold a fencing token, which changes when the run is resumed and before every
round. As soon as one copy goes on, the other has an old token.

The token ends in the checksum of the ledger's last line. A copy made during training may have a ledger that is older
than its token and lacks released rounds. Such a copy does not hold the lease.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets as os_entropy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sottovoce.files import make_folder, write_aside
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.ledger import HOLDERS

_NAME, _MINE, _NEXT = "holder.name", "holder", "holder.next"
_RANDOM = 32  # characters that a token begins with
_TOKEN = re.compile(rb"[0-9a-f]{32,}")


@dataclass(frozen=True)
class Lease:
    """The token of one copy of a run's folder, and the token in the store."""

    folder: Path  # the secrets of the run
    store: Path

    @property
    def run(self) -> Path:
        return self.folder.parent

    @property
    def name(self) -> str:
        """A name of this folder that its copies do not keep when they go on; empty where nothing is charged."""
        return _read(self.folder / _NAME)

    def announce(self) -> None:
        """Give the folder of a run that is being made its name: by it one that nobody paid for yet is known."""
        write_aside(self.folder / _NAME, _token(), private=True)

    def begin(self, ledger: Chain, pay: Callable[[], None]) -> bool:
        """Pay for a run that never began, and hold its lease; False if it began, here or in a copy of the folder.

        One that was killed meanwhile begins again: until the store has the token, no other folder holds the lease.
        """
        with self._alone():
            new = bool(self.name) and not self._at_store.exists() and not (self.folder / _MINE).exists()
            if new:
                pay()
                self._write(ledger, partial(write_aside, private=True))
        return new

    def acquire(self, ledger: Chain, pay: Callable[[], None] = lambda: None) -> bool:
        """Make this folder hold the lease; True if it did already.

        If not, it pays first, and gets a new name: the rounds of two copies are two releases.
        """
        with self._alone():
            held = self._is_held(ledger)
            if not held:
                pay()
                if self.name:  # the copy that held the lease must pay too if it goes on
                    write_aside(self._at_store, _token(), private=True)
                # Random, not the name of the run: two runs of one seed share that.
                write_aside(self.folder / _NAME, _token(), private=True)
            self._write(ledger, partial(write_aside, private=True))
        return held

    def renew(self, ledger: Chain) -> bool:
        """Renew the lease before a round; False if another copy acquired it since.

        The files are not flushed to disk: after a power cut the folder may have lost the lease, and pay again.
        """
        with self._alone():
            held = self._is_held(ledger)
            if held:
                self._write(ledger, _write_over)
        return held

    @property
    def _at_store(self) -> Path:
        return self.store / HOLDERS / self.name

    def _is_held(self, ledger: Chain) -> bool:
        known = _read(self._at_store) if self.name else ""
        mine = known != "" and known in (_read(self.folder / _MINE), _read(self.folder / _NEXT))
        return mine and known[_RANDOM:] in ledger.checks

    def _write(self, ledger: Chain, write: Callable[[Path, bytes], None]) -> None:
        """The folder gets the next token before the store does, so a crash in between does not lose the lease."""
        token = _token() + ledger.last_check.encode()
        for path in (self.folder / _NEXT, self._at_store, self.folder / _MINE):
            write(path, token)

    @contextmanager
    def _alone(self) -> Generator[None, None, None]:
        """One copy at a time."""
        folder = self.store / HOLDERS
        make_folder(folder, 0o700)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _token() -> bytes:
    return os_entropy.token_hex(_RANDOM // 2).encode()


def _write_over(path: Path, token: bytes) -> None:
    """One write in place: the new token has the length of the old."""
    with open(path, "r+b", buffering=0) as file:
        file.write(token)


def _read(path: Path) -> str:
    """A token; nothing where there is none, or a damaged one. Without its token a copy does not hold the lease."""
    found = path.read_bytes() if path.exists() else b""
    return found.decode() if _TOKEN.fullmatch(found) else ""
