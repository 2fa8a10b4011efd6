"""Found a federation, serve a run to its devices, and be one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.commands.train import Observer, RunResult, resume, train
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.federation import keys
from sottovoce.federation.device import Device, Enrolment, own_secret
from sottovoce.federation.device_rules import check_scope
from sottovoce.federation.keys import needs_flower
from sottovoce.federation.limits import Limits, Participation, read_json
from sottovoce.federation.roster import DEVICE, LIMITS, Roster, found
from sottovoce.federation.rounds import Coordinator
from sottovoce.files import locked
from sottovoce.recipe import Recipe
from sottovoce.runs.folder import RunFolder

Say = Callable[[str], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Serving:
    """How a server reaches its devices."""

    seconds: float = 120.0  # that a round waits for answers
    at_least: int = 1  # devices that must be here before a round begins
    bind: str | None = None  # the address to listen on, if not the one that devices know
    state: Path | None = None  # a folder in memory for the state of the link, to survive a SuperLink that is killed

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise SottoError(
                f"--seconds {self.seconds:g} must be above 0; it is how long a round waits for its devices"
            )
        if self.at_least < 1:
            raise SottoError(f"--at-least {self.at_least} must be 1 or more; with nobody there, rounds would be noise")


def found_federation(
    out: Path, devices: Sequence[tuple[str, int]], *, vocabulary: Vocabulary, tokens_per_user: int, host: str,
    port: int, held_out: Path | None = None, limits: Limits | None = None,
) -> Roster:  # fmt: skip
    """A new federation in a folder: its certificates, its roster, and a folder to carry to each device."""
    needs_flower()
    return found(
        out, vocabulary, devices, host=host, port=port, tokens_per_user=tokens_per_user, held_out=held_out,
        limits=limits or Limits(),
    )  # fmt: skip


def enrol(federation: Path, name: str, users: int, limits: Limits | None = None) -> Path:
    """Register one more device; the folder to carry to it."""
    needs_flower()
    with _changing(federation) as roster:
        return roster.enrol(name, users, limits or Limits()).bundle(name)


def renew(federation: Path) -> Path:
    """New certificates for a federation; the file that every device needs."""
    needs_flower()
    with _changing(federation) as roster, _serving(roster):
        roster.renew()
    return roster.keys / keys.AUTHORITY


@contextmanager
def _changing(federation: Path) -> Iterator[Roster]:
    """The roster, for this process alone to change: two would give out one place twice, or certificates that ended."""
    Roster.open(federation)  # or say that it is none
    with locked(federation / ".lock", f"{federation} is being changed by another process; try again"):
        yield Roster.open(federation)


def serve(
    recipe: Recipe, federation: Path, out: Path, serving: Serving, *, observer: Observer | None = None,
    stop: Stop = lambda: False, say: Say = lambda text: None,
) -> RunResult:  # fmt: skip
    """Train what a recipe describes with the devices of a federation."""
    needs_flower()
    roster = Roster.open(federation)
    if not roster.members:
        raise SottoError(f"{federation} has no devices; register some with `sotto federate enrol`")
    recipe = recipe.replace(data={"store": str(federation)})
    check_scope(recipe)
    with _reach(roster, serving, stop, say) as coordinator:
        return train(recipe, out, observer=observer, stop=stop, coordinator=coordinator)


def serve_again(
    run: Path, serving: Serving, *, observer: Observer | None = None, stop: Stop = lambda: False,
    say: Say = lambda text: None,
) -> RunResult:  # fmt: skip
    """Go on with a run over devices. The round that was broken off is asked for again, and paid for again."""
    needs_flower()
    roster = Roster.open(Recipe.of(RunFolder.open(run)).data.store)
    with _reach(roster, serving, stop, say) as coordinator:
        return resume(run, observer=observer, stop=stop, coordinator=coordinator)


@contextmanager
def _reach(roster: Roster, serving: Serving, stop: Stop, say: Say) -> Iterator[Coordinator]:
    """A coordinator whose link is up while the block lasts."""
    from sottovoce.federation.flower.superlink_server import Link

    if serving.at_least > len(roster.members):
        raise SottoError(f"--at-least {serving.at_least} is more than the {len(roster.members)} devices registered")
    left = keys.days_left(roster.keys / keys.SERVER, "make new ones with `sotto federate renew`")
    if left < keys.SOON_DAYS:
        say(f"the certificate of {roster.path} ends in {left} days; make another with `sotto federate renew`")
    with _serving(roster) as folder:
        link = Link(
            roster, folder, bind=serving.bind or roster.host, state=serving.state, at_least=serving.at_least, say=say,
            stop=stop,
        )  # fmt: skip
        with link:
            yield Coordinator(roster, link, serving.seconds)


@contextmanager
def _serving(roster: Roster) -> Iterator[Path]:
    """The folder of the link, for this process alone."""
    folder = roster.path / "link"
    folder.mkdir(mode=0o700, exist_ok=True)
    busy = f"{roster.path} is served by another process; devices follow one server at a time: stop it first"
    with locked(folder / ".lock", busy):
        yield folder


def run_device(
    bundle: Path, data: Path, *, server: str | None = None, stop: Stop = lambda: False, say: Say = lambda text: None
) -> None:
    """Be a device of a federation, with the users of a store, until told to stop."""
    needs_flower()
    from sottovoce.federation.flower.supernode_client import Host

    _device_facts(bundle)
    with locked(bundle / ".lock", f"{bundle} is in use by another process: a device answers once; stop it first"):
        device, address = open_device(bundle, data)
        keys.days_left(
            bundle / keys.AUTHORITY,
            f"ask for {keys.AUTHORITY} of the server, which makes another with `sotto federate renew`",
        )
        say(f"{device.description}; server {server or address}")
        Host(bundle, server or address, device, say).run(stop)


def open_device(bundle: Path, data: Path) -> tuple[Device, str]:
    """A device from its folder and the store of its users, and where its server is."""
    facts = _device_facts(bundle)
    enrolled = Enrolment(**{name: facts[name] for name in Enrolment.__dataclass_fields__})
    store = Store.open(data)
    if not store.people:
        raise SottoError(f"{data} was prepared from plain text: its users are no persons; prepare records with users")
    _check_words(store, bundle, facts)
    device = Device(
        enrolled, store, own_secret(bundle), Participation(bundle / "participation.jsonl"),
        Limits.load(bundle / LIMITS),
    )  # fmt: skip
    return device, facts["server"]


def _device_facts(bundle: Path) -> dict[str, Any]:
    if not (bundle / DEVICE).is_file():
        raise SottoError(f"{bundle} is not the folder of a device; it is made by `sotto federate init` or `enrol`")
    facts = read_json(bundle / DEVICE)
    missing = {"federation", "name", "first", "users", "server", "tokens_per_user"} - set(facts)
    if missing:
        raise SottoError(f"{bundle / DEVICE} lacks {', '.join(sorted(missing))}; copy the folder again from the server")
    return facts


def _check_words(store: Store, bundle: Path, facts: dict[str, Any]) -> None:
    words = Vocabulary.load(bundle / "vocabulary.txt")
    size = facts["tokens_per_user"]
    if words.fingerprint != store.vocabulary.fingerprint or store.tokens_per_user != size:
        raise SottoError(
            f"{store.path} was prepared with other words or another length than the federation's; prepare it with "
            f"--vocabulary {bundle / 'vocabulary.txt'} --vocabulary-size {words.size} --tokens-per-user {size}"
        )
