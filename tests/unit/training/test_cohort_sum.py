from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from sottovoce.build.assembly import assemble
from sottovoce.commands.bench import made_up_users
from sottovoce.data.store import PublicText, Store
from sottovoce.local.update import FedAvg
from sottovoce.models.contract import parameter_count
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training import cohort_sum
from sottovoce.training.cohort_sum import SumInBlocks, _seated
from sottovoce.training.types import Task
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

STEP = 32  # tokens. XLA counts what is in a loop once: one local step, of one moment of the recurrence


def test_a_cohort_beyond_what_a_sum_holds_is_refused(store):
    """Before anybody is read or trained: its sum could wrap round."""
    with pytest.raises(SottoError, match="more than 1,048,576 users"):
        SumInBlocks(4).blocks(None, store, np.zeros(2**20 + 1, int))  # pyrefly: ignore


def test_whoever_sits_beside_a_user_their_key_and_what_they_rehearse_stay_the_same(store):
    """By the place in a block, one user more would change what others train with, and move the sum beyond S."""
    text = np.arange(500, dtype=np.int32) % store.vocabulary.size
    store = replace(store, public=PublicText(text, store.vocabulary.fingerprint, "text"), first=40)
    update = FedAvg(FlatClip(1.0), clip_every_step=True, user_share=0.6)
    key = jax.random.key(3)
    sums = SumInBlocks(4)
    alone, mine = _seated(sums, update, Task(None, np.array([7]), None, key), store, np.array([0]))
    beside, ours = _seated(sums, update, Task(None, np.array([2, 7, 9]), None, key), store, np.array([2, 1, 0]))
    assert (int(mine[0, 0]), ours[:3, 0].tolist()) == (47, [49, 47, 42])
    np.testing.assert_array_equal(alone.tokens[0], beside.tokens[1])
    np.testing.assert_array_equal(alone.public[0], beside.public[1])
    assert not np.array_equal(beside.public[0], beside.public[1])


def test_all_cohorts_share_one_program_whose_shapes_are_public():
    """Were a shape, a size of block or a number of steps taken from the cohort, one user more could change them."""
    tokens = made_up_users(8, 500, 160).gather(np.arange(8), 8).tokens
    store = Store.from_users(
        [*tokens[:4], *tokens[4:, :70]], made_up_users(1, 500, 160).vocabulary, tokens_per_user=160
    )
    settings = {"users": 8, "cohort": 8, "noise_multiplier": 1.0, "epsilon": None, "delta": 1e-9}
    recipe = Recipe.load("demo").replace(privacy=settings, run={"block": 4, "kernels": "off", "devices": 1})
    assembly, calls, real = assemble(recipe, store), [], cohort_sum._add_block

    def watched(spec, sums, seated, *rest):
        calls.append((spec, [leaf.shape for leaf in jax.tree.leaves(seated)]))
        return real(spec, sums, seated, *rest)

    clip_norms, key = assembly.algorithm.mechanism.clip_norms(1, None), jax.random.key(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohort_sum, "_add_block", watched)
        before = real._cache_size()
        for cohort in ([0], [5], range(4), range(5), range(8)):
            task = Task(assembly.model, np.array(cohort), clip_norms, key)
            assembly.sum_updates(assembly.algorithm, task, store)
    assert len(calls) == 1 + 1 + 1 + 2 + 2
    assert calls.count(calls[0]) == len(calls)
    assert real._cache_size() - before <= 1


class Lowered(Exception):
    pass


def lower_block(seats: int, population: int = 20):
    """The program that adds a block of users, not yet compiled, and the model."""
    store = made_up_users(population, 500, 160)
    recipe = Recipe.load("demo").replace(
        privacy={"users": population, "cohort": 8, "noise_multiplier": 1.0, "epsilon": None, "delta": 1e-9},
        local={"batch": STEP, "unroll": 1},
        run={"block": seats, "kernels": "off", "devices": 1},
    )
    assembly = assemble(recipe, store)
    real, lowered = cohort_sum._add_block, []

    def lower(*inputs):
        lowered.append(real.lower(*inputs))
        raise Lowered

    clip_norms, key = assembly.algorithm.mechanism.clip_norms(1, None), jax.random.key(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohort_sum, "_add_block", lower)
        with pytest.raises(Lowered):
            assembly.sum_updates(assembly.algorithm, Task(assembly.model, np.arange(seats), clip_norms, key), store)
    return lowered[0], assembly.model


@pytest.mark.slow
def test_a_user_costs_one_pass_forwards_one_back_and_few_copies_of_the_model():
    """Users are computed in a loop, which XLA counts once: a block of one user says what a user costs."""
    program, model = lower_block(1)
    compiled = program.compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    weights = sum(leaf.size for leaf in jax.tree.leaves(model) if leaf.ndim == 2)
    model_bytes = 4 * parameter_count(model)
    assert 1 <= cost["flops"] / (6 * STEP * weights) < 1.2  # 1.10; a second pass forwards would add a third
    assert cost["bytes accessed"] / model_bytes < 50  # 43.9: a CPU fuses little, and logits count too
    assert memory.temp_size_in_bytes / model_bytes < 5  # 4.2
    # A further seat keeps an update until the block is added up, and hands nothing of it back.
    few, many = (lower_block(seats)[0].compile().memory_analysis() for seats in (4, 8))
    assert (many.temp_size_in_bytes - few.temp_size_in_bytes) / 4 < 1.1 * model_bytes  # 1.0
    assert (many.output_size_in_bytes - few.output_size_in_bytes) / 4 < 64


@pytest.mark.slow
def test_the_program_of_a_block_does_not_know_the_population():
    texts = {lower_block(4, population)[0].as_text() for population in (10, 200)}
    assert len(texts) == 1
