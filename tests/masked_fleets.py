"""Devices of masked rounds without training: each has a vector, and a server plays the phases over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

from sottovoce.federation import keys
from sottovoce.federation.aggregation.masked import Asked, MaskedAggregator
from sottovoce.federation.aggregation.phases import DeviceSum
from sottovoce.federation.masking.context import context_of
from sottovoce.federation.masking.graph import Terms
from sottovoce.federation.masking.messages import Request, read_later
from sottovoce.federation.masking.participant import Participant, Place
from sottovoce.federation.masking.vector import layout_of
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Contribution, Later, Nothing, Refused, Task, digest, read_request
from sottovoce.federation.rounds import aggregate
from sottovoce.federation.transport import Exchange
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import WEIGHT_STEP, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce_evidence.recipe import Federation

LIKE = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
S, ONE = 0.5, round(1 / WEIGHT_STEP)
MECHANISM = Mechanism(Poisson(0.5), FlatClip(S), FixedDenominator(4.0), 1.0)
PHASES = ("join", "share", "mask", "confirm", "unmask")


@cache
def _node_keys() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="node-keys-")


@cache
def node_key(number: int) -> tuple[Path, str]:
    """A key to sign with, and its public half: made once for all tests of a process."""
    folder = Path(_node_keys().name, str(number))
    folder.mkdir()
    return folder / keys.NODE_KEY, keys.write_node_key(folder)


def names_of(count: int) -> list[str]:
    return [f"d{number:02d}" for number in range(count)]


def members_of(count: int, users: int = 3) -> dict[str, KnownMember]:
    return {name: KnownMember(users, node_key(number)[1], BY_DEVICE) for number, name in enumerate(names_of(count))}


def membership(number: int, count: int) -> Membership:
    return Membership(node_key(number)[0], members_of(count))


def some_task(number: int = 1) -> Task:
    norms = MECHANISM.clip_norms(number, MECHANISM.start())
    return Task("1", "f", "v", "spring", number, {}, norms, np.zeros(2, np.uint32), [])


def some_sums(generator: np.random.Generator, users: int = 3) -> Contribution:
    """Sums within the bound: any numbers of a few bits, and the largest that a device may send among them."""
    leaves = [generator.integers(-(2**20), 2**20, leaf.shape) for leaf in jax.tree.leaves(LIKE)]
    return Contribution("", users, users * ONE, np.array([-users]), leaves)


class Stub:
    """A device of one masked round: what `Device` does, without training and without a disk."""

    def __init__(self, place: Place, sums: Contribution):
        self.place, self.sums = place, sums
        self.participant: Participant | None = None
        self.left: list[str] = []  # the lists for which a vector left
        self.refusals: list[str] = []

    def answer(self, message: bytes) -> bytes:
        request = read_request(message)
        try:
            if isinstance(request, Later):
                return self.go_on(read_later(request))
            return self.begin(request, message)
        except Refused as refused:
            self.refusals.append(str(refused))
            return Nothing(refused.code).to_bytes()

    def begin(self, task: Task, message: bytes) -> bytes:
        vector = layout_of(self.sums, Federation()).flatten(self.sums)
        self.participant = Participant(self.place, context_of(task, digest(message)), vector)
        return self.participant.advert().to_bytes()

    def go_on(self, request: Request) -> bytes:
        assert self.participant is not None
        return self.participant.answer(request, self.left.append)


class MaskedFleet:
    """A transport to stubs. `lost` leave before a phase; `spoil` may change what the server or a device says."""

    def __init__(self, count: int, *, survivors: int = 2, colluding: int = 0, seed: int = 0):
        generator, self.terms = np.random.default_rng(seed), Terms(survivors, colluding)
        self.names = names_of(count)
        self.stubs = {
            name: Stub(Place(name, membership(number, count), self.terms), some_sums(generator))
            for number, name in enumerate(self.names)
        }
        self.lost: dict[str, set[str]] = {}  # by phase
        self.ask: Callable[[str, str, bytes], bytes] = lambda phase, name, message: message
        self.say: Callable[[str, str, bytes], bytes | None] = lambda phase, name, answer: answer
        self.view: list[tuple[str, str, bytes]] = []  # all answers that the server saw
        self.asked: list[str] = []

    def here(self) -> set[str]:
        return set(self.stubs)

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        phase = PHASES[len(self.asked)]
        self.asked.append(phase)
        gone = set().union(*(self.lost.get(earlier, set()) for earlier in self.asked))
        for name, message in exchange.messages.items():
            if name in gone:
                continue
            answer = self.say(phase, name, self.stubs[name].answer(self.ask(phase, name, message)))
            if answer is not None:
                assert len(answer) <= exchange.max_answer_bytes
                self.view.append((phase, name, answer))
                yield name, answer

    def aggregator(self, task: Task | None = None) -> MaskedAggregator:
        known = members_of(len(self.names))
        registered = {name: known[name].users for name in self.names}
        public_keys = {name: one.public_key for name, one in known.items()}
        asked = Asked(registered, public_keys, sum(registered.values()))
        federation = Federation(self.terms.survivors, self.terms.colluding)
        return MaskedAggregator(task or some_task(), asked, federation, MECHANISM, LIKE)

    def play(self, task: Task | None = None) -> DeviceSum:
        self.asked = []
        return aggregate(self.aggregator(task), self, "round 1", 1.0)

    def refusals(self) -> list[str]:
        return sorted({line for stub in self.stubs.values() for line in stub.refusals})

    def expected(self, names: set[str]) -> DeviceSum:
        """The plain sum over some devices."""
        grid = MECHANISM.grid(some_task().clip_norms)
        sums = [stub.sums for name, stub in self.stubs.items() if name in names]
        parts = [np.sum([one.leaves[part] for one in sums], axis=0) * grid for part in range(2)]
        total = jax.tree.unflatten(jax.tree.structure(LIKE), parts)
        weight = np.float64(sum(one.weight for one in sums) * WEIGHT_STEP)
        bits = np.sum([one.bits for one in sums], axis=0) * 0.5
        return DeviceSum(total, weight, bits, sum(one.users for one in sums), {})


def same(one: DeviceSum, other: DeviceSum) -> bool:
    """Are two sums equal, to the bit?"""
    leaves = zip(jax.tree.leaves(one.total), jax.tree.leaves(other.total), strict=True)
    equal = all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in leaves)
    return equal and (one.weight, one.users, one.bits.tolist()) == (other.weight, other.users, other.bits.tolist())


def is_zero(one: DeviceSum) -> bool:
    return all(not leaf.any() for leaf in jax.tree.leaves(one.total)) and one.weight == 0 and one.users == 0
