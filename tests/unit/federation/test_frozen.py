"""The frozen part of a model across devices: sent once, kept by its hash, the same for all."""

from __future__ import annotations

import os
from dataclasses import replace

import jax
import numpy as np
import pytest

from fleets import FEDERATION, InProcess, make_device, make_roster, tiny_recipe
from free import AllFree
from sottovoce.build.assembly import assemble
from sottovoce.federation import device as devices
from sottovoce.federation import frozen
from sottovoce.federation.frozen import FrozenParts, check_size, frozen_part
from sottovoce.federation.limits import Limits
from sottovoce.federation.messages import Code, Contribution, FrozenPart, Nothing, Refused, Task, read_answer
from sottovoce.federation.rounds import Coordinator, for_devices
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import SottoError

# Another seed than the one of devices: what a device builds by itself is not what the server has.
ADAPTED = {"model": {"adapter_rank": 2}, "run": {"seed": 5}}
ARRAYS = {"base.table": np.arange(6, dtype=np.float32).reshape(2, 3), "base.order": np.arange(4)}
SHARES = {"phone": 1, "silo": 12}


@pytest.fixture(scope="module")
def assembly(store):
    return assemble(tiny_recipe("nowhere", **ADAPTED), store)


@pytest.fixture(scope="module")
def part(assembly) -> FrozenPart:
    return frozen_part(FEDERATION, assembly.frozen_arrays)


@pytest.fixture(scope="module")
def task(assembly, part, vocabulary) -> Task:
    return Task(
        version=devices.VERSION,
        federation=FEDERATION,
        vocabulary=vocabulary.fingerprint,
        run="spring",
        round=1,
        recipe=for_devices(assembly.recipe).to_dict(),
        clip_norms=np.array([0.3], np.float32),
        key=np.array([1, 2], np.uint32),
        leaves=[np.asarray(leaf) for leaf in jax.tree.leaves(assembly.params)],
        frozen=part.name,
    )


def sent(device, message: Task | FrozenPart) -> Contribution | Nothing:
    return read_answer(device.answer(message.to_bytes()))


def changed(part: FrozenPart) -> FrozenPart:
    """Other weights under the hash of these."""
    return replace(part, arrays={name: array + 1 for name, array in part.arrays.items()})


@pytest.mark.slow
def test_a_device_gets_the_part_before_anybody_is_drawn_and_then_joins(task, part, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13)
    assert sent(device, task) == Nothing(Code.FROZEN)
    assert not (tmp_path / "silo.jsonl").exists()
    assert sent(device, part) == Nothing(Code.KEPT)
    first = sent(device, task)
    assert isinstance(first, Contribution)
    # After a restart it is still there.
    again = sent(make_device(tmp_path, store, "silo", 0, 13), task)
    assert [leaf.tolist() for leaf in again.leaves] == [leaf.tolist() for leaf in first.leaves]
    assert part.name in (tmp_path / "silo.jsonl").read_text()


def test_a_device_trains_beside_the_weights_of_the_server(task, part, store, tmp_path):
    """Other weights, or those that it could build by itself, under the same hash: they are not taken."""
    device = make_device(tmp_path, store, "silo", 0, 13)
    sent(device, task)
    assert sent(device, changed(part)) == Nothing(Code.MALFORMED)
    assert sent(device, task) == Nothing(Code.FROZEN)
    other = frozen_part(FEDERATION, changed(part).arrays)
    assert sent(device, other) == Nothing(Code.STRANGER)  # nobody asked for it
    assert sent(device, replace(part, federation="another")) == Nothing(Code.STRANGER)
    sent(device, part)
    right = sent(device, task)
    # A server that names the other weights gets another update: they make a difference.
    asked, another = replace(task, run="summer", frozen=other.name), make_device(tmp_path / "b", store, "silo", 0, 13)
    sent(another, asked)
    sent(another, other)
    wrong = sent(another, asked)
    assert right.leaves[0].shape == wrong.leaves[0].shape
    assert any(not np.array_equal(*pair) for pair in zip(right.leaves, wrong.leaves, strict=True))


def test_a_run_keeps_the_part_that_it_began_with(task, part, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13)
    other = frozen_part(FEDERATION, changed(part).arrays)
    for message in (task, part, task):
        sent(device, message)
    later = replace(task, round=2, frozen=other.name)
    sent(device, later)
    sent(device, other)
    assert sent(device, later) == Nothing(Code.LIMITS)
    assert sent(make_device(tmp_path, store, "silo", 0, 13), later) == Nothing(Code.LIMITS)  # also after a restart
    assert isinstance(sent(device, replace(task, round=2)), Contribution | Nothing)


