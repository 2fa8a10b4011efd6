"""Create a federation, serve a run to its devices, and be one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Unpack

from sottovoce.build import rules
from sottovoce.commands.new_run import Given
from sottovoce.commands.train import Observer, RunResult, Stop, never, resume, train
from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import load_tokenizer
from sottovoce.federation import keys, roster
from sottovoce.federation.device import Device, check_registered, own_secret
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.members import MEMBERS, Members, Membership, load_members
from sottovoce.federation.roster import (
    LIMITS,
    DevicePlace,
    Enrolment,
    FederationSettings,
    Roster,
    check_address,
    is_federation,
)
from sottovoce.federation.rounds import Coordinator
from sottovoce.federation.transport import Serving
from sottovoce.files import locked
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.recipe import Recipe

Notify = Callable[[str], None]


def require_flower() -> None:
    """Say what to install, before anything is made."""
    if find_spec("flwr") is None:
        raise SottoError("`sotto federate` needs Flower: pip install 'sottovoce[federation]'")


def create_federation(
    out: Path, devices: Sequence[tuple[str, int]], settings: FederationSettings, limits: Limits | None = None
) -> Roster:
    """A new federation in a folder: its certificates, its roster, and a folder to carry to each device.

    Args:
        out: the folder to make.
        devices: the name of each device, and how many users it has.
        settings: the vocabulary, the text of a user, and the address of the server.
        limits: of what a device accepts from the server.
    """
    require_flower()
    return roster.create(out, devices, settings, limits or Limits())


def make_device_key(folder: Path) -> Path:
    """Make a device's key on the device. Gives the file with the public half, which is to be sent to the server.

    Args:
        folder: of the device; made if it is not there.
    """
    require_flower()
    return keys.write_own_key(folder)


def enrol(
    federation: Path, name: str, users: int, limits: Limits | None = None, public_key: Path | None = None
) -> Path:
    """Register one more device. Gives the folder to carry to it.

    Args:
        federation: its folder.
        name: of the device.
        users: how many the device has.
        limits: of what it accepts from the server.
        public_key: a file that `make_device_key` made on the device; without it, a key is made here.
    """
    require_flower()
    key = None if public_key is None else keys.read_public_key(public_key)
    with _locked_roster(federation) as found:
        roster = found.enrol(name, users, limits or Limits(), key)
        roster.share_members()
        return roster.bundle(name)


def rekey(federation: Path, name: str, public_key: Path) -> Path:
    """Register another key of a device. Gives the list of members, which every device needs anew.

    Args:
        federation: its folder.
        name: of the device; its users keep their places.
        public_key: a file that `make_device_key` made on the device.
    """
    require_flower()
    key = keys.read_public_key(public_key)
    with _locked_roster(federation) as found:
        found.rekey(name, key).share_members()
    return federation / MEMBERS


def federation_members(folder: Path) -> Members:
    """Who is in a federation, with which keys: at the server as the roster has it, at a device as its own list has it.

    Args:
        folder: of the federation, or of a device.
    """
    require_flower()
    return Roster.open(folder).listed if is_federation(folder) else Members.load(folder)


def renew(federation: Path) -> Path:
    """Make new certificates for a federation. Gives the file that every device needs.

    Args:
        federation: its folder.
    """
    require_flower()
    with _locked_roster(federation) as found, _link_folder(found):
        found.renew()
    return found.keys / keys.AUTHORITY


@contextmanager
def _locked_roster(federation: Path) -> Iterator[Roster]:
    """The roster, for this process to change. Two processes could give one place to two devices."""
    Roster.open(federation)  # refuses a folder that is no federation
    with locked(federation / ".lock", f"{federation} is being changed by another process; try again"):
        yield Roster.open(federation)


def serve_federation(
    recipe: Recipe,
    federation: Path,
    out: Path,
    serving: Serving,
    *,
    observer: Observer | None = None,
    stop: Stop = never,
    **given: Unpack[Given],
) -> RunResult:
    """Train the model of a recipe with the devices of a federation.

    Args:
        recipe: what to train.
        federation: the folder of the federation.
        out: the folder of the new run.
        serving: how long and for how many devices a round waits.
        observer: is called after every round.
        stop: is asked after every round.
        given: as for `train`.
    """
    require_flower()
    found = Roster.open(federation)
    recipe = with_federation(recipe, found)
    with connected(found, serving, stop) as coordinator:
        given["coordinator"] = coordinator
        return train(recipe, out, observer=observer, stop=stop, **given)


def with_federation(recipe: Recipe, found: Roster) -> Recipe:
    """The recipe with a federation as its store. One that these devices cannot train is refused."""
    if not found.members:
        raise SottoError(f"{found.path} has no devices; register some with `sotto federate enrol`")
    recipe = recipe.replace(data={"store": str(found.path)})
    rules.check(rules.device_rules(recipe))
    rules.check(rules.roster_rules(recipe, found.registered.values(), len(found.listed.made_by_server)))
    return recipe


def resume_federation(
    run: Path, serving: Serving, *, observer: Observer | None = None, stop: Stop = never
) -> RunResult:
    """Go on with a run over devices. An interrupted round is asked for again, and paid for again.

    Args:
        run: its folder.
        serving: how long and for how many devices a round waits.
        observer: is called after every round.
        stop: is asked after every round.
    """
    require_flower()
    found = Roster.open(Recipe.of(RunFolder.open(run)).data.store)
    with connected(found, serving, stop) as coordinator:
        return resume(run, observer=observer, stop=stop, coordinator=coordinator)


@contextmanager
def connected(found: Roster, serving: Serving, stop: Stop) -> Iterator[Coordinator]:
    """A coordinator, and its transport while the block lasts."""
    from sottovoce.federation.flower.superlink_server import SuperLinkServer

    if serving.at_least > len(found.members):
        raise SottoError(
            f"--at-least {serving.at_least} is more than the {count_of(len(found.members), 'device')} registered"
        )
    left = keys.days_left(found.keys / keys.SERVER, "make new ones with `sotto federate renew`")
    if left < keys.SOON_DAYS:
        ends = f"the certificate of {found.path} ends in {count_of(left, 'day')}"
        serving.notify(f"{ends}; make another with `sotto federate renew`")
    with _link_folder(found) as folder, SuperLinkServer(found, folder, serving, stop) as transport:
        yield Coordinator(found, transport, serving.seconds)


@contextmanager
def _link_folder(found: Roster) -> Iterator[Path]:
    """The folder of Flower's processes at the server, for this process alone."""
    folder = found.path / "link"
    folder.mkdir(mode=0o700, exist_ok=True)
    busy = f"{found.path} is served by another process; devices follow one server at a time: stop it first"
    with locked(folder / ".lock", busy):
        yield folder


