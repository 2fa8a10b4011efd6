"""The keys of sampling and noise: from the operating system's entropy, apart from the experiment's seed.

The chain moves forward one link a round by a one-way function, and only the last two checkpoints' links are kept, so
a stolen file does not tell what was sampled or added before.
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
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from sottovoce.errors import DamagedRun
from sottovoce.files import sync_folder, write_aside

_SIZE = 32
_SALT = "salt"


class RoundKeys(NamedTuple):
    """What is needed before a round's sum is there. The noise has a key that follows from the sum."""

    sampling: bytes
    local: bytes


@dataclass(frozen=True)
class Secrets:
    """The link of the chain that opens `round` and every later one, and no earlier one.

    The salt stays the same through a run: it blinds what is derived from people's text but must be compared later.
    """

    round: int
    link: bytes
    salt: bytes

    @staticmethod
    def fresh() -> Secrets:
        return Secrets(1, os_entropy.token_bytes(_SIZE), os_entropy.token_bytes(_SIZE))

    @staticmethod
    def seeded(seed: int, context: str = "") -> Secrets:
        """For tests and reproductions: whoever knows the seed can undo the noise.

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
        """The keys of one release of a round: another release draws its cohort anew."""
        link = self.at(round_number).link
        return RoundKeys(*(_derive(link, f"{use} {release}") for use in RoundKeys._fields))

    def noise_key(self, round_number: int, release: str, digest: bytes) -> bytes:
        """The key of a release's noise, from the digest of the exact sum: two sums never share noise.

        As deterministic signatures derive their nonces. Whatever made the sums differ, it need not be known.
        """
        return hmac.digest(self.at(round_number).link, f"noise {release} ".encode() + digest, "sha256")

    def tag(self, release: str, digest: bytes) -> str:
        """What is kept to recognise a sum: it tells nothing to whoever lacks the salt."""
        return hmac.digest(self.salt, f"sum {release} ".encode() + digest, "sha256").hex()

    def seal(self, round_number: int, contents: str) -> bytes:
        """What is kept to recognise the checkpoint that this run made after a round."""
        return hmac.digest(self.salt, f"checkpoint {round_number} {contents}".encode(), "sha256")

    def name(self) -> str:
        """A name for the run."""
        return self.blind("name")[:12]

    def blind(self, text: str) -> str:
        """A name for a text that tells nothing of it to whoever lacks the salt."""
        return _derive(self.salt, text)[:16].hex()

    def lasting_key(self, use: str) -> bytes:
        """A key that stays the same through a run, and is known to whoever has the salt."""
        return _derive(self.salt, f"key of {use}")

    def save(self, folder: Path, seal: bytes, noise: Mapping[str, np.ndarray] | None = None) -> None:
        """Write this link, the salt with the first, the seal of its checkpoint and what the noise remembers.

        All of it is for the owner alone.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / _SALT).exists():
            write_aside(folder / _SALT, self.salt, private=True)
        if noise:
            write_aside(folder / f"round-{self.round:08d}.noise", to_bytes(dict(noise)), private=True)
        write_aside(folder / f"round-{self.round:08d}.seal", seal, private=True)
        write_aside(folder / f"round-{self.round:08d}.key", self.link, private=True)

    @staticmethod
    def read_seal(folder: Path, round_number: int) -> bytes | None:
        """The seal of the checkpoint before a round; version 0.1 kept none."""
        path = folder / f"round-{round_number:08d}.seal"
        return path.read_bytes() if path.exists() else None

    @staticmethod
    def read_noise(folder: Path, round_number: int) -> dict[str, np.ndarray]:
        """What the noise of a round must know of earlier ones; nothing where rounds have independent noise."""
        path = folder / f"round-{round_number:08d}.noise"
        try:
            return load_file(path) if path.exists() else {}
        except (SafetensorError, OSError) as error:
            raise DamagedRun(f"cannot read the secrets {path.name} ({error}); start another run") from None

    @staticmethod
    def forget(folder: Path, kept: int) -> None:
        """Erase all but the newest links, and what lies beside them: those of checkpoints that are still there."""
        for old in sorted(folder.glob("round-*.key"))[:-kept]:
            for beside in (".seal", ".sums", ".noise"):
                old.with_suffix(beside).unlink(missing_ok=True)
            old.unlink()

    @staticmethod
    def erase(folder: Path) -> None:
        """Throw everything away: links, salt, and who holds the run."""
        if folder.exists():
            for path in sorted(folder.iterdir()):
                path.unlink()
            folder.rmdir()
            sync_folder(folder.parent)

    @staticmethod
    def load_any(folder: Path) -> Secrets:
        """The oldest link that is kept."""
        rounds = sorted(int(path.stem.removeprefix("round-")) for path in folder.glob("round-*.key"))
        return Secrets.load(folder, rounds[0] if rounds else 1)

    @staticmethod
    def load(folder: Path, round_number: int) -> Secrets:
        """The link saved for a round."""
        link, salt = (_read_private(folder / name) for name in (f"round-{round_number:08d}.key", _SALT))
        return Secrets(round_number, link, salt)


def _read_private(path: Path) -> bytes:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise DamagedRun(
            f"cannot read the secrets {path.name} ({error}); without them (`sotto release` throws them away) the run "
            f"cannot go on: start another run"
        ) from None
    if len(contents) != _SIZE:
        raise DamagedRun(f"the secrets file {path.name} is damaged; start another run")
    return contents


def _derive(link: bytes, use: str) -> bytes:
    return hashlib.blake2b(use.encode(), key=link, digest_size=_SIZE).digest()
