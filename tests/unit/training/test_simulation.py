from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.training.simulation import cut_into_blocks


@given(steps=st.lists(st.integers(0, 20), max_size=300), seats=st.sampled_from([1, 3, 16, 64, 512]))
@settings(max_examples=100, deadline=None)
def test_blocks_hold_every_user_once_in_few_shapes(steps, seats):
    steps = np.array(steps, int)
    blocks = cut_into_blocks(steps, seats)
    assert sorted(np.concatenate([block.places for block in blocks] or [[]])) == list(range(len(steps)))
    for block in blocks:
        assert len(block.places) <= block.seats
        assert block.steps >= steps[block.places].max(initial=0)
        assert block.seats in {seats >> halved for halved in range(5)}


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
    done = sum(block.seats * block.steps for block in blocks)
    assert 1 - steps.sum() / done < 0.1
