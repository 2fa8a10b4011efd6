"""One byte a number, without loss: of an update that was quantised, clipped, weighted and cut to the grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.federation.eight_bit import Coded, decode, encode
from sottovoce.privacy.fixed_point import quantise
from sottovoce_evidence.bounds import grid_of

NORM, WEIGHT = 0.3, np.float32(0.7183)


def sent(shape: tuple[int, ...], seed: int = 0, weight: np.float32 = WEIGHT) -> np.ndarray:
    """What a device has of a user: quantised, made shorter, weighted, in whole steps of the grid."""
    generator = np.random.default_rng(seed)
    update = generator.normal(size=shape).astype(np.float32)
    unit = np.abs(update).max(axis=-1, keepdims=True) / np.float32(127)  # as `local/quantise.py` has it
    rounded = np.floor(update / unit + generator.random(shape, np.float32)).clip(-127, 127).astype(np.float32) * unit
    clipped = rounded * np.float32(NORM / np.linalg.norm(rounded))
    return quantise(clipped * weight, grid_of(NORM))


@pytest.mark.parametrize("shape", [(40, 64), (3, 5, 200), (700,)])
@pytest.mark.parametrize("weight", [WEIGHT, np.float32(1.0)])
def test_a_quantised_update_is_read_to_the_last_step(shape, weight):
    numbers = sent(shape, weight=weight)
    coded = encode(numbers)
    assert coded is not None
    found = decode(coded)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, numbers)
    assert coded.nbytes < 2.2 * numbers.size  # rather than four bytes a number


def test_what_is_no_multiple_of_a_unit_is_not_coded():
    """Nor a sum over two users: its rows have more values than a byte."""
    assert encode(np.random.default_rng(0).integers(-(2**26), 2**26, (20, 64))) is None
    assert encode(sent((20, 64)) + sent((20, 64), seed=1)) is None
    nearly = sent((20, 64))
    nearly[3, 5] += 999
    assert encode(nearly) is None


def test_zeros_and_nothing_are_coded_too():
    for numbers in (np.zeros((2, 50), np.int64), np.zeros((0, 4), np.int64)):
        coded = encode(numbers)
        assert coded is None or decode(coded).tolist() == numbers.tolist()
    assert encode(np.zeros((2, 50), np.int64)) is not None


GOOD = encode(sent((4, 64)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"multiples": np.full((4, 64), -128, np.int8)},
        {"multiples": GOOD.multiples[:3]},
        {"multiples": GOOD.multiples.astype(np.int16)},
        {"units": GOOD.units.astype(np.float32)},
        {"units": GOOD.units * np.nan},
        {"units": GOOD.units + 2.0**50},
        {"units": -GOOD.units},
        {"off": GOOD.off[:-1]},
        {"off": GOOD.off.astype(np.int64)},
        {"units": np.zeros((4, 1))},
    ],
    ids=str,
)
def test_what_a_hostile_device_may_send_is_nothing(wrong):
    assert isinstance(GOOD, Coded)
    assert decode(replace(GOOD, **wrong)) is None
