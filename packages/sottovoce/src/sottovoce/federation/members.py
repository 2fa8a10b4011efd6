"""Who is in a federation, as each device has it on its own disk: names, users, and the keys that they sign with.

Under masked sums a device checks the others by this list, never by keys that the server sends. The server wrote the
list, so the owners of devices compare its fingerprint by another way than the server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sottovoce.federation import keys
from sottovoce.federation.limits import read_json
from sottovoce.files import write_aside
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Json, pretty

MEMBERS = "members.json"
FORMAT = 1
BY_SERVER, BY_DEVICE = "server", "device"  # who made a key


@dataclass(frozen=True)
class KnownMember:
    """A device on the list."""

    users: int
    public_key: str  # as OpenSSH writes it, without a comment
    made_by: str

    def __post_init__(self) -> None:
        known = type(self.users) is int and self.users > 0 and self.made_by in (BY_SERVER, BY_DEVICE)
        if not (known and isinstance(self.public_key, str)):
            raise ValueError(f"users {self.users!r}, key {self.public_key!r}, made by {self.made_by!r}")

    @cached_property
    def pem(self) -> bytes:
        return keys.public_key_pem(self.public_key)


@dataclass(frozen=True)
class Members:
    """The devices of a federation.

    Guarantee: two lists have the same fingerprint only if federation, names, users, keys and makers are the same.
    """

    federation: str
    devices: Mapping[str, KnownMember]

    @staticmethod
    def load(folder: Path) -> Members:
        """The list in the folder of a device or a federation."""
        path = folder / MEMBERS
        then = f"copy {MEMBERS} again from the folder of the federation at the server"
        if not path.is_file():
            raise SottoError(f"{folder} has no {MEMBERS}; {then}")
        facts = read_json(path)
        if facts.get("format") != FORMAT:
            raise SottoError(f"{path} is of another version; this one reads lists of format {FORMAT}")
        try:
            devices = {str(name): KnownMember(**device) for name, device in facts["members"].items()}
            for device in devices.values():
                keys.fingerprint(device.public_key)
            if len({device.public_key for device in devices.values()}) < len(devices):
                raise ValueError("two devices have the same key")
            return Members(_text(facts["federation"]), devices)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SottoError(f"{path} is damaged ({type(error).__name__}: {error}); {then}") from None

    def save(self, folder: Path) -> None:
        write_aside(folder / MEMBERS, self._contents())

    @property
    def public_keys(self) -> dict[str, str]:
        return {name: device.public_key for name, device in self.devices.items()}

    @property
    def made_by_server(self) -> list[str]:
        """Devices whose key the server made, and so could sign with."""
        return [name for name, device in self.devices.items() if device.made_by == BY_SERVER]

    @property
    def fingerprint(self) -> str:
        """Of the whole list, in the form of a key's."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self._contents()).digest()).decode().rstrip("=")

    def to_json(self) -> Json:
        """With fingerprints, for people."""
        devices: dict[str, Any] = {
            name: {**asdict(device), "fingerprint": keys.fingerprint(device.public_key)}
            for name, device in self.devices.items()
        }
        return {"federation": self.federation, "fingerprint": self.fingerprint, "members": devices}

    def _contents(self) -> bytes:
        devices = {name: asdict(self.devices[name]) for name in sorted(self.devices)}
        return pretty({"format": FORMAT, "federation": self.federation, "members": devices})


@dataclass(frozen=True)
class Membership:
    """The key that a device signs with, and the other devices as it knows them."""

    key: Path
    members: Mapping[str, KnownMember] = field(default_factory=dict)

    def made_by_server(self, names: Iterable[str]) -> list[str]:
        """Those of the devices whose key the server made: it can sign for them, so they count as colluding."""
        return [name for name in names if self.members[name].made_by == BY_SERVER]

    def sign(self, claim: bytes) -> bytes:
        return keys.sign(self.key, claim)

    def has_signed(self, name: str, signature: bytes, claim: bytes) -> bool:
        """Is it a signature by the key that this device knows of the other?"""
        return name in self.members and keys.is_signed_by(self.members[name].pem, signature, claim)


def load_members(folder: Path, federation: str) -> Mapping[str, KnownMember]:
    """Those in a device's folder, which must be of its federation."""
    found = Members.load(folder)
    if found.federation != federation:
        raise SottoError(f"{folder / MEMBERS} is of another federation; copy that of {federation} from its server")
    return found.devices


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return value
