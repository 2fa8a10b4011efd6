"""The folder of a federation at its server: registered devices and their users, the vocabulary, and the ledger.

Users keep their place: a coin, a weight and a charge belong to a registered user, connected or not. The folder
takes the place of a store, so every run on these people is charged to its ledger.
"""

from __future__ import annotations

import re
import secrets as os_entropy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from sottovoce.data.rows import RecordBatch, Rows
from sottovoce.data.store import LARGEST_USER, Store, held_out_of, store_facts
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer, save_tokenizer
from sottovoce.federation import keys
from sottovoce.federation.limits import Limits, read_json
from sottovoce.federation.members import BY_DEVICE, BY_SERVER, KnownMember, Members
from sottovoce.files import check_empty, made_aside, make_folder, write_aside
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import pretty

FORMAT = 1
ROSTER, DEVICE, LIMITS = "roster.json", "device.json", "limits.toml"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
MOST_USERS = 10**8  # registered in a federation: the server keeps eight bytes for each


@dataclass(frozen=True)
class Enrolment:
    """The place of a device: its users are rows `first` to `first + users` of the population."""

    federation: str
    name: str
    first: int
    users: int


@dataclass(frozen=True)
class DevicePlace:
    """What the folder of a device says of it: its place, its server, and the length of a user's text."""

    enrolment: Enrolment
    server: str
    tokens_per_user: int

    @staticmethod
    def load(folder: Path) -> DevicePlace:
        """From `device.json`. A file that is not as `enrol` wrote it is refused."""
        path = folder / DEVICE
        if not path.is_file():
            raise SottoError(f"{folder} is not the folder of a device; it is made by `sotto federate init` or `enrol`")
        facts = read_json(path)
        then = "copy the folder again from the server, and keep participation.jsonl and coin.secret of this one"
        kinds = {"federation": str, "name": str, "first": int, "users": int, "server": str, "tokens_per_user": int}
        if missing := kinds.keys() - facts:
            raise SottoError(f"{path} lacks {', '.join(sorted(missing))}; {then}")
        wrong = [name for name, kind in kinds.items() if type(facts[name]) is not kind]
        if wrong or facts["first"] < 0 or facts["users"] < 1 or not _NAME.fullmatch(facts["name"]):
            raise SottoError(f"{path} is damaged ({', '.join(wrong) or 'the place of the device'}); {then}")
        place = Enrolment(facts["federation"], facts["name"], facts["first"], facts["users"])
        return DevicePlace(place, check_address(facts["server"], f"server in {path}"), facts["tokens_per_user"])


