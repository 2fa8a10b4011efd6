"""The keys of a run: from the operating system's entropy, not from the experiment's seed.

A key for the rounds up to the next checkpoint lies with the secrets. A checkpoint names it, and the next one another.
So a stretch of rounds that a crash took away draws the same users again, and a stolen file does not reveal earlier
cohorts. The key of a round's noise is read once its sum is complete, used once, and written nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets as os_entropy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save as to_bytes

from sottovoce.files import make_folder, sync_folder, write_aside
from sottovoce.runs.folder import load_arrays
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import Json

_SIZE = 32
_SALT = "salt"


def new_name() -> str:
    """A name for a run: another one for each, also for those of one seed."""
    return os_entropy.token_hex(6)


class RoundKeys(NamedTuple):
    """The keys that a round needs before its sum exists."""

    sampling: bytes
    local: bytes


@dataclass(frozen=True)
class Salt:
    """A secret that stays the same through a run. It blinds values that follow from people's text and are compared
    later.
    """

    salt: bytes

    @staticmethod
    def load(folder: Path) -> Salt:
        if not folder.exists():  # as `Secrets.erase` leaves it
            raise DamagedRun(f"{folder.parent} was released, and its secrets were erased; start another run")
        return Salt(_read(folder / _SALT))

    def __repr__(self) -> str:  # never print a key into a log or a traceback
        return f"{type(self).__name__}()"

    def blind(self, text: str) -> str:
        """A name for a text. Without the salt it reveals nothing."""
        return _derive(self.salt, text)[:16].hex()

    def lasting_key(self, use: str) -> bytes:
        """A key that stays the same through a run."""
        return _derive(self.salt, f"key of {use}")

    def tag(self, contents: bytes) -> str:
        """What is kept to recognise the state of the noise. Without the salt it reveals nothing."""
        return hmac.digest(self.salt, contents, "sha256").hex()


@dataclass(frozen=True, repr=False)
class Secrets(Salt):
    """The keys of the rounds up to the next checkpoint.

    Attributes:
        stretch: from which the keys of these rounds are derived.
        is_seeded: do all keys follow from seed and round? Who knows the seed can then undo the noise.
    """

    stretch: bytes
    is_seeded: bool = False

    @staticmethod
    def fresh() -> Secrets:
        return Secrets(os_entropy.token_bytes(_SIZE), os_entropy.token_bytes(_SIZE))

    @staticmethod
    def seeded(seed: int, context: str = "") -> Secrets:
        """For tests and reproductions: a person who knows the seed can remove the noise.

        The context (recipe, store and start) keeps two seeded runs from sharing noise, which would cancel between them.
        """
        root = hashlib.blake2b(f"seed {seed} {context}".encode(), digest_size=_SIZE, person=b"sottovoce").digest()
        return Secrets(_derive(root, "salt"), _derive(root, "chain"), is_seeded=True)

    def keys(self, round_number: int) -> RoundKeys:
        """The keys of a round, up to its sum."""
        return RoundKeys(*(_derive(self.stretch, f"{use} {round_number}") for use in RoundKeys._fields))

    def noise_key(self, round_number: int) -> bytes:
        """A key for the noise of one round: another one each time, but in a seeded run."""
        return _derive(self.stretch, f"noise {round_number}") if self.is_seeded else os_entropy.token_bytes(_SIZE)

    def next(self) -> Secrets:
        """The keys of the rounds after the next checkpoint."""
        return self if self.is_seeded else replace(self, stretch=os_entropy.token_bytes(_SIZE))

    def save(self, folder: Path, noise: Mapping[str, np.ndarray] | None = None) -> Json:
        """Write the keys, the state of the noise and, once, the salt: for the owner alone.

        Returns:
            What the checkpoint says of these files, whose names no other process gives to its own.
        """
        make_folder(folder, 0o700)
        if not (folder / _SALT).exists():
            write_aside(folder / _SALT, self.salt, private=True)
        name = os_entropy.token_hex(8)
        write_aside(folder / f"{name}.key", self.stretch, private=True)
        if not noise:
            return {"secrets": name}
        contents = to_bytes(dict(noise))
        write_aside(folder / f"{name}.noise", contents, private=True)
        return {"secrets": name, "noise": self.tag(contents)}

    @staticmethod
    def of(folder: Path, checkpoint: Json, *, is_seeded: bool) -> Secrets:
        """The keys that a checkpoint names in its facts."""
        return Secrets(Salt.load(folder).salt, _read(folder / f"{checkpoint['secrets']}.key"), is_seeded)

    @staticmethod
    def are_whole(folder: Path) -> bool:
        """Are they there, with nothing erased?"""
        return (folder / _SALT).exists()

    def read_noise(self, folder: Path, checkpoint: Json) -> dict[str, np.ndarray]:
        """The state of the noise that a checkpoint names."""
        path, then = folder / f"{checkpoint['secrets']}.noise", "put it back, or start another run"
        if not path.exists() or not hmac.compare_digest(self.tag(path.read_bytes()), checkpoint["noise"]):
            raise DamagedRun(f"{path} is not the state of the noise that the checkpoint names; {then}")
        return load_arrays(path, then)

    @staticmethod
    def noise_bytes(folder: Path) -> int:
        """The size of the state of the noise; 0 where rounds have independent noise."""
        return max((path.stat().st_size for path in folder.glob("*.noise")), default=0)

    @staticmethod
    def forget(folder: Path, checkpoint: Json) -> None:
        """Erase the keys and the states of the noise that this checkpoint does not name."""
        for path in [*folder.glob("*.key"), *folder.glob("*.noise")]:
            if path.stem != checkpoint["secrets"]:
                path.unlink()
        sync_folder(folder)

    @staticmethod
    def drop(folder: Path, checkpoint: Json) -> None:
        """Erase the files that a checkpoint names which was not committed."""
        for path in folder.glob(f"{checkpoint['secrets']}.*"):
            path.unlink()
        sync_folder(folder)

    @staticmethod
    def erase(folder: Path) -> None:
        """Erase everything. The salt goes first: without it, none of the others is of use."""
        if folder.exists():
            for path in sorted(folder.iterdir(), key=lambda path: path.name != _SALT):
                path.unlink()
            folder.rmdir()
            sync_folder(folder.parent)


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
