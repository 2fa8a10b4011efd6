"""Neighbour replay across silos: one person, who is a user of two silos, taken out of both.

What the person moves is at most S, and comes near it: every silo clips to S/m, and the person's text pulls one way.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fleets import FEDERATION, InProcess, make_roster, tiny_recipe
from free import AllFree
from sottovoce.accounting import SampledSilos
from sottovoce.build.assembly import assemble
from sottovoce.data.store import Store
from sottovoce.federation.device import Device
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import Coordinator
from sottovoce.runs.secrets import Secrets

S, SILOS, LOUD = 0.3, 2, [50] * 40
SHARES = {"north": 3, "south": 3}
EVERYBODY = {
    "local": {"learning_rate": 60.0},
    "privacy": {"users": 6, "cohort": 6, "accountant": "pld", "clip_norm": S},
    "federation": {"max_silos": SILOS},
}


def summed(folder, vocabulary, assembly, loud: list[int]):
    """The sum of a round in which each silo has the person, whose text is `loud`, and two others."""
    folder.mkdir()
    roster = make_roster(folder / "federation", vocabulary, 40, SHARES)
    devices = {}
    for number, name in enumerate(SHARES):
        store = Store.from_users([[40 + number] * 9, loud, [43, 44, 45 + number]], vocabulary, tokens_per_user=40)
        place = Enrolment(FEDERATION, name, 3 * number, 3)
        record = Participation(folder / f"{name}.jsonl")
        devices[name] = Device(place, store, bytes([number]) * 32, record, Limits(silos=SILOS))
    payments = AllFree(lambda number: Secrets.seeded(3).keys(number, "a"))
    rounds = Coordinator(roster, InProcess(devices), 1.0).rounds(
        assembly, "spring", assembly.start(assembly.model), payments
    )
    found = next(rounds)[1]
    assert found.answers == {"joined": 2}
    return found


def test_a_person_in_two_silos_moves_the_sum_by_no_more_than_one_user(vocabulary, tmp_path):
    everyone = Store.from_users([[40]] * 6, vocabulary, tokens_per_user=40)
    assembly = assemble(tiny_recipe("nowhere", **EVERYBODY), everyone)
    here, gone = (
        summed(tmp_path / name, vocabulary, assembly, text).total for name, text in (("here", LOUD), ("gone", []))
    )
    leaves = zip(jax.tree.leaves(here), jax.tree.leaves(gone), strict=True)
    moved = float(np.linalg.norm(np.concatenate([np.ravel(one - other) for one, other in leaves])))
    assert moved <= S, "one person moves the sum by more than the clip norm"
    assert moved > S * (SILOS - 1) / SILOS, "no person comes near what is charged"
    mechanism = assembly.algorithm.mechanism
    assert mechanism.sensitivity(mechanism.clip_norms(1, None)) * 6 == pytest.approx(S)
    assert mechanism.event(1) == SampledSilos(1.0, 1.0, SILOS)
