"""Rounds of several processes against one. Here the processes are threads: what they add up goes through memory."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from free import Free
from sottovoce.build.assembly import assemble
from sottovoce.local.keys import local_key
from sottovoce.multiprocess.cohort_sum import SumOverProcesses
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.types import Task
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe
from thread_group import with_helpers

RECIPE = Recipe.from_dict({
    "model": {"embedding": 4, "hidden": 5},
    "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
    "privacy": {
        "users": 13, "cohort": 8, "clip_norm": 0.3, "noise_multiplier": 1.2, "delta": 1e-3, "accountant": "rdp",
    },
    "run": {"block": 4},
})  # fmt: skip
COHORT = np.array([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12])


def summed(sum_updates, assembly, store, cohort):
    norms = assembly.algorithm.mechanism.clip_norms(1, assembly.algorithm.mechanism.start())
    return sum_updates(assembly.algorithm, Task(assembly.params, cohort, norms, local_key(bytes(range(8)))), store)


def same(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, other))


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("cohort", [COHORT, COHORT[:1], COHORT[:0]], ids=["many", "one user", "nobody"])
def test_any_number_of_processes_give_the_sum_of_one_to_the_bit(store, processes, cohort):
    assembly = assemble(RECIPE, store)
    alone = summed(assembly.sum_updates, assembly, store, cohort)
    lead = lambda group: summed(SumOverProcesses(group, assembly.sum_updates), assembly, store, cohort)  # noqa: E731
    together, ended, _ = with_helpers(processes, assembly, store, lead)
    assert ended == ["done"] * (processes - 1)
    assert same((alone.total, alone.weight, alone.bits), (together.total, together.weight, together.bits))
    assert together.users == len(cohort)
    for name in ("norms", "clipped", "losses"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))


def test_a_user_whom_two_processes_add_up_stops_the_round(store, monkeypatch):
    """Plans that differ, as of machines with other devices, would count some users twice: with twice the clip norm."""
    assembly = assemble(RECIPE, store)
    whole = assembly.sum_updates.blocks(assembly.algorithm, store, COHORT)

    class Whole(list):
        def __getitem__(self, which):
            return whole if isinstance(which, slice) else super().__getitem__(which)

    monkeypatch.setattr(SumInBlocks, "blocks", lambda *given: Whole(whole))
    lead = lambda group: summed(SumOverProcesses(group, assembly.sum_updates), assembly, store, COHORT)  # noqa: E731
    with pytest.raises(SottoError, match="disagree on who computes whom"):
        with_helpers(2, assembly, store, lead)


def play(assembly, store, sum_updates):
    mechanism = assembly.algorithm.mechanism
    state = assembly.algorithm.server.start(assembly.model, mechanism.start())
    for number in (1, 2):
        keys = Secrets.seeded(5).keys(number)
        state, _ = play_round(assembly.algorithm, state, store, Free(keys, Secrets.seeded(5), number), sum_updates)
    return state


def test_rounds_of_two_processes_have_the_cohorts_the_noise_and_the_model_of_one(store):
    """Were a cohort, a coin or a noise drawn anew in the second process, the models would be far apart."""
    assembly = assemble(RECIPE, store)
    lead = lambda group: play(assembly, store, SumOverProcesses(group, assembly.sum_updates))  # noqa: E731
    together, _, _ = with_helpers(2, assembly, store, lead)
    assert same(play(assembly, store, assembly.sum_updates).params, together.params)


def test_process_0_sends_the_frozen_part_once(store):
    """What a run starts from is at process 0 alone: the others build other weights, of which only the shapes count."""
    recipe = RECIPE.replace(model={"adapter_rank": 2})
    assembly, others = assemble(recipe, store), assemble(recipe.replace(run={"seed": 5}), store)
    alone = summed(assembly.sum_updates, assembly, store, COHORT)

    def lead(group):
        over = SumOverProcesses(group, assembly.sum_updates)
        return [summed(over, assembly, store, COHORT) for _ in range(2)]

    together, ended, groups = with_helpers(3, others, store, lead)
    assert ended == ["done", "done"]
    assert all(same((alone.total, alone.weight), (each.total, each.weight)) for each in together)
    assert not same(alone.total, summed(others.sum_updates, others, store, COHORT).total)
    spoken = b"".join(numbers.tobytes() for numbers in groups[0].sent)
    assert spoken.count(np.asarray(assembly.model.base.embedding).tobytes()) == 1


@pytest.mark.slow
def test_without_a_clip_the_sums_are_those_of_one_process_within_rounding(store):
    assembly = assemble(RECIPE.replace(privacy={"mode": "none", "clipping": "none"}), store)
    alone = summed(assembly.sum_updates, assembly, store, COHORT)
    lead = lambda group: summed(SumOverProcesses(group, assembly.sum_updates), assembly, store, COHORT)  # noqa: E731
    together, _, _ = with_helpers(2, assembly, store, lead)
    for one, other in zip(jax.tree.leaves(alone.total), jax.tree.leaves(together.total), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_keys_of_sampling_and_noise_stay_with_process_0(store):
    assembly = assemble(RECIPE, store)
    lead = lambda group: play(assembly, store, SumOverProcesses(group, assembly.sum_updates))  # noqa: E731
    _, _, groups = with_helpers(2, assembly, store, lead)
    spoken = b"".join(numbers.tobytes() for numbers in groups[0].sent)
    for number in (1, 2):
        keys = Secrets.seeded(5).keys(number)
        assert keys.local[:8] in spoken  # it can be found, so the others could be
        assert keys.sampling[:8] not in spoken
        assert Free(keys, Secrets.seeded(5), number).charge(None)[:8] not in spoken


def test_a_helper_that_is_asked_to_stop_asks_process_0(store):
    assembly = assemble(RECIPE, store)

    def lead(group):
        summed(SumOverProcesses(group, assembly.sum_updates), assembly, store, COHORT)
        return group.stop_requested()

    assert with_helpers(2, assembly, store, lead, stop=lambda: True)[0]
    assert not with_helpers(2, assembly, store, lead)[0]
