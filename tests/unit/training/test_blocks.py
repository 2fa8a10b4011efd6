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
from sottovoce.training.blocks import block_size, cut_into_blocks, latency, share_out


@given(steps=st.lists(st.integers(0, 20), max_size=300), seats=st.sampled_from([1, 3, 16, 64, 512]))
@examples(100)
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
@examples(100)
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


def test_every_user_is_in_one_share_and_shares_are_alike():
    steps = np.random.default_rng(0).integers(1, 40, size=300)
    blocks = cut_into_blocks(steps, 8)
    shares = share_out(blocks, 3)
    assert sorted(np.concatenate([block.places for share in shares for block in share])) == list(range(300))
    work = [sum(block.padded_size * block.steps for block in share) for share in shares]
    assert max(work) - min(work) <= max(block.padded_size * block.steps for block in blocks)
    assert share_out(blocks[:1], 2) == [blocks[:1], []]


def test_a_block_fits_the_cache_of_a_cpu_and_is_full_on_a_gpu(monkeypatch):
    params = {"weight": np.zeros(3 * 2**14)}
    assert block_size(params, cohort=1000, chosen=7) == 7
    assert block_size(params, cohort=1000) == 16  # 6 MiB for 8 bytes a parameter
    assert block_size(params, cohort=5) == 7
    half = {"weight": np.zeros(3 * 2**12), "frozen": np.zeros(9 * 2**12, np.int32)}
    assert block_size(half, cohort=1000) == 16  # a step computes with what is frozen too
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert block_size(half, cohort=10_000) == 3336  # three blocks of one size, of at most 4,096
    assert block_size(params, cohort=2048, varies=False) == 2048
    assert block_size(params, cohort=500) == 576  # one block, with room for a cohort that is drawn larger
    assert block_size(params, cohort=500, varies=False) == 500
    assert block_size(params, cohort=100) == 128
    assert block_size(params, cohort=100, varies=False) == 100
    large = {"weight": np.zeros(4_000_000, np.float32)}
    assert block_size(large, cohort=500) == 256  # two blocks of one size, not 268 and 232
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


def test_a_step_has_a_latency_on_a_gpu_alone(monkeypatch):
    products = object()
    assert (latency(None), latency(products)) == (0, 0)
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    assert (latency(None), latency(products)) == (32, 64)
