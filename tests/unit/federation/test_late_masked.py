"""Late devices under masks: an update is kept without masks, and enters the round that was named, by one vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import jax
import numpy as np
import pytest

from fleets import FEDERATION, InProcess, Seat, make_roster, seated_device, some_of, tiny_recipe
from free import AllFree
from masked_fleets import node_key
from sottovoce.build.assembly import assemble
from sottovoce.federation import device as devices_module
from sottovoce.federation import rounds as rounds_module
from sottovoce.federation.aggregation.masked import Asked
from sottovoce.federation.device import Device
from sottovoce.federation.limits import Participation
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Code, Contribution, Enter, Task, read_answer, read_request, unpack
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import Coordinator
from sottovoce.federation.transport import Exchange
from sottovoce.runs.secrets import Secrets

SHARES = {"clinic": 5, "school": 4, "silo": 4}
NOISED = {"aggregation": "masked", "survivors": 2, "noise": "devices", "staleness": 1, "participations": 20}


class SlowSilo(InProcess):
    """Tasks take the silo until the next round, but for the fourth, which takes a phase or two.

    `killed`: after this round the silo is started again.
    """

    number, killed = 0, 0
    rounds: ClassVar[list[Asked]] = []  # whom each asked
    soon: ClassVar[list[tuple[str, bytes]]] = []

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        if exchange.begins:
            self.number += 1
            if self.number == self.killed + 1:
                self.devices["silo"]._kept = None
        now = {}
        for name, message in exchange.messages.items():
            answer = self.devices[name].answer(message)
            request = read_request(message)
            self.asked.append((self.number, name, request))
            slow = name == "silo" and isinstance(request, Task) and self.number != 4
            if slow:
                self.open[name] = self.number + 1, answer
            elif name == "silo" and isinstance(request, Task):
                self.soon = [(name, answer)]  # while the others are in later phases
            else:
                now[name] = answer
        yield from now.items()
        if not exchange.begins and self.soon:
            yield self.soon.pop()
        for name in [name for name, (number, _) in self.open.items() if number <= self.number]:
            yield name, self.open.pop(name)[1]
        for name in exchange.awaited & set(self.open):
            del self.open[name]


def make_devices(folder, store) -> dict[str, Device]:
    """They do not train: an update tells the device, and the round whose model it had."""
    public = {name: node_key(number)[1] for number, name in enumerate(SHARES)}
    members = {name: KnownMember(users, public[name], BY_DEVICE) for name, users in SHARES.items()}
    devices, first = {}, 0
    for number, (name, users) in enumerate(SHARES.items()):
        seat = Seat(number, Membership(node_key(number)[0], members))
        device = seated_device(folder, store, Enrolment(FEDERATION, name, first, users), seat)

        def train(task, assembly, params, rows, message, of=1000 * (1 + number)) -> Contribution:
            leaves = [np.full(leaf.shape, of + task.round) for leaf in task.leaves]
            return Contribution(message, len(rows), len(rows), np.zeros(1, np.int64), leaves)

        device._train = train
        devices[name], first = device, first + users
    return devices


def any_noise(key: bytes, size: int, std: float) -> np.ndarray:
    """By its key: the noise of devices is compiled, and tested elsewhere."""
    return np.random.default_rng(list(key)).integers(-(2**20), 2**20, size)


def play(folder, store, vocabulary, killed: int = 0):
    """Six rounds, every user in each: the sums, what each device noised, and what the server asked."""
    vectors, real = [], devices_module.with_own_noise

    def watched(vector, mechanism, clip_norms):
        noised = real(vector, mechanism, clip_norms)
        vectors.append((vector, noised))
        return noised

    public = {name: node_key(number)[1] for number, name in enumerate(SHARES)}
    roster = make_roster(folder / "federation", vocabulary, store.tokens_per_user, SHARES, public)
    sections = {"federation": NOISED, "run": {"rounds": 6}, "privacy": {"cohort": 13}}
    assembly = assemble(tiny_recipe(folder, **sections), some_of(store, 0, 13))
    transport = SlowSilo(make_devices(folder / "devices", store))
    transport.killed, transport.rounds = killed, []
    payments = AllFree(lambda number: Secrets.seeded(3).keys(number, "a"))
    mechanism, start = assembly.algorithm.mechanism, assembly.start(assembly.model)
    sums, came, asked = [], [], rounds_module.Asked

    def noted(*args) -> Asked:
        transport.rounds.append(asked(*args))
        return transport.rounds[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices_module, "with_own_noise", watched)
        patch.setattr(devices_module, "skellam", any_noise)
        patch.setattr(rounds_module, "Asked", noted)
        # Devices do not train, so that one assembly serves all.
        patch.setattr(devices_module, "assemble", lambda recipe, store: assembly)
        for _, summed in Coordinator(roster, transport, 1.0).rounds(assembly, "spring", start, payments):
            opened = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed.total)])
            sums.append((summed, opened / mechanism.grid(mechanism.clip_norms(1, None))))
            came.append(list(vectors))
            vectors.clear()
    return sums, came, transport


@pytest.fixture(scope="module")
def played(store, vocabulary, tmp_path_factory):
    return play(tmp_path_factory.mktemp("late"), store, vocabulary)


def test_a_late_device_masks_its_update_for_the_round_that_it_enters(played):
    """With fresh noise. What it misses while the server thinks that it is quick is lost: rounds 1 and 6."""
    sums, came, transport = played
    entered = [number for number, _, request in transport.asked if isinstance(request, Enter)]
    assert entered == [3, 5]
    for number, ((summed, opened), vectors) in enumerate(zip(sums, came, strict=True), 1):
        in_sum = [(vector, noised) for vector, noised in vectors if number in entered or vector[0] < 3000]
        np.testing.assert_array_equal(opened, np.sum([noised for _, noised in in_sum], axis=0))
        trained = {int(vector[0]) for vector, _ in in_sum}
        late = {3000 + number - 1} if number in entered else set()
        assert trained == {1000 + number, 2000 + number} | late, "an update of another round is in the sum"
        assert summed.answers.get(Code.LATE, 0) == int(number in (2, 4))
    noise = [(noised - vector).tobytes() for vectors in came for vector, noised in vectors]
    assert len(noise) == len(set(noise)), "two vectors have the same noise"


def test_the_server_bounds_a_sum_by_all_registered_users_whoever_is_asked(played):
    """A bound that one user moves would tell of them, where a device spoils the sum."""
    rounds = played[2].rounds
    assert {sum(each.registered.values()) for each in rounds} == {9, 13}
    assert {each.users for each in rounds} == {13}


def test_a_late_user_counts_in_the_round_entered_and_no_vector_leaves_twice(played):
    _, _, transport = played
    record = transport.devices["silo"]._participation
    joined = sorted(int(release.split()[1]) for release, rows in record._joined.items() if rows)
    assert joined == [1, 3, 5, 6]
    phases = [(number, name, request.kind) for number, name, request in transport.asked if hasattr(request, "kind")]
    assert len(phases) == len(set(phases))
    # On disk: a device that is started again sends nothing for these rounds.
    assert {int(release.split()[1]) for release in Participation(record.path)._masked} == {3, 5}


@pytest.mark.slow
def test_a_device_that_was_killed_with_an_update_is_out_of_the_round(store, vocabulary, tmp_path, caplog):
    sums, came, _ = play(tmp_path, store, vocabulary, killed=2)
    assert {int(vector[0]) // 1000 for vector, _ in came[2]} == {1, 2}
    assert sums[2][0].answers == {"joined": 2, Code.LOST: 1}
    assert "it was started again" in caplog.text
    assert len(came[4]) == 3, "it does not come back"


@pytest.fixture
def keeping(played, store, tmp_path, monkeypatch):
    """A device that keeps an update, and the task of the round that it is for."""
    monkeypatch.setattr(devices_module, "skellam", any_noise)
    due = next(request for number, name, request in played[2].asked if (number, name) == (2, "silo"))
    device = make_devices(tmp_path, store)["silo"]
    device._assemblies = played[2].devices["silo"]._assemblies
    for _ in range(2):  # asked again: nothing is trained anew
        assert read_answer(device.answer(due.to_bytes())).code == Code.LATE
    return device, replace(due, round=3)


def said(answer: bytes) -> str | None:
    return unpack(answer, 2**10)[0].get("nothing")


@pytest.mark.parametrize(
    "other",
    [
        {"round": 4, "due": 4},
        {"run": "winter"},
        {"clip_norms": np.array([0.2], np.float32)},
        {"recipe": {"run": {"rounds": 9}}},
    ],
    ids=["round", "run", "clip norm", "recipe"],
)
def test_a_kept_update_enters_the_round_that_was_named_for_it_alone(keeping, other, caplog):
    device, task = keeping
    name = device._kept.sums.task
    assert said(device.answer(Enter(name, replace(task, **other).to_bytes()).to_bytes())) == Code.MALFORMED
    assert "in another round than the one that was named" in caplog.text


def test_what_a_device_keeps_is_masked_once(keeping):
    """A second vector of it would be under other masks; and the device adds one contribution to a round."""
    device, task = keeping
    name = device._kept.sums.task
    assert said(device.answer(task.to_bytes())) == Code.TWICE
    first = device.answer(Enter(name, task.to_bytes()).to_bytes())
    assert said(first) is None
    assert device.answer(Enter(name, task.to_bytes()).to_bytes()) == first  # the message once more
    assert said(device.answer(Enter(name, replace(task, attempt="b").to_bytes()).to_bytes())) == Code.LOST


def test_an_update_that_was_not_kept_is_not_made_up(keeping):
    device, task = keeping
    assert said(device.answer(Enter("0" * 32, task.to_bytes()).to_bytes())) == Code.LOST
