"""What is charged for a histogram bounds what it does, and only names that many share are shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from sottovoce.errors import SottoError
from sottovoce.privacy.events import ThresholdedHistogram
from sottovoce.privacy.histogram import NoisyHistogram

SETTINGS = [(1, 0.1), (1, 4.0), (2, 0.7), (25, 2.299), (400, 4.366), (2**16, 8.0)]


@pytest.mark.parametrize(("names", "z"), SETTINGS)
def test_the_charge_is_an_upper_bound_of_what_opendp_says(names: int, z: float) -> None:
    histogram = NoisyHistogram(names, z, 5e-7)
    rho, delta = histogram.cost()
    assert rho <= 1 / (2 * z**2)
    assert delta <= 5e-7
    assert histogram.event() == ThresholdedHistogram(z, 5e-7)


@pytest.mark.parametrize(("names", "z"), SETTINGS)
def test_the_threshold_is_the_smallest_that_keeps_delta(names: int, z: float) -> None:
    histogram = NoisyHistogram(names, z, 5e-7)
    assert histogram._cost(histogram.threshold - 1)[1] > 5e-7
    # Union over the names of one user, with the tail of a Gaussian: a cross-check by hand.
    by_hand = 1 - histogram.noise_std * special.ndtri(5e-7 / names)
    assert abs(histogram.threshold - by_hand) < 2 + 0.01 * by_hand


def discrete_profile(names: int, std: float, epsilons: np.ndarray) -> np.ndarray:
    """δ(ε) when a user moves `names` counts by one (Canonne et al. 2020, theorem 7).

    All that can be seen of the user is in the sum of those counts, whose noise is a discrete Gaussian of `names` times
    the variance (to 16 digits when the standard deviation is 2 or more).
    """
    variance = names * std**2
    reach = int(12 * math.sqrt(variance)) + 2 * names
    values = np.arange(-reach, reach + 1)
    chances = np.exp(-(values.astype(float) ** 2) / (2 * variance))
    tails = np.append(np.cumsum((chances / chances.sum())[::-1])[::-1], 0.0)
    above = lambda bound: tails[np.clip(np.floor(bound).astype(int) + 1 + reach, 0, len(tails) - 1)]  # noqa: E731
    centre = epsilons * variance / names
    return above(centre - names / 2) - np.exp(epsilons) * above(centre + names / 2)


@pytest.mark.parametrize("names", [1, 3, 25, 400])
@pytest.mark.parametrize("z", [0.15, 0.7, 1.0, 2.3, 8.0])
def test_noise_on_whole_numbers_hides_a_user_as_well_as_the_gaussian_that_is_charged(names: int, z: float) -> None:
    epsilons = np.linspace(0, 8 / z + 1 / (2 * z**2), 3001)
    charged = special.ndtr(1 / (2 * z) - epsilons * z) - np.exp(
        epsilons + special.log_ndtr(-1 / (2 * z) - epsilons * z)
    )
    seen = charged > 1e-13
    real = discrete_profile(names, NoisyHistogram(names, z, 1e-7).noise_std, epsilons)
    assert (real[seen] <= charged[seen] + 1e-15).all()
    if names > 1 and z * math.sqrt(names) > 2:  # without the little more of noise it would not
        bare = discrete_profile(names, z * math.sqrt(names), epsilons)
        assert (bare[seen] > charged[seen] + 1e-15).any()


def test_a_name_of_one_user_is_never_shown_and_a_name_of_all_always() -> None:
    histogram = NoisyHistogram(10, 2.0, 1e-7)
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
