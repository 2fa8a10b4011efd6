"""The keys of sampling and noise: from the operating system's entropy, not from the experiment's seed.

A chain of keys moves forward one link a round by a one-way function. Only the links of the last two checkpoints are
kept, so a stolen file does not reveal earlier cohorts or earlier noise.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets as os_entropy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save as to_bytes

from sottovoce.files import append_synced, make_folder, sync_folder, write_aside
from sottovoce.runs.folder import load_arrays
from sottovoce_evidence.errors import DamagedRun

_SIZE = 32
_SALT = "salt"
_NAME, _TAG = 16, 64  # characters of a release's name, and of the tag of its sum


class RoundKeys(NamedTuple):
    """The keys that a round needs before its sum exists. The key of the noise follows from the sum."""

    sampling: bytes
    local: bytes


@dataclass(frozen=True)
class Secrets:
    """One link of the chain: it gives the keys of `round` and of later rounds, and of no earlier round.

    The salt stays the same through a run. It blinds values derived from people's text that must be compared later.
    """

    round: int
    link: bytes
    salt: bytes

    @staticmethod
    def fresh() -> Secrets:
        return Secrets(1, os_entropy.token_bytes(_SIZE), os_entropy.token_bytes(_SIZE))

    @staticmethod
    def seeded(seed: int, context: str = "") -> Secrets:
        """For tests and reproductions: a person who knows the seed can remove the noise.

        The context (recipe, store and start) keeps two seeded runs from sharing noise, which would cancel between them.
        """
        root = hashlib.blake2b(f"seed {seed} {context}".encode(), digest_size=_SIZE, person=b"sottovoce").digest()
        return Secrets(1, _derive(root, "chain"), _derive(root, "salt"))

    def __repr__(self) -> str:  # never print a link into a log or a traceback
        return f"Secrets(round={self.round})"

    def at(self, round_number: int) -> Secrets:
        """The chain moved forward to a later round."""
        if round_number < self.round:
            raise DamagedRun(f"the secrets of round {round_number} are gone: the kept ones begin at round {self.round}")
        link = self.link
        for _ in range(round_number - self.round):
            link = _derive(link, "next")
        return Secrets(round_number, link, self.salt)

    def keys(self, round_number: int, release: str) -> RoundKeys:
        """The keys of one release of a round. Another release draws another cohort."""
        link = self.at(round_number).link
        return RoundKeys(*(_derive(link, f"{use} {release}") for use in RoundKeys._fields))

    def noise_key(self, round_number: int, release: str, digest: bytes) -> bytes:
        """The key of a release's noise, from the digest of the exact sum: two different sums never share noise."""
        return hmac.digest(self.at(round_number).link, f"noise {release} ".encode() + digest, "sha256")

    def tag(self, release: str, digest: bytes) -> str:
        """What is kept to recognise a sum. Without the salt it reveals nothing."""
        return hmac.digest(self.salt, f"sum {release} ".encode() + digest, "sha256").hex()

    def seal(self, round_number: int, contents: str) -> bytes:
        """What is kept to recognise the checkpoint that this run made after a round."""
        return hmac.digest(self.salt, f"checkpoint {round_number} {contents}".encode(), "sha256")

    def name(self) -> str:
        """A name for the run."""
        return self.blind("name")[:12]

    def blind(self, text: str) -> str:
        """A name for a text. Without the salt it reveals nothing."""
        return _derive(self.salt, text)[:16].hex()

    def lasting_key(self, use: str) -> bytes:
        """A key that stays the same through a run."""
        return _derive(self.salt, f"key of {use}")

    def save(self, folder: Path, seal: bytes, noise: Mapping[str, np.ndarray] | None = None) -> None:
        """Write the link, its checkpoint's seal, the state of the noise and, once, the salt: for the owner alone."""
        make_folder(folder, 0o700)
        if not (folder / _SALT).exists():
            write_aside(folder / _SALT, self.salt, private=True)
        if noise:
            write_aside(_file(folder, self.round, "noise"), to_bytes(dict(noise)), private=True)
        write_aside(_file(folder, self.round, "seal"), seal, private=True)
        write_aside(_file(folder, self.round, "key"), self.link, private=True)

    @staticmethod
    def load(folder: Path, round_number: int) -> Secrets:
        """The link saved for a round."""
        if not folder.exists():  # as `erase` leaves it
            raise DamagedRun(f"{folder.parent} was released, and its secrets were erased; start another run")
        return Secrets(round_number, _read(_file(folder, round_number, "key")), _read(folder / _SALT))

    @staticmethod
    def load_any(folder: Path) -> Secrets:
        """The oldest link that is kept."""
        rounds = sorted(int(path.stem.removeprefix("round-")) for path in folder.glob("round-*.key"))
        return Secrets.load(folder, rounds[0] if rounds else 1)

    @staticmethod
    def are_whole(folder: Path) -> bool:
        """Are they there, with nothing erased?"""
        return (folder / _SALT).exists()

    @staticmethod
    def read_seal(folder: Path, round_number: int) -> bytes:
        """The seal of the checkpoint before a round."""
        return _read(_file(folder, round_number, "seal"))

    @staticmethod
    def read_noise(folder: Path, round_number: int) -> dict[str, np.ndarray]:
        """The state of the noise before a round; empty where rounds have independent noise."""
        path = _file(folder, round_number, "noise")
        return load_arrays(path, "start another run") if path.exists() else {}

    @staticmethod
    def noise_bytes(folder: Path) -> int:
        """The size of the newest state of the noise; 0 where rounds have independent noise."""
        files = sorted(folder.glob("round-*.noise"))
        return files[-1].stat().st_size if files else 0

    @staticmethod
    def forget(folder: Path, kept: int) -> None:
        """Erase all but the newest links, with the seals, tags and noise states of their rounds."""
        for old in sorted(folder.glob("round-*.key"))[:-kept]:
            for suffix in (".seal", ".sums", ".noise"):
                old.with_suffix(suffix).unlink(missing_ok=True)
            old.unlink()

    @staticmethod
    def erase(folder: Path) -> None:
        """Erase everything: links, salt and lease. The salt goes first: without it, none of the others is of use."""
        if folder.exists():
            for path in sorted(folder.iterdir(), key=lambda path: path.name != _SALT):
                path.unlink()
            folder.rmdir()
            sync_folder(folder.parent)


