"""The keys of sampling and noise: from the operating system's entropy, apart from the experiment's seed.

The chain moves forward one link a round by a one-way function, and only the last two checkpoints' links are kept, so
a stolen file does not tell what was sampled or added before.
"""

from __future__ import annotations

import hashlib
import os
import secrets as os_entropy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sottovoce.errors import DamagedRun

_SIZE = 32


class RoundKeys(NamedTuple):
    sampling: bytes
    noise: bytes
    local: bytes


@dataclass(frozen=True)
class Secrets:
    """The link of the chain that opens `round` and every later one, and no earlier one."""

    round: int
    link: bytes

    @staticmethod
    def fresh() -> Secrets:
        return Secrets(1, os_entropy.token_bytes(_SIZE))

    @staticmethod
    def seeded(seed: int) -> Secrets:
        """For tests and reproductions: whoever knows the seed can undo the noise."""
        return Secrets(1, hashlib.blake2b(f"seed {seed}".encode(), digest_size=_SIZE, person=b"sottovoce").digest())

    def __repr__(self) -> str:  # never print a link into a log or a traceback
        return f"Secrets(round={self.round})"

    def at(self, round_number: int) -> Secrets:
        """The chain moved forward to a later round."""
        if round_number < self.round:
            raise DamagedRun(f"the secrets of round {round_number} are gone: the kept ones begin at round {self.round}")
        link = self.link
        for _ in range(round_number - self.round):
            link = _derive(link, "next")
        return Secrets(round_number, link)

    def keys(self, round_number: int, attempt: int) -> RoundKeys:
        """The keys of one round. Every attempt at a round has keys of its own: no noise is ever used twice."""
        link = self.at(round_number).link
        return RoundKeys(*(_derive(link, f"{use} attempt {attempt}") for use in RoundKeys._fields))

    def name(self) -> str:
        """A name for the run that tells nothing of the keys."""
        return _derive(self.link, "name")[:6].hex()

    def save(self, folder: Path) -> None:
        """Write this link for its owner alone."""
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"round-{self.round:08d}.key"
        partial = path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.link)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    @staticmethod
    def forget(folder: Path, kept: int) -> None:
        """Erase all but the newest links: those of checkpoints that are still there."""
        for old in sorted(folder.glob("round-*.key"))[:-kept]:
            old.unlink()

    @staticmethod
    def load(folder: Path, round_number: int) -> Secrets:
        """The link saved for a round."""
        path = folder / f"round-{round_number:08d}.key"
        try:
            link = path.read_bytes()
        except OSError as error:
            raise DamagedRun(
                f"cannot read the secrets of round {round_number} ({error}); without them the run cannot go on: "
                f"start another run"
            ) from None
        if len(link) != _SIZE:
            raise DamagedRun(f"the secrets file {path.name} is damaged; start another run")
        return Secrets(round_number, link)


def _derive(link: bytes, use: str) -> bytes:
    return hashlib.blake2b(use.encode(), key=link, digest_size=_SIZE).digest()
