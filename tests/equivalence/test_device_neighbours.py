"""Neighbour replay across devices: one person of one device is another, and nothing changes for all others.

Who is asked, who takes part, whether the sum opens, and what of every other user is in it. The id of the one person
sorts behind those of the others of their device. Elsewhere it would shift their rows, and with them the coins of
Poisson sampling: these are then others, of the same law.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from fleets import FEDERATION, InProcess, make_roster, tiny_recipe
from free import AllFree
from masked_fleets import node_key
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.demo import demo_vocabulary
from sottovoce.data.store import Store
from sottovoce.federation.device import Device
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Contribution
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import Coordinator
from sottovoce.federation.transport import Exchange
from sottovoce.privacy.estimators import WEIGHT_STEP
from sottovoce.runs.secrets import Secrets

TOKENS, MIN_TOKENS, ROUNDS, S = 20, 5, 8, 0.3
STEPS = 2**20  # of the grid: what one user without training adds at the place of their token


class Person(NamedTuple):
    id: str
    token: int  # their text is this one word: it tells them from all others
    length: int = 15


X, Y = Person("x", 30), Person("y", 31)
OTHERS = {"a": [Person("a", 40)], "b": [Person(f"b{n}", 50 + n) for n in range(4)], "c": [Person("c", 60)]}
PHONES = {f"phone-{number}": [Person(f"phone {number}", 70 + number)] for number in range(3)}
REGISTERED = {**dict.fromkeys(OTHERS, 4), **dict.fromkeys(PHONES, 1), "phone-x": 1}
NEIGHBOURS = {
    "removed": ([X], []),
    "added": ([], [Y]),
    "below min_tokens": ([X], [X._replace(length=MIN_TOKENS - 1)]),
    "other text": ([X], [X._replace(token=32)]),
    "another id": ([X], [Y]),
}
OWN = [30, 31, 32]  # the words of the one who differs


@dataclass(frozen=True)
class Where:
    """The device of the one who differs."""

    device: str
    fails: bool = False  # does its training fail with this person?
    limits: Limits = field(default_factory=Limits)


WHERE = {
    "phone": Where("phone-x"),
    "silo": Where("a"),
    "silo that fails": Where("a", fails=True),
    "silo at its limit": Where("a", limits=Limits(rounds=1)),
}
# Of all users together; a fourth of them is expected in a round: one phone, and all silos are asked.
SAMPLING = {
    "poisson": {},
    "min_separation": {"sampling": "min_separation", "min_separation": 3, "participations": 2},
}


class Played(NamedTuple):
    asked: list[set[str]]  # by round
    sums: list[Any]  # the released sums
    counts: list[np.ndarray]  # how often each word is in the sum
    devices: dict[str, list[list[int]]]  # the words of whom each device trained, by round


def store_of(people: Sequence[Person]) -> Store:
    """As `sotto prepare` makes it: by hashed ids, without those who wrote too little."""
    named = sorted((blake2b(one.id.encode(), digest_size=16).digest(), one) for one in people)
    kept = [(name, one) for name, one in named if one.length >= MIN_TOKENS]
    texts = [[one.token] * one.length for _, one in kept]
    return Store.from_users(texts, demo_vocabulary(), TOKENS, names=[name for name, _ in kept])


@cache
def assembly_of(aggregation: str, sampling: str) -> Assembly:
    sections = {
        "run": {"rounds": ROUNDS},
        "privacy": {"users": sum(REGISTERED.values()), "cohort": 4, "clip_norm": S, **SAMPLING[sampling]},
        "local": {"learning_rate": 20.0},
        "federation": {"survivors": 3} if aggregation == "masked" else {},
    }
    return assemble(tiny_recipe("nowhere", **sections), store_of([X]))


class Watched(InProcess):
    """Keeps whom each round asks first."""

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        before = len(self.asked)
        yield from super().exchange(exchange)
        if not exchange.begins:
            del self.asked[before:]


def play(aggregation: str, sampling: str, where: Where, people: Sequence[Person], trains: bool = False) -> Played:
    """Rounds over devices of which one has these people beside its others."""
    assembly, trained = assembly_of(aggregation, sampling), {name: [] for name in REGISTERED}
    public = {name: node_key(number)[1] for number, name in enumerate(REGISTERED)}
    members = {name: KnownMember(users, public[name], BY_DEVICE) for name, users in REGISTERED.items()}
    devices: dict[str, Device] = {}
    with TemporaryDirectory() as scratch:
        folder, first = Path(scratch), 0
        roster = make_roster(folder / "federation", demo_vocabulary(), TOKENS, REGISTERED, public)
        for number, (name, users) in enumerate(REGISTERED.items()):
            own = [*({**OTHERS, **PHONES}.get(name, [])), *(people if name == where.device else ())]
            device = devices[name] = Device(
                Enrolment(FEDERATION, name, first, users), store_of(own), bytes([number]) * 32,
                Participation(folder / f"{name}.jsonl"), where.limits if name == where.device else Limits(),
                Membership(node_key(number)[0], members),
            )  # fmt: skip
            first += users
            device._assemble = lambda task: assembly
            watch(device, trained[name], where.fails and name == where.device, trains)
        transport = Watched(devices)
        payments = AllFree(lambda number: Secrets.seeded(4).keys(number))
        played = Coordinator(roster, transport, 1.0).rounds(
            assembly, "spring", assembly.start(assembly.model), payments
        )
        sums = [summed for _, summed in played]
    grid = assembly.algorithm.mechanism.grid(assembly.algorithm.mechanism.clip_norms(1, None))
    counts = [np.ravel(jax.tree.leaves(summed.total)[0])[: demo_vocabulary().size] / grid / STEPS for summed in sums]
    return Played(transport.asked, sums, counts, trained)


def watch(device: Device, trained: list[list[int]], fails: bool, trains: bool) -> None:
    """Keep whom a device trains. Without training each of them adds one at the place of their word."""
    real = device._train

    def train(task, assembly, params, rows, name) -> Contribution:
        words = [int(device._store[row][0]) for row in rows.tolist()]
        trained.append(words)
        if fails and set(words) & set(OWN):
            raise MemoryError("a text that is too much for this device")
        if trains:
            return real(task, assembly, params, rows, name)
        leaves = [np.zeros(leaf.shape, np.int64) for leaf in task.leaves]
        np.add.at(leaves[0].reshape(-1), words, STEPS)
        weight = int(len(rows) / WEIGHT_STEP)
        return Contribution(name, len(rows), weight, np.zeros(len(task.clip_norms), np.int64), leaves)

    device._train = train


@cache
def before(aggregation: str, sampling: str, where: str, neighbour: str) -> Played:
    """The run of the first of two neighbours; several pairs share it."""
    return play(aggregation, sampling, WHERE[where], NEIGHBOURS[neighbour][0])


FAST = {
    ("plain", "min_separation", "phone", "removed"),
    ("masked", "min_separation", "silo", "removed"),
    ("masked", "poisson", "silo that fails", "added"),
    ("masked", "min_separation", "silo at its limit", "removed"),
}
CASES = [
    pytest.param(*case, id=", ".join(case), marks=() if case in FAST else pytest.mark.slow)
    for aggregation in ("plain", "masked")
    for sampling in SAMPLING
    for where in WHERE
    for neighbour in NEIGHBOURS
    for case in [(aggregation, sampling, where, neighbour)]
]


@pytest.mark.parametrize(("aggregation", "sampling", "where", "neighbour"), CASES)
def test_one_person_changes_nothing_for_all_others(aggregation, sampling, where, neighbour):
    one = before(aggregation, sampling, where, neighbour)
    other = play(aggregation, sampling, WHERE[where], NEIGHBOURS[neighbour][1])
    assert one.asked == other.asked, "others are asked in other rounds"
    for played in (one, other):
        for asked, summed in zip(played.asked, played.sums, strict=True):
            assert summed.answers["joined"] == len(asked), "a device that is asked does not take part"
    for each, another in zip(one.counts, other.counts, strict=True):
        moved = np.abs(each - another)
        assert moved[OWN].sum() <= 2, "the person is in a round more than once"
        moved[OWN] = 0
        if WHERE[where].fails:  # its others are those of a device that failed: what one person does to their own silo
            moved[[person.token for person in OTHERS[WHERE[where].device]]] = 0
        assert not moved.any(), "another user is in a sum or not because of this one"
    assert sum(counts.sum() for counts in one.counts) > ROUNDS, "hardly anybody was in a round"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["phone", "silo"])
@pytest.mark.parametrize("neighbour", ["removed", "other text", "another id"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_one_person_moves_a_trained_sum_by_no_more_than_their_update(sampling, where, neighbour):
    """In the first round that differs: later ones begin from other models, which were released."""
    one, other = (play("plain", sampling, WHERE[where], people, trains=True) for people in NEIGHBOURS[neighbour])
    for each, another in zip(one.sums, other.sums, strict=True):
        parts = zip(jax.tree.leaves(each.total), jax.tree.leaves(another.total), strict=True)
        moved = np.sqrt(sum(float(np.sum(np.square(a - b))) for a, b in parts))
        if moved > 0:
            break
    assert 0.5 * S < moved <= S * (1 if neighbour == "removed" else 2)