def run_device(
    bundle: Path,
    data: Path | None = None,
    *,
    server: str | None = None,
    stop: Stop = never,
    notify: Notify = lambda text: None,
) -> None:
    """Be a device of a federation, with the users of a store, until it is stopped.

    Args:
        bundle: the folder that was carried to the device.
        data: the store of its users; None where none of them has text. The device then takes part all the same.
        server: the address of the server, if not the one in the bundle.
        stop: is asked while the device waits.
        notify: takes a line about each step.
    """
    require_flower()
    from sottovoce.federation.flower.supernode_client import SuperNodeClient

    place = DevicePlace.load(bundle)
    address = place.server if server is None else check_address(server, "--server")
    with locked(bundle / ".lock", f"{bundle} is in use by another process: a device answers once; stop it first"):
        remedy = f"ask for {keys.AUTHORITY} of the server, which makes another with `sotto federate renew`"
        keys.days_left(bundle / keys.AUTHORITY, remedy)
        device = open_device(bundle, data)
        notify(f"{device.description}; server {address}")
        SuperNodeClient(bundle, address, device.answer, notify).run(stop)


def open_device(bundle: Path, data: Path | None) -> Device:
    """A device from its folder and the store of its users. One that is refused leaves nothing behind."""
    place = DevicePlace.load(bundle)
    enrolment, size = place.enrolment, place.tokens_per_user
    words = load_tokenizer(bundle)
    store = Store.from_users([], words, size, names=[]) if data is None else Store.open(data)
    if not store.people:
        raise SottoError(f"{data} was prepared from plain text: its users are no persons; prepare records with users")
    if words.fingerprint != store.vocabulary.fingerprint or store.tokens_per_user != size:
        file = bundle / words.file_name
        tokens = f"--vocabulary {file} --vocabulary-size {words.size}" if words.is_words else f"--tokenizer {file}"
        raise SottoError(
            f"{store.path} was prepared with other words or another length than the federation's; prepare it with "
            f"{tokens} --tokens-per-user {size}"
        )
    participation = Participation(bundle / "participation.jsonl")
    limits = Limits.load(bundle / LIMITS)
    membership = Membership(_own_key(bundle, enrolment), load_members(bundle, enrolment.federation))
    check_registered(enrolment, store)
    return Device(enrolment, store, own_secret(bundle), participation, limits, membership)


def _own_key(bundle: Path, enrolment: Enrolment) -> Path:
    """The key of the device, which must be the one that it is listed with."""
    key = bundle / keys.NODE_KEY
    if not key.is_file():
        made = "if this device made its own (`sotto federate key`), copy that in; else copy the folder again"
        raise SottoError(f"{bundle} has no {keys.NODE_KEY}; {made}")
    listed = load_members(bundle, enrolment.federation)
    if enrolment.name not in listed:
        raise SottoError(f"{bundle / MEMBERS} does not list {enrolment.name}; copy it again from the server")
    registered, own = listed[enrolment.name].public_key, keys.public_half(key)
    if own != registered:
        shown = f"{keys.fingerprint(own)}, and {enrolment.name} is listed with {keys.fingerprint(registered)}"
        then = f"copy the right {keys.NODE_KEY}, or the newest {MEMBERS}, into the folder"
        raise SottoError(f"the key {key} is {shown}; {then}")
    return key