def test_a_part_that_is_missing_surplus_or_too_large_is_refused(task, part, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13, limits=Limits(frozen_parameters=10))
    assert sent(device, task) == Nothing(Code.LIMITS)
    device = make_device(tmp_path, store, "silo", 0, 13)
    assert sent(device, replace(task, frozen="")) == Nothing(Code.MALFORMED)
    assert sent(device, replace(task, frozen="../../secret")) == Nothing(Code.MALFORMED)
    few = frozen_part(FEDERATION, dict(list(part.arrays.items())[1:]))
    asked = replace(task, frozen=few.name)
    assert sent(device, asked) == Nothing(Code.FROZEN)
    assert sent(device, few) == Nothing(Code.KEPT)
    assert sent(device, asked) == Nothing(Code.MALFORMED)  # of another model


def test_parts_are_kept_by_their_hash_and_only_the_last_two(tmp_path):
    parts = FrozenParts(tmp_path / "frozen")
    made = [frozen_part("f", {"a": np.full(3, number, np.float32)}) for number in range(3)]
    for number, part in enumerate(made):
        parts.keep(part)
        path = tmp_path / "frozen" / f"{part.name}.safetensors"
        assert path.stat().st_mode & 0o777 == 0o600
        os.utime(path, (number, number))
    assert parts.load(made[0].name) is None
    assert parts.load(made[2].name)["a"].tolist() == [2, 2, 2]
    path.write_bytes((tmp_path / "frozen" / f"{made[1].name}.safetensors").read_bytes())
    assert parts.load(made[2].name) is None  # damaged: it is asked for again
    path.write_bytes(b"\0" * 20)
    assert parts.load(made[2].name) is None
    with pytest.raises(Refused):
        parts.load("x" * 64)


def fleet(folder, store, vocabulary, assembly):
    roster = make_roster(folder / "federation", vocabulary, store.tokens_per_user, SHARES)
    made = {
        "phone": make_device(folder / "phone", store, "phone", 0, 1),
        "silo": make_device(folder / "silo", store, "silo", 1, 12),
    }
    return roster, made


def test_the_part_travels_once_and_later_tasks_carry_parameters_alone(store, vocabulary, assembly, part, tmp_path):
    roster, made = fleet(tmp_path, store, vocabulary, assembly)
    transport = InProcess(made)
    played = Coordinator(roster, transport, 1.0).rounds(
        assembly, "spring", assembly.start(assembly.model), AllFree(lambda number: Secrets.seeded(3).keys(number))
    )
    found = [summed for _, summed in played]
    size = len(part.to_bytes())
    assert [summed.diagnostics().get("frozen_bytes", 0) for summed in found] == [2 * size, 0, 0]
    # In the first round: the task, the part, the task again.
    assert [len(asked) for asked in transport.asked] == [2, 2, 2, 2, 2]
    assert all(set(summed.answers) <= {"joined", "nobody"} for summed in found)
    assert sum(summed.users for summed in found) > 5
    weights = b"".join(np.asarray(array).tobytes() for array in assembly.frozen_arrays.values() if array.size > 20)
    tasks = [message for message in transport.tasks if message != part.to_bytes()]
    assert all(weights[:64] not in message for message in tasks)


def test_a_device_that_always_lacks_it_is_asked_twice_and_adds_nothing(store, vocabulary, assembly, tmp_path):
    roster, made = fleet(tmp_path, store, vocabulary, assembly)
    lacks = lambda name, answer: Nothing(Code.FROZEN).to_bytes() if name == "phone" else answer  # noqa: E731
    transport = InProcess(made, lacks)
    keys = AllFree(lambda number: Secrets.seeded(3).keys(number))
    state = assembly.start(assembly.model)
    _, summed = next(Coordinator(roster, transport, 1.0).rounds(assembly, "spring", state, keys))
    assert summed.answers["frozen"] == 1
    assert [sorted(asked) for asked in transport.asked] == [["phone", "silo"], ["phone", "silo"], ["silo"]]


def test_a_part_larger_than_a_message_is_refused_before_anything_is_made(monkeypatch):
    check_size(ARRAYS)
    monkeypatch.setattr(frozen, "MAX_BYTES", 2**20 + 10)
    with pytest.raises(SottoError, match="the frozen part of the model has 56 bytes"):
        check_size(ARRAYS)
