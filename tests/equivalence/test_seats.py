"""One user more changes nothing for the others: neighbouring cohorts at every edge of seats and blocks.

An exact sum moves by what the newcomer sends when alone, to the bit, or somebody else's update has changed. Run it on a
GPU too: it then has the programs for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest

from examples import first_of
from family import of_family
from sottovoce.data.store import PublicText, Store
from sottovoce.kernels.find import find_program
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.models.registry import build
from sottovoce.multiprocess.cohort_sum import SumOverProcesses
from sottovoce.privacy.clipping import FlatClip, PerLayerClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.training import seats
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.seats import depends_on_others, digest_of_update
from sottovoce.training.types import Algorithm, Task
from sottovoce_evidence.errors import SottoError
from thread_group import with_helpers

SEATS, CAP = 8, 48
# Of those who are in either cohort.
LENGTHS = [48, 0, 1, 7, 48, 23, 30, 17, 12, 41, 5, 9, 48, 20, 33, 2, 45]
NEWCOMERS = {"of a full text": 48, "without text": 0, "of a few words": 6}
# Half a block, one seat left, a full block, one user too many, and the same of two blocks.
COHORTS = [0, 3, 4, 5, SEATS - 1, SEATS, SEATS + 1, 2 * SEATS - 1, 2 * SEATS, 2 * SEATS + 1]
# So fast that a last bit grows: the model forgets what it was in a few steps.
FAST = {"batch": 2, "unroll": 5, "learning_rate": 30.0}
CLIP = FlatClip(0.5)
UPDATES = {
    "clipped at the end": FedAvg(CLIP, False, epochs=3, **{**FAST, "learning_rate": 0.5}),
    "clipped after every step": FedAvg(CLIP, True, **FAST),
    "one gradient": FedSGD(CLIP, **FAST),
    "one gradient of some tokens": FedSGD(CLIP, tokens=17, **FAST),
    "each layer clipped": FedAvg(PerLayerClip((0.1,) * 11), True, **FAST),
    "without forgetting": FedAvg(CLIP, True, objective=WithoutForgetting(0.6), **FAST),
    "rehearsal": FedAvg(CLIP, True, user_share=0.6, **FAST),
    "a gradient clip": FedAvg(CLIP, False, gradient_clip=1.0, **FAST),
}
KERNELS = ["off"] if jax.default_backend() == "cpu" else ["off", "any_model", "auto"]
PROGRAMS = [
    ("lstm", "clipped at the end", "off"),
    # A CPU has one program for all of them.
    *((kind, update, kernels) for kernels in KERNELS for kind, update in (
        ("lstm", "clipped after every step"), ("lstm", "one gradient"), ("gru", "clipped after every step"),
        ("transformer", "clipped at the end"), ("transformer", "clipped after every step"),
        ("stacked_lstm", "clipped after every step"), ("gated_cnn", "clipped after every step"),
        ("gpt2, in pieces", "clipped after every step"), ("lstm", "each layer clipped"), ("lstm", "rehearsal"),
        ("lstm", "without forgetting"), ("lstm", "a gradient clip"), ("gru", "one gradient of some tokens"),
        ("gru", "clipped at the end"),
    )),
]  # fmt: skip


# A GPU has kernels for models of some size: all lengths are eight times as long for them.
LARGE = {
    "lstm of the paper": ("lstm", {"embedding": 96, "hidden": 256}),
    "gru, large": ("gru", {"embedding": 64, "hidden": 128}),
    "stacked_lstm, large": ("stacked_lstm", {"embedding": 64, "hidden": 64}),
    "transformer, large": (
        "transformer", {"embedding": 64, "heads": 4, "kv_heads": 4, "layers": 2, "hidden": 128, "context": 64}
    ),
}  # fmt: skip
UPDATES["in the paper's steps"] = FedAvg(CLIP, True, batch=8, unroll=10, learning_rate=6.0)
UPDATES["one gradient of the paper's steps"] = FedSGD(CLIP, batch=8, unroll=10, learning_rate=6.0)
if jax.default_backend() != "cpu":
    PROGRAMS += [(kind, "in the paper's steps", "auto") for kind in LARGE]
    PROGRAMS += [("lstm of the paper", "one gradient of the paper's steps", "auto")]


class Sums:
    """Exact sums of one program over cohorts of a store, on all devices of this process."""

    def __init__(self, vocabulary, kind: str, update: str, kernels: str):
        times = 8 if kind in LARGE else 1
        lengths = [times * length for length in (*LENGTHS, *NEWCOMERS.values())]
        texts = [np.random.default_rng(n).integers(4, vocabulary.size, n) for n in lengths]
        text = np.arange(500, dtype=np.int32) % vocabulary.size
        self.store = replace(
            Store.from_users(texts, vocabulary, times * CAP), public=PublicText(text, vocabulary.fingerprint, "text")
        )
        if kind in LARGE:
            name, sizes = LARGE[kind]
            self.params = build(name, vocabulary.size, sizes, jax.random.key(7))
        else:
            self.params = of_family(kind)
        given = UPDATES[update]
        mechanism = Mechanism(Poisson(0.5), given.clipping, FixedDenominator(6.0), noise_multiplier=1.0)
        self.algorithm = Algorithm(mechanism, given, None)  # pyrefly: ignore
        seats = SEATS // len(jax.devices()) or 1
        self.sum_updates = SumInBlocks(seats, find_program(kernels, given, self.params, seats), len(jax.devices()))

    def __call__(self, rows, sum_updates=None) -> np.ndarray:
        norms = self.algorithm.mechanism.clip_norms(1, None)
        task = Task(self.params, np.asarray(rows, int), norms, jax.random.key(5))
        summed = (sum_updates or self.sum_updates)(self.algorithm, task, self.store)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed.total)])


def check_neighbours(sums, sum_updates=None):
    for number, length in enumerate(NEWCOMERS.values(), len(LENGTHS)):
        alone = sums([number], sum_updates)
        assert np.any(alone) == (length > 0)
        for count in COHORTS:
            moved = sums([*range(count), number], sum_updates) - sums(range(count), sum_updates)
            np.testing.assert_array_equal(moved, alone, f"a user of {length} tokens beside {count} others")


@pytest.mark.parametrize(("kind", "update", "kernels"), first_of(PROGRAMS))
def test_one_user_more_moves_the_sum_by_their_own_update_to_the_bit(vocabulary, kind, update, kernels):
    check_neighbours(Sums(vocabulary, kind, update, kernels))


@pytest.mark.parametrize(("kind", "update", "kernels"), first_of(PROGRAMS))
def test_every_seat_computes_the_same_to_the_bit(vocabulary, kind, update, kernels):
    sums = Sums(vocabulary, kind, update, kernels)
    for row in (0, 3):
        alone = sums([row])
        for count in (2, SEATS, 2 * SEATS):
            np.testing.assert_array_equal(sums([row] * count), count * alone)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_user_more_changes_nothing_for_others_in_other_processes(vocabulary, processes):
    """Others may be computed by another process then."""
    sums = Sums(vocabulary, *PROGRAMS[0])
    with_helpers(
        processes, sums, sums.store, lambda group: check_neighbours(sums, SumOverProcesses(group, sums.sum_updates))
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_one_user_more_changes_nothing_for_others_on_other_devices(devices):
    """Others may be on another device then. Virtual devices need a process of their own."""
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)  # a command that ran in this process has set it
    cases = f"{__file__}::{test_one_user_more_moves_the_sum_by_their_own_update_to_the_bit.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not slow", cases]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_a_machine_on_which_others_change_is_found(vocabulary):
    """In the seat of the newcomer, in any seat, or as soon as there is one user too many for a block."""
    sums = Sums(vocabulary, *PROGRAMS[0])
    given = (sums.algorithm, sums.params, sums.store)
    assert not depends_on_others(sums.sum_updates, *given)

    class Broken(SumInBlocks):
        """One number of the sum moves by one step of the grid where `when` says so."""

        when: Callable[[int], bool]

        def __call__(self, algorithm, task, store):
            summed, grid = super().__call__(algorithm, task, store), algorithm.mechanism.grid(task.clip_norms)
            first, *others = jax.tree.leaves(summed.total)
            moved = np.array(first)
            moved.flat[0] += grid * self.when(len(task.cohort))
            return summed._replace(total=[moved, *others])

    for when in (lambda count: count == SEATS, lambda count: count > SEATS, lambda count: count == SEATS - 1):
        broken = Broken(SEATS)
        object.__setattr__(broken, "when", when)
        assert depends_on_others(broken, *given)


def test_it_is_refused_where_users_are_computed_at_once(vocabulary, monkeypatch):
    sums = Sums(vocabulary, *PROGRAMS[0])
    asked: list[int] = []
    monkeypatch.setattr(seats, "depends_on_others", lambda *given: asked.append(1) or True)
    given = (sums.algorithm, sums.params, sums.store)
    monkeypatch.setattr(seats.jax, "default_backend", lambda: "cpu")
    seats.check_seats(SumInBlocks(2), *given)  # a CPU computes one user after the other
    monkeypatch.setattr(seats.jax, "default_backend", lambda: "gpu")
    seats.check_seats(SumInBlocks(1), *given)
    assert not asked
    with pytest.raises(SottoError, match="xla_gpu_deterministic_ops=true"):
        seats.check_seats(SumInBlocks(2), *given)


def test_machines_that_compute_alike_have_one_digest(vocabulary):
    sums, others = Sums(vocabulary, *PROGRAMS[0]), Sums(vocabulary, "lstm", "clipped after every step", "off")
    digests = {digest_of_update(each.sum_updates, each.algorithm, each.params, each.store) for each in (sums, sums)}
    assert len(digests) == 1
    assert digest_of_update(others.sum_updates, others.algorithm, others.params, others.store) not in digests
    # Weights do not count: before a run begins, process 0 alone may have them.
    weights = jax.tree.map(lambda leaf: 2 * leaf, sums.params)
    assert digest_of_update(sums.sum_updates, sums.algorithm, weights, sums.store) in digests