def check_address(text: str, name: str) -> str:
    """HOST:PORT of a server, with an address of IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    known = _HOST.fullmatch(plain) and bracketed == (":" in plain)
    if not (known and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16):
        raise SottoError(f"{name} {text!r} must be HOST:PORT, like train.example.org:8443 or [2001:db8::7]:8443")
    return text


@dataclass(frozen=True)
class FederationSettings:
    """The settings that a federation is created with, and keeps."""

    vocabulary: Tokenizer
    tokens_per_user: int
    host: str
    port: int
    held_out: Path | None = None  # a store whose held-out users the server evaluates on

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise SottoError(f"--host {self.host!r} must be a name or an address, like train.example.org or 192.0.2.7")
        if not 0 < self.port < 2**16:
            raise SottoError(f"--port {self.port} must be from 1 to 65535")
        if not 2 <= self.tokens_per_user <= LARGEST_USER:
            raise SottoError(f"--tokens-per-user {self.tokens_per_user} must be in [2, {LARGEST_USER}]")


@dataclass(frozen=True)
class Member:
    """A registered device: its place, its users, and its public key."""

    name: str
    first: int
    users: int
    public_key: str
    made_by: str  # its key: BY_SERVER or BY_DEVICE


@dataclass(frozen=True)
class Roster:
    path: Path
    federation: str
    host: str
    port: int
    tokens_per_user: int
    members: tuple[Member, ...]
    held_out: str | None = None

    @staticmethod
    def open(folder: str | Path) -> Roster:
        folder = Path(folder)
        if not is_federation(folder):
            raise SottoError(f"{folder} is no federation (it has no {ROSTER}); make one with `sotto federate init`")
        facts = read_json(folder / ROSTER)
        try:
            if facts.pop("format") != FORMAT:
                raise SottoError(f"{folder} was made by another version; this one reads rosters of format {FORMAT}")
            members = tuple(Member(**member) for member in facts.pop("members"))
            roster = Roster(folder, members=members, **facts)
            roster._check()
            return roster
        except (KeyError, TypeError, ValueError) as error:
            raise SottoError(f"{folder / ROSTER} is damaged ({error}); restore it from a backup") from None

    def _check(self) -> None:
        """Raise a ValueError where a file was not written by `save`. Two devices at one place would share coins."""
        kinds = {"federation": str, "host": str, "port": int, "tokens_per_user": int}
        wrong = [name for name, kind in kinds.items() if type(getattr(self, name)) is not kind]
        if wrong or not _HOST.fullmatch(self.host) or not 0 < self.port < 2**16:
            raise ValueError(", ".join(wrong) or "the address of the server")
        if self.held_out is not None and type(self.held_out) is not str:
            raise ValueError("held_out")
        place = 0
        for member in self.members:
            texts = type(member.name) is type(member.public_key) is str and member.made_by in (BY_SERVER, BY_DEVICE)
            if not (texts and _NAME.fullmatch(member.name) and type(member.first) is type(member.users) is int):
                raise ValueError("a device")
            if member.first != place or member.users < 1:
                raise ValueError(f"the place of {member.name}")
            keys.fingerprint(member.public_key)
            place += member.users
        if len(self.registered) < len(self.members) or place > MOST_USERS:
            raise ValueError("its devices")

    def save(self) -> None:
        facts = {name: value for name, value in asdict(self).items() if name != "path"}
        write_aside(self.path / ROSTER, pretty({"format": FORMAT, **facts}))

    def share_members(self) -> None:
        """Write the list of members: here, and into the devices' folders that were not moved away."""
        bundles = [self.bundle(member.name) for member in self.members]
        for folder in (self.path, *(folder for folder in bundles if folder.is_dir())):
            self.listed.save(folder)

    @property
    def users(self) -> int:
        return sum(member.users for member in self.members)

    @property
    def registered(self) -> dict[str, int]:
        return {member.name: member.users for member in self.members}

    @property
    def public_keys(self) -> dict[str, str]:
        return {member.name: member.public_key for member in self.members}

    @property
    def listed(self) -> Members:
        """The devices, as each has them on its own disk."""
        devices = {each.name: KnownMember(each.users, each.public_key, each.made_by) for each in self.members}
        return Members(self.federation, devices)

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def server(self) -> str:
        """The address at which devices find the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bundle(self, name: str) -> Path:
        """The folder that is carried to a device."""
        return self.path / "devices" / name

    @cached_property
    def vocabulary(self) -> Tokenizer:
        return load_tokenizer(self.path)

    def as_store(self) -> Store:
        """The registered users as a store without text, which is on the devices."""
        rows = Rows((RecordBatch(np.zeros(0, np.int32), np.zeros(self.users + 1, np.int64)),))
        users = Store(
            self.vocabulary, self.tokens_per_user, rows, path=self.path, named=f"federation {self.federation}"
        )
        return users if self.held_out is None else replace(users, held_out=store_facts(Path(self.held_out))["held_out"])

    def held_out_users(self) -> Store | None:
        """The users that the server measures exactly: those of the store that it was given, unless it is private."""
        if self.held_out is None:
            return None
        if load_tokenizer(find_tokenizer(Path(self.held_out))).fingerprint != self.vocabulary.fingerprint:
            raise SottoError(
                f"{self.held_out} has other words than the federation; prepare it with its {self.vocabulary.file_name}"
            )
        return held_out_of(self.held_out)

    def enrol(self, name: str, users: int, limits: Limits, public_key: str | None = None) -> Roster:
        """The roster with one more device, after the others. The device's folder is made.

        With a `public_key`, made on the device, the folder has no private one.
        """
        if not _NAME.fullmatch(name):
            raise SottoError(f"the device name {name!r} must be small letters, digits and hyphens, 63 at most")
        if name in self.registered:
            raise SottoError(f"{name!r} is registered already; users keep their places, so choose another name")
        if users < 1:
            raise SottoError(f"{name}={users} must be 1 or more; it is the number of users of the device")
        if self.users + users > MOST_USERS:
            most = f"a federation has at most {MOST_USERS:,} users, and {self.users:,} are registered"
            raise SottoError(f"{name}={users} is too many: {most}")
        made_by = BY_SERVER if public_key is None else BY_DEVICE
        if public_key is not None:
            self._check_new(public_key)
        folder = self.bundle(name)
        make_folder(folder, 0o700)
        if public_key is None:
            public_key = keys.write_node_key(folder)
        else:
            (folder / keys.NODE_KEY).unlink(missing_ok=True)  # of an enrolment that was broken off
        for path in (self.keys / keys.AUTHORITY, find_tokenizer(self.path)):
            write_aside(folder / path.name, path.read_bytes())
        limits.save(folder / LIMITS)
        place = asdict(Enrolment(self.federation, name, self.users, users))
        write_aside(folder / DEVICE, pretty({**place, "server": self.server, "tokens_per_user": self.tokens_per_user}))
        # Last: a device that is on the roster has its folder.
        roster = replace(self, members=(*self.members, Member(name, self.users, users, public_key, made_by)))
        roster.save()
        return roster

    def rekey(self, name: str, public_key: str) -> Roster:
        """The roster with another key of a device, made on the device. Its users keep their places."""
        if name not in self.registered:
            raise SottoError(f"{name!r} is not registered; `sotto federate members {self.path}` shows the devices")
        self._check_new(public_key)
        changed = {"public_key": public_key, "made_by": BY_DEVICE}
        members = tuple(replace(each, **changed) if each.name == name else each for each in self.members)
        roster = replace(self, members=members)
        roster.save()
        (self.bundle(name) / keys.NODE_KEY).unlink(missing_ok=True)  # the old one
        return roster

    def _check_new(self, public_key: str) -> None:
        for other, key in self.public_keys.items():
            if key == public_key:
                raise SottoError(f"{other!r} is registered with this key; make one for each device")

    def renew(self) -> None:
        """Make new certificates, also in the devices' folders that were not moved away, and share the members anew."""
        keys.renew_authority(self.keys, self.host)
        self.share_members()
        for folder in (self.bundle(member.name) for member in self.members):
            if folder.is_dir():
                write_aside(folder / keys.AUTHORITY, (self.keys / keys.AUTHORITY).read_bytes())


def create(out: Path, devices: Sequence[tuple[str, int]], settings: FederationSettings, limits: Limits) -> Roster:
    """Make the folder of a new federation: certificates, the roster, and a folder for each of its first devices."""
    if is_federation(out):
        raise SottoError(f"{out} exists and is a federation; add devices to it with `sotto federate enrol`")
    check_empty(out)
    with made_aside(out) as draft:
        save_tokenizer(settings.vocabulary, draft)
        keys.write_authority(draft / "keys", settings.host)
        held_out = str(settings.held_out.resolve()) if settings.held_out is not None else None
        name = os_entropy.token_hex(8)
        roster = Roster(draft, name, settings.host, settings.port, settings.tokens_per_user, (), held_out)
        roster.save()
        for device, users in devices:
            roster = roster.enrol(device, users, limits)
        roster.share_members()
        roster.held_out_users()  # refuses another vocabulary
    return Roster.open(out)


def is_federation(folder: Path) -> bool:
    return (folder / ROSTER).is_file()
