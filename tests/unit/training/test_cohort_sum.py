from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data.store import PublicText
from sottovoce.errors import SottoError
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training.blocks import Block, cut_into_blocks
from sottovoce.training.cohort_sum import SumInBlocks, _padded
from sottovoce.training.types import Task


@given(steps=st.lists(st.integers(0, 20), max_size=300), seats=st.sampled_from([1, 3, 16, 64, 512]))
@settings(max_examples=100, deadline=None)
def test_blocks_hold_every_user_once_in_few_shapes(steps, seats):
    steps = np.array(steps, int)
    blocks = cut_into_blocks(steps, seats)
    assert sorted(np.concatenate([block.places for block in blocks] or [[]])) == list(range(len(steps)))
    for block in blocks:
        assert len(block.places) <= block.padded_size
        assert block.steps >= steps[block.places].max(initial=0)
        assert block.padded_size in {seats >> halved for halved in range(5)}


def time_of(blocks, latency):
    return sum(block.steps * (block.padded_size + latency) + latency for block in blocks)


@given(
    steps=st.lists(st.integers(0, 20), min_size=1, max_size=300),
    seats=st.sampled_from([1, 3, 16, 64, 512]),
    devices=st.sampled_from([1, 2]),
)
@settings(max_examples=100, deadline=None)
def test_blocks_are_joined_where_that_is_faster(steps, seats, devices):
    """Where a step has a latency, no plan is slower than the one without it, or than one block that holds them all."""
    steps, latency = np.array(steps, int), 32
    blocks = cut_into_blocks(steps, seats, devices, latency)
    assert sorted(np.concatenate([block.places for block in blocks])) == list(range(len(steps)))
    for block in blocks:
        assert len(block.places) <= block.padded_size
        assert block.steps >= steps[block.places].max()
        assert block.padded_size in {devices * (seats >> halved) for halved in range(5)}
    plain = cut_into_blocks(steps, seats, devices)
    assert time_of(blocks, devices * latency) <= time_of(plain, devices * latency)
    if len(steps) <= devices * seats:
        assert time_of(blocks, devices * latency) <= devices * (steps.max() * (seats + latency) + latency)


@pytest.mark.parametrize(
    ("cohort", "seats"), [(100, [128]), (128, [128]), (60, [64]), (70, [64, 8]), (300, [128, 128, 64])]
)
def test_a_cohort_that_nearly_fills_a_block_is_one_block_on_a_gpu(cohort, seats):
    """100 users of 20 steps: one block of 128, not 64 and 32 and 8."""
    assert [block.padded_size for block in cut_into_blocks(np.full(cohort, 20), 128, latency=32)] == seats
    assert sum(block.padded_size for block in cut_into_blocks(np.full(cohort, 20), 128)) < cohort + 8


@pytest.mark.parametrize("cohort", [100, 700, 5000])
@pytest.mark.parametrize("spread", ["equal", "uneven", "few long"])
def test_padding_wastes_less_than_a_tenth(cohort, spread):
    """Of the steps of a round, over all blocks: empty seats, and users who had finished."""
    generator = np.random.default_rng(cohort)
    steps = {
        "equal": np.full(cohort, 20),
        "uneven": generator.integers(1, 21, cohort),
        "few long": np.minimum(20, generator.geometric(0.3, cohort)),
    }[spread]
    blocks = cut_into_blocks(steps, 128)
    done = sum(block.padded_size * block.steps for block in blocks)
    assert 1 - steps.sum() / done < 0.1
    if cohort == 5000:  # on a GPU too: a large cohort has little to join
        blocks = cut_into_blocks(steps, 512, latency=32)
        assert 1 - steps.sum() / sum(block.padded_size * block.steps for block in blocks) < 0.1


def test_a_cohort_beyond_what_a_sum_holds_is_refused(store):
    """Before anybody is read or trained: its sum could wrap round."""
    with pytest.raises(SottoError, match="1,048,577 is more than 1,048,576"):
        SumInBlocks(4).blocks(None, store, np.zeros(2**20 + 1, int))  # pyrefly: ignore


def test_whoever_sits_beside_a_user_their_key_and_what_they_rehearse_stay_the_same(store):
    """By the place in a block, one user more would change what others train with, and move the sum beyond S."""
    text = np.arange(500, dtype=np.int32) % store.vocabulary.size
    store = replace(store, public=PublicText(text, store.vocabulary.fingerprint, "text"), first=40)
    update = FedAvg(FlatClip(1.0), clip_every_step=True, user_share=0.6)
    key = jax.random.key(3)
    alone, mine = _padded(update, Task(None, np.array([7]), None, key), store, Block(np.array([0]), 4, 1))
    beside, ours = _padded(update, Task(None, np.array([2, 7, 9]), None, key), store, Block(np.array([2, 1, 0]), 4, 1))
    assert (int(mine[0]), ours[:3].tolist()) == (47, [49, 47, 42])
    np.testing.assert_array_equal(alone.tokens[0], beside.tokens[1])
    np.testing.assert_array_equal(alone.public[0], beside.public[1])
    assert not np.array_equal(beside.public[0], beside.public[1])
