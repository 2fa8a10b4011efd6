"""One home for each person: silos match their people by keyed pseudonyms, and the server sees none of it.

The silos share a secret key, which is carried by hand. Each writes the pseudonyms of its users, HMAC-SHA256 of the name
that the store has for a user, and gives the file to the other silos. Whose home a silo is follows from the files alone,
so all silos find the same. Who holds the key can ask of any id whether it is in a file: the files are for the silos.
"""

from __future__ import annotations

import hmac
import re
import secrets as os_entropy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import make_folder, write_aside

_KEY = re.compile(r"[0-9a-f]{64}\n?")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HEAD = re.compile(r"sottovoce pseudonyms 1 (\S+) ([0-9a-f]{16}) (\d{1,12})")
_PSEUDONYM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class PseudonymKey:
    """The secret that silos share."""

    secret: bytes

    @staticmethod
    def make(path: Path) -> PseudonymKey:
        """A new key, in a file for its owner alone."""
        if path.exists():
            raise SottoError(f"{path} exists; all silos use one key: use it without --new-key, or name another file")
        make_folder(path.parent)
        write_aside(path, os_entropy.token_hex(32).encode() + b"\n", private=True)
        return PseudonymKey.read(path)

    @staticmethod
    def read(path: Path) -> PseudonymKey:
        if not path.is_file():
            raise SottoError(f"there is no key {path}; one silo makes it with --new-key, and carries it to the others")
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise SottoError(f"cannot read the key {path}: {error}") from None
        if not _KEY.fullmatch(text):
            raise SottoError(f"{path} is not a key of pseudonyms (64 hexadecimal digits); copy it from the other silos")
        return PseudonymKey(bytes.fromhex(text.strip()))

    def check(self, split_key: str) -> str:
        """Tells two keys apart, and two split keys: the names in stores depend on them."""
        return self._keyed(b"check " + split_key.encode())[:8].hex()

    def pseudonym(self, name: bytes) -> str:
        return self._keyed(b"user " + name)[:16].hex()

    def _keyed(self, text: bytes) -> bytes:
        return hmac.digest(self.secret, text, sha256)


@dataclass(frozen=True)
class Pseudonyms:
    """The people of one silo, for the other silos. In the file they are sorted: it does not tell the order of rows."""

    silo: str
    check: str  # of the key
    users: frozenset[str]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.silo):
            raise SottoError(f"the silo name {self.silo!r} must be small letters, digits and hyphens, 63 at most")

    @staticmethod
    def of(silo: str, names: Iterable[bytes], key: PseudonymKey, split_key: str) -> Pseudonyms:
        return Pseudonyms(silo, key.check(split_key), frozenset(map(key.pseudonym, names)))

    @staticmethod
    def read(path: Path) -> Pseudonyms:
        if not path.is_file():
            raise SottoError(
                f"there is no file of pseudonyms {path}; its silo writes it by `sotto federate pseudonyms`"
            )
        try:
            head, *users = path.read_text(encoding="ascii").split("\n")[:-1]
            found = _HEAD.fullmatch(head)
        except (OSError, ValueError) as error:
            raise SottoError(f"cannot read the pseudonyms {path}: {error}") from None
        in_order = all(map(_PSEUDONYM.fullmatch, users)) and all(a < b for a, b in pairwise(users))
        if found is None or not in_order or int(found[3]) != len(users):
            raise SottoError(f"{path} is no whole file of pseudonyms; copy it again from its silo")
        return Pseudonyms(found[1], found[2], frozenset(users))

    def to_bytes(self) -> bytes:
        head = f"sottovoce pseudonyms 1 {self.silo} {self.check} {len(self.users)}"
        return "".join(f"{line}\n" for line in (head, *sorted(self.users))).encode("ascii")

    @cached_property
    def digest(self) -> bytes:
        return sha256(self.to_bytes()).digest()


@dataclass(frozen=True)
class Matching:
    """The files of all silos, of which one is our own.

    Guarantee: at every silo that has the same files, each person has the same home, one of the silos that know them.
    """

    own: Pseudonyms
    others: Sequence[Pseudonyms]

    def __post_init__(self) -> None:
        names = [self.own.silo, *(other.silo for other in self.others)]
        for other in self.others:
            if other.check != self.own.check:
                raise SottoError(
                    f"the pseudonyms of {other.silo} were made with another key, or from a store with another "
                    f"--split-key; make them anew with the key and the split key of all silos"
                )
            if names.count(other.silo) > 1:
                raise SottoError(
                    f"two files are those of a silo {other.silo!r}; give the files of the other silos, each silo with "
                    f"a --name of its own"
                )

    def is_home(self, pseudonym: str) -> bool:
        """Is our own silo the home of this person? The choice is by a hash, so that silos share people evenly."""
        silos = [each.silo for each in (self.own, *self.others) if pseudonym in each.users]
        return max(silos, key=lambda silo: sha256(f"home {pseudonym} {silo}".encode()).digest()) == self.own.silo

    @property
    def elsewhere(self) -> int:
        """How many of our people are in another silo too."""
        return len(self.own.users & frozenset().union(*(other.users for other in self.others)))

    @property
    def fingerprint(self) -> str:
        """Of all files: silos that compare it know that they matched the same people."""
        found = sha256(b"".join(sorted(each.digest for each in (self.own, *self.others)))).hexdigest()[:32]
        return " ".join(found[start : start + 4] for start in range(0, 32, 4))