class Sums:
    """For each release its sum's tag, a keyed hash: the same sum is recognised after a crash.

    A plain hash would let a person who guesses a sum confirm it and remove the noise. A damaged tag counts as none.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._tags: dict[str, str] = {}
        for path in sorted(folder.glob("round-*.sums")):
            for line in path.read_text(encoding="latin-1").split("\n"):
                name, _, tag = line.partition(" ")
                if (len(name), len(tag)) == (_NAME, _TAG):
                    self._tags[name] = tag

    def tag_of(self, release: str) -> str | None:
        return self._tags.get(release)

    def keep(self, first_round: int, release: str, tag: str) -> None:
        """Put a tag on disk before returning. It is erased with the link of `first_round`."""
        path = _file(self._folder, first_round, "sums")
        new = not path.exists()
        append_synced(path, f"\n{release} {tag}".encode(), private=True)  # newline first: a torn line spoils no other
        if new:
            sync_folder(self._folder)
        self._tags[release] = tag


def _file(folder: Path, round_number: int, kind: str) -> Path:
    return folder / f"round-{round_number:08d}.{kind}"


def _read(path: Path) -> bytes:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise DamagedRun(
            f"cannot read the secrets {path.name} ({error}); a run cannot go on without them: start another run"
        ) from None
    if len(contents) != _SIZE:
        raise DamagedRun(f"the secrets file {path.name} is damaged; start another run")
    return contents


def _derive(link: bytes, use: str) -> bytes:
    return hashlib.blake2b(use.encode(), key=link, digest_size=_SIZE).digest()
