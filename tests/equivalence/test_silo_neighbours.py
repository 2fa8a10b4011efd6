"""Neighbour replay across silos: one person, who is a user of two silos, taken out of both.

What the person moves is at most S, and comes near it: every silo clips to S/m, and the person's text pulls one way.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fleets import FEDERATION, tiny_recipe
from sottovoce.build.assembly import assemble
from sottovoce.data.store import Store
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.federation.device import VERSION, Device
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.messages import Task
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import for_devices
from sottovoce_evidence.accounting import SampledExamples

S, SILOS, LOUD = 0.3, 2, [50] * 20
SHARES = {"north": 2, "south": 2}
EVERYBODY = {
    "run": {"algorithm": "fedsgd"},
    "local": {"learning_rate": 60.0},
    "privacy": {"users": 4, "cohort": 4, "accountant": "pld", "clip_norm": S},
    "federation": {"max_silos": SILOS},
}


@pytest.fixture(scope="module")
def assembly(vocabulary):
    everyone = Store.from_users([[40]] * 4, vocabulary, tokens_per_user=20)
    return assemble(tiny_recipe("nowhere", **EVERYBODY), everyone)


@pytest.fixture
def task(assembly, vocabulary) -> Task:
    mechanism = assembly.algorithm.mechanism
    return Task(
        version=VERSION,
        federation=FEDERATION,
        vocabulary=vocabulary.fingerprint,
        run="spring",
        round=1,
        recipe=for_devices(assembly.recipe).to_dict(),
        clip_norms=mechanism.clip_norms(1, None),
        key=np.array([1, 2], np.uint32),
        leaves=[np.asarray(leaf) for leaf in jax.tree.leaves(assembly.model)],
    )


def added_up(folder, vocabulary, assembly, task: Task, loud: list[int]) -> np.ndarray:
    """The sum of a round in which each silo has the person, whose text is `loud`, and another."""
    folder.mkdir()
    message, mechanism = task.to_bytes(), assembly.algorithm.mechanism
    aggregator = Aggregator(message, SHARES, mechanism, task.clip_norms, assembly.model)
    for number, name in enumerate(SHARES):
        store = Store.from_users([[40 + number] * 9, loud], vocabulary, tokens_per_user=20)
        place, record = Enrolment(FEDERATION, name, 2 * number, 2), Participation(folder / f"{name}.jsonl")
        device = Device(place, store, bytes([number]) * 32, record, Limits(silos=SILOS))
        assert aggregator.take(name, device.answer(message)) == "joined"
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(aggregator.total().total)])


def test_a_person_in_two_silos_moves_the_sum_by_no_more_than_one_user(vocabulary, assembly, task, tmp_path):
    here = added_up(tmp_path / "here", vocabulary, assembly, task, LOUD)
    gone = added_up(tmp_path / "gone", vocabulary, assembly, task, [])
    moved = float(np.linalg.norm(here - gone))
    assert moved <= S, "one person moves the sum by more than the clip norm"
    assert moved > 0.95 * S, "no person comes near what is charged"
    mechanism = assembly.algorithm.mechanism
    assert mechanism.sensitivity(task.clip_norms) * 4 == pytest.approx(S)
    assert mechanism.event(1) == SampledExamples(SILOS * 1.0, 1.0, SILOS)
