from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.local.update import FedAvg, bytes_of_a_step
from sottovoce.models.lora import Adapters, Survey, adapt
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training import blocks as module
from sottovoce.training.blocks import block_size, cut_into_blocks


@given(steps=st.lists(st.integers(0, 20), max_size=300), seats=st.sampled_from([1, 3, 16, 64, 512]))
@examples(100)
def test_blocks_hold_every_user_once_and_are_as_few_and_as_even_as_can_be(steps, seats):
    steps = np.array(steps, int)
    blocks = cut_into_blocks(steps, seats)
    assert sorted(np.concatenate(blocks or [[]])) == list(range(len(steps)))
    assert len(blocks) == -(-len(steps) // seats)
    sizes = [len(block) for block in blocks]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    longest_first = [steps[place] for block in blocks for place in block]
    assert longest_first == sorted(longest_first, reverse=True)


def test_a_block_fits_the_cache_of_a_cpu_and_is_full_on_a_gpu(monkeypatch):
    params = {"weight": np.zeros(3 * 2**14)}
    assert block_size(params, cohort=1000, chosen=7) == 7
    assert block_size(params, cohort=1000) == 16  # 6 MiB for 8 bytes a parameter
    assert block_size(params, cohort=5) == 7
    half = {"weight": np.zeros(3 * 2**12), "frozen": np.zeros(9 * 2**12, np.int32)}
    assert block_size(half, cohort=1000) == 16  # a step computes with what is frozen too
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (
        block_size(half, cohort=10_000) == 3424
    )  # three blocks of at most 4,096, with room for a cohort that is larger
    assert block_size(half, cohort=10_000, varies=False) == 3336
    assert block_size(params, cohort=2048, varies=False) == 2048
    assert block_size(params, cohort=500) == 576  # one block, with room for a cohort that is drawn larger
    assert block_size(params, cohort=500, varies=False) == 500
    assert block_size(params, cohort=100) == 128
    assert block_size(params, cohort=100, varies=False) == 100
    large = {"weight": np.zeros(4_000_000, np.float32)}
    assert block_size(large, cohort=500, varies=False) == 256  # two blocks of one size, not 268 and 232
    assert block_size(params, cohort=5) == 7


@pytest.mark.slow
def test_what_a_step_keeps_for_its_gradient_fits_a_gpu_too(monkeypatch):
    """Adapters are small; what a large frozen model computes for a user is not."""
    made = build("transformer", 200, {"embedding": 32, "hidden": 64, "layers": 2, "heads": 2}, jax.random.key(0))
    model = adapt(Survey(made, Adapters(rank=2)), jax.random.key(1))
    update = FedAvg(FlatClip(1.0), True, learning_rate=0.1, batch=4, unroll=8)
    kept = bytes_of_a_step(update, model)
    assert 4 * 4 * 8 * 200 < kept < 50 * 4 * 4 * 8 * 200  # the logits of all tokens, and some more
    assert 1.9 < bytes_of_a_step(replace(update, batch=8), model) / kept < 2.1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(module, "_memory", lambda: 3 * 64 * kept)
    assert block_size(model, 1000, update=update) == 64
    assert block_size(model, 1000, varies=False) == 1000
    assert block_size(model, 1000, chosen=7, update=update) == 7
    monkeypatch.setattr(module, "_memory", lambda: 0)  # a device that does not say
    assert block_size(model, 1000, update=update, varies=False) == 1000
