"""What is charged for a histogram bounds what it does, and only names that many share are shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from sottovoce.privacy.histogram import NoisyCount, NoisyHistogram
from sottovoce.privacy.noise import Scale, rounded_gaussian
from sottovoce_evidence.accounting.events import GaussianRelease, SampledGaussian
from sottovoce_evidence.errors import SottoError

SETTINGS = [(1, 0.1), (1, 4.0), (2, 0.7), (25, 2.299), (400, 4.366), (2**16, 8.0)]


@pytest.mark.parametrize(("names", "z"), SETTINGS)
def test_what_is_charged_is_the_noise_over_the_sensitivity(names: int, z: float) -> None:
    histogram = NoisyHistogram(names, z, 5e-7)
    assert histogram.event() == GaussianRelease(z, 5e-7)
    assert histogram.noise_std / math.sqrt(names) == pytest.approx(z)


@pytest.mark.parametrize(("names", "z"), SETTINGS)
def test_the_threshold_is_the_smallest_that_keeps_delta(names: int, z: float) -> None:
    histogram = NoisyHistogram(names, z, 5e-7)
    # Union over the names of one user: each is shown when 1 + round(noise) reaches the threshold.
    tail = lambda threshold: names * stats.norm.sf(threshold - 1.5, scale=histogram.noise_std)  # noqa: E731
    assert tail(histogram.threshold) <= 5e-7
    assert histogram.threshold == 2 or tail(histogram.threshold - 1) > 5e-7 * (1 - 1e-6)


@pytest.mark.parametrize("z", [0.15, 0.7, 1.0, 2.3, 8.0])
def test_rounded_noise_hides_a_user_as_well_as_the_gaussian_that_is_charged(z: float) -> None:
    """δ(ε) of one count that a user moves by one, from the chance of every whole number."""
    reach = int(12 * z) + 4
    edges = np.arange(-reach, reach + 2) - 0.5
    here, there = (np.diff(special.ndtr((edges - moved) / z)) for moved in (0, 1))
    for epsilon in np.linspace(0, 4 / z, 50):
        charged = special.ndtr(1 / (2 * z) - epsilon * z) - np.exp(epsilon) * special.ndtr(-1 / (2 * z) - epsilon * z)
        for one, other in ((here, there), (there, here)):
            assert np.maximum(one - np.exp(epsilon) * other, 0).sum() <= charged + 1e-12


def test_a_name_of_one_user_is_never_shown_and_a_name_of_all_always() -> None:
    histogram = NoisyHistogram(10, 2.0, 1e-12)  # fifty draws from entropy: no test in a million may fail by chance
    counts = {f"mine {number}": 1 for number in range(10)} | {f"ours {number}": 500 for number in range(10)}
    for _ in range(50):
        assert sorted(histogram.release(counts)) == [f"ours {number}" for number in range(10)]


def test_names_come_by_their_counts_and_equal_ones_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    histogram = NoisyHistogram(1, 0.05, 1e-7)
    assert histogram.release({"rare": 1000, "common": 9000, "usual": 5000}) == ["common", "usual", "rare"]
    monkeypatch.setattr(NoisyHistogram, "draw", lambda self, counts: dict.fromkeys(counts, 7))
    assert histogram.release({"b": 5, "c": 5, "a": 5}) == ["a", "b", "c"]


def test_no_name_at_all_is_a_release_too() -> None:
    assert NoisyHistogram(5, 1.0, 1e-6).release({}) == []


@pytest.mark.parametrize(
    ("names", "z", "delta"),
    [
        (0, 1.0, 1e-6), (2**16 + 1, 1.0, 1e-6), (5, 0.0, 1e-6), (5, math.inf, 1e-6), (5, 1.0, 0.0), (5, 1.0, 1.0),
        (9, 1e9, 1e-6),
    ],
)  # fmt: skip
def test_what_has_no_guarantee_is_refused(names: int, z: float, delta: float) -> None:
    with pytest.raises(SottoError):
        NoisyHistogram(names, z, delta)


@pytest.mark.parametrize("z", [1.3, 2.7, 0.9])
def test_the_chance_to_show_is_of_the_scale_that_is_drawn(z: float) -> None:
    histogram = NoisyHistogram(1, z, 1e-9)
    scale = Scale.at_least(histogram.noise_std)
    drawn = scale.mantissa * 2.0**scale.exponent
    assert drawn > histogram.noise_std
    for threshold in (histogram.threshold, 2 * histogram.threshold):
        assert histogram.chance_to_show(threshold) >= special.ndtr((1.5 - threshold) / drawn) * (1 + 1e-12)


def test_a_noisy_count_has_the_noise_that_is_charged(monkeypatch) -> None:
    """Chi-squared against the rounded Gaussian, both ways: a noise of another scale fails."""
    count, draws = NoisyCount(4.0), 20_000
    assert count.event() == SampledGaussian(4.0, "poisson", 1.0)
    drawn = np.asarray(rounded_gaussian(b"k" * 32, draws, count.noise_std))
    noise = iter(drawn)
    monkeypatch.setattr("sottovoce.privacy.histogram.rounded_gaussian", lambda key, size, std: np.array([next(noise)]))
    found = np.array([count.draw(1000) - 1000 for _ in range(draws)])
    edges = np.arange(-12, 14) - 0.5
    seen = np.histogram(found, edges)[0]

    def p_value(std: float) -> float:
        chances = np.diff(special.ndtr(edges / std))
        inside = seen.sum()
        return stats.chisquare(seen, chances / chances.sum() * inside).pvalue

    assert p_value(4.0) > 1e-3
    assert p_value(3.7) < 1e-3
    assert p_value(4.3) < 1e-3


def test_every_noisy_count_draws_fresh_noise_from_the_system() -> None:
    count = NoisyCount(1e6)
    assert len({count.draw(1000) for _ in range(5)}) == 5
