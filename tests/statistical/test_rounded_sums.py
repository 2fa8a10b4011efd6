"""Sums of rounded Gaussians, as devices add them: the lemma of docs/explanation/guarantees.md, where a mistake shows.

With standard deviations below one step the lemma allows a difference that can be seen. Shares of devices have 2^12.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from sottovoce.federation import device
from sottovoce_evidence.device_noise import DeviceNoise

STDS, SHARES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [2, 5]
DRAWS = 60_000


@lru_cache
def mass_of_sum(*stds: float) -> np.ndarray:
    """The chance of every whole number, from -(size // 2) on: those of the shares, convolved."""
    return reduce(np.convolve, [rounded(std, math.ceil(12 * max(std, 1))) for std in stds])


def rounded(std: float, most: int) -> np.ndarray:
    """The chances of round(g), from -most to most."""
    low = (np.arange(most + 1) - 0.5) / std
    above = stats.norm.sf(low) - stats.norm.sf(low + 1 / std)
    return np.concatenate([above[:0:-1], above])


def density(numbers: np.ndarray, variance: float, uniforms: int) -> np.ndarray:
    """Of a Gaussian and so many uniform numbers on ±1/2 together, from its Fourier transform."""
    most = 12 / math.sqrt(variance)
    w = np.linspace(-most, most, 40_001)
    transform = np.exp(-variance * w**2 / 2) * np.sinc(w / (2 * np.pi)) ** uniforms
    return np.trapezoid(transform * np.cos(np.outer(numbers, w)), w, axis=1) / (2 * np.pi)


def bounds(*stds: float) -> tuple[float, float]:
    """What the lemma allows as a ratio: each share but the last is added to the last one and those before it."""
    low, high, added = 1.0, 1.0, stds[-1] ** 2
    for std in stds[:-1]:
        both, added = std**2 * added / (std**2 + added), std**2 + added
        eta = 2 * sum(math.exp(-2 * (math.pi * m) ** 2 * both) for m in range(1, 20))
        low, high = low * max(0.0, 1 - eta), high * (1 + eta)
    return low, high


def ratio(*stds: float, variance: float = 1.0, uniforms: int = 0) -> np.ndarray:
    """The mass of a sum over the density that the lemma compares it with, or another, out to four deviations."""
    found, most = mass_of_sum(*stds), math.ceil(4 * math.hypot(*stds))
    numbers = np.arange(-most, most + 1)
    compared = density(numbers, variance * math.hypot(*stds) ** 2, len(stds) + uniforms)
    return found[len(found) // 2 + numbers] / compared


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("std", STDS)
def test_the_sum_of_shares_is_one_gaussian_within_the_bound_of_the_lemma(std, shares):
    (low, high), found = bounds(*[std] * shares), ratio(*[std] * shares)
    assert low <= found.min()
    assert found.max() <= high
    if shares == 2:
        assert max(found.max() - 1, 1 - found.min()) > (high - 1) / 3  # and the bound is not far above


@pytest.mark.parametrize("stds", list(permutations([0.4, 0.7, 2.5])))
def test_shares_of_different_deviations_add_up_too(stds):
    """As a device's and a server's do; whichever is the one that the proof does not round."""
    (low, high), found = bounds(*stds), ratio(*stds)
    assert low <= found.min()
    assert found.max() <= high


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("wrong", [{"variance": 0.95}, {"variance": 1.05}, {"uniforms": -1}, {"uniforms": 1}])
def test_another_variance_or_another_number_of_roundings_is_beyond_the_bound(wrong, shares):
    (low, high), found = bounds(*[0.8] * shares), ratio(*[0.8] * shares, **wrong)
    assert found.min() < low or found.max() > high


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("moved", [1, 3])
@pytest.mark.parametrize("std", [0.5, 0.6, 0.8])
def test_whoever_is_moved_by_whole_steps_is_as_hidden_as_by_one_gaussian(std, moved, shares):
    """δ at each ε, exactly, is no more than that of a Gaussian of the shares' variance, and what the lemma allows."""
    (low, high), mass = bounds(*[std] * shares), mass_of_sum(*[std] * shares)
    there = np.concatenate([np.zeros(moved), mass])
    z = std * math.sqrt(shares) / moved
    for epsilon in (0.3, 1.0, 2.0):
        found = hockey_stick(there, np.append(mass, np.zeros(moved)), epsilon)
        at = epsilon - math.log(high / low) if low else -math.inf
        if at <= 0:
            continue  # the lemma says nothing
        gaussian = stats.norm.sf(at * z - 0.5 / z) - math.exp(at) * stats.norm.sf(at * z + 0.5 / z)
        assert found <= high * gaussian
        if (std, shares) == (0.8, 2):
            assert found > 0.5 * gaussian  # and not far from it


@pytest.mark.parametrize("shares", SHARES)
def test_what_devices_add_up_to_has_that_law(shares, monkeypatch):
    """As a device adds its share, with deviations that a run would refuse; of 0.95 of the variance it is rejected."""
    std = 0.6
    keys = (bytes([number]) * 32 for number in range(1, 100))
    monkeypatch.setattr(device.os_entropy, "token_bytes", lambda size: next(keys))
    noise = DeviceNoise(std * math.sqrt(shares), survivors=shares, colluding=0, participations=1)
    mechanism = SimpleNamespace(devices=noise, steps=lambda clip_norms: 1.0)
    nothing = np.zeros(DRAWS, np.int64)
    total = np.sum([device.with_own_noise(nothing, mechanism, np.ones(1)) for _ in range(shares)], axis=0)
    most = math.ceil(2.5 * std * math.sqrt(shares))
    numbers = np.arange(-most, most + 1)
    seen = np.array([np.sum(total == number) for number in numbers])
    seen = np.append(seen, DRAWS - seen.sum())

    def p_value(variance: float) -> float:
        mass = mass_of_sum(*[math.sqrt(variance) * std] * shares)
        chances = mass[len(mass) // 2 + numbers]
        return stats.chisquare(seen, np.append(chances, 1 - chances.sum()) * DRAWS).pvalue

    assert p_value(1.0) > 1e-4
    assert p_value(0.95) < 1e-4
    assert p_value(1.05) < 1e-4
