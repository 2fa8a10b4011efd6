"""Skellam noise: exact mass, the program for many as the twin to read, and shares that add up to one law."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import ive

from sottovoce.privacy import noise
from sottovoce.privacy import skellam as law
from sottovoce.privacy.noise import CELLS
from sottovoce.privacy.skellam import log_mass, scale_of, skellam, skellam_one

KEY = bytes(range(32))
STD, SHARES, SIZE = 2.0**20, 112, 3072  # coordinates of one program


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Noise of standard deviation `STD`, in 112 streams."""
    return np.stack([np.asarray(skellam(KEY, SIZE, STD, stream)) for stream in range(SHARES)]).astype(float)


def exact_chance(scale, cell: int, steps: int) -> Decimal:
    """With which a candidate is kept, to 30 digits."""
    with localcontext(prec=60):
        variance = Decimal(scale.mantissa) ** 2 * Decimal(2) ** (2 * scale.exponent)
        density = log_mass(variance, steps, 30) + (2 * law._pi(40) * variance).ln() / 2
        return (density + Decimal(cell) ** 2 / (2 * CELLS**2) - Decimal(law._headroom(scale))).exp()


@pytest.mark.parametrize(("variance", "k"), [(1, 0), (1, 3), (7.5, -20), (100, 35), (4096, 0), (4096, 600)])
def test_the_mass_is_that_of_the_bessel_function(variance, k):
    assert float(log_mass(Decimal(variance), k, 30)) == pytest.approx(math.log(ive(abs(k), variance)), abs=1e-12)


def test_the_mass_is_that_of_the_difference_of_two_poisson_numbers():
    """Added up by hand, in forty digits: the last digits agree too."""
    mean, k = Decimal(6), 4
    with localcontext(prec=60):
        poisson = [(-mean).exp()]
        for number in range(1, 160):
            poisson.append(poisson[-1] * mean / number)
        exact = sum(one * other for one, other in zip(poisson[k:], poisson, strict=False)).ln()
        assert abs(log_mass(2 * mean, k, 40) - exact) < Decimal(10) ** -40


@pytest.mark.parametrize("std", [2.0**12, 2.0**22.3, 2.0**27, 2.0**50])
def test_many_at_once_are_what_one_by_one_are(std):
    one_by_one = [skellam_one(KEY, place, scale_of(std), 1) for place in range(4)]
    np.testing.assert_array_equal(skellam(KEY, 4, std, 1), one_by_one)


@pytest.mark.parametrize("std", [2.0**12, 2.0**15])
def test_the_program_knows_the_chance_within_its_error(std):
    """Against the exact mass: in the middle, at one deviation, and as far out as 64 bits reach."""
    scale = scale_of(std)
    exact, error, found = [], [], []
    with jax.enable_x64(True):
        for cell in (0, 64, 300, 590):
            steps = math.ceil((cell + 0.4) / CELLS * std)
            exact.append(float(exact_chance(scale, cell, steps)))
            chance, most = law._chance(np.float64(cell), 0, np.asarray(steps), law._numbers(scale))
            found.append(float(chance))
            error.append(float(most))
    assert np.all(np.abs(np.array(found) - exact) < np.array(error) / 4)
    assert np.all(np.array(exact) < 1)
    assert np.all(np.array(exact) > 0.8)  # where `_EXP_ERROR` is the error of exp


def test_a_candidate_is_never_kept_with_a_chance_above_1():
    """At every edge of a cell, also the last one."""
    for std in (2.0**12, 2.0**20):
        scale = scale_of(std)
        for cell in (1, 64, 700, law.REACH * CELLS - 1):
            place = 0  # the nearest whole number before the cell, where the mass is largest
            assert law._kept(scale, cell, place, 2**64 - 1, 64) is False
    assert law._kept(scale, law.REACH * CELLS, 0, 0, 64) is False


def test_decisions_that_are_close_are_left_to_more_bits():
    scale, cell, place = scale_of(2.0**20), 100, 2**63
    coin = int(exact_chance(scale, cell, noise.steps_of(scale, cell, place, 64)) * 2**64)
    assert [law._kept(scale, cell, place, coin + more, 64) for more in (-1, 0, 1)] == [True, None, False]
    wide = scale_of(2.0**50)  # a place whose following bits may change the nearest whole number
    unsettled = next(place for place in range(2**63, 2**64) if noise.steps_of(wide, 3, place, 64) is None)
    assert law._kept(wide, 3, unsettled, 0, 64) is None


def test_the_law_is_skellam(drawn):
    """Chi-squared, by twentieths and by the variance; noise of 0.98 or 1.02 of the variance is rejected."""
    found, size = drawn.ravel() / STD, drawn.size
    counts = np.histogram(stats.norm.cdf(found), np.linspace(0, 1, 21))[0]  # it is a Gaussian to 2^-40
    assert stats.chisquare(counts).pvalue > 1e-3
    chi, squares = stats.chi2(size), np.sum(found**2)
    assert 1e-3 < chi.cdf(squares) < 1 - 1e-3
    for factor in (0.98, 1.02):
        assert not 1e-6 < chi.cdf(squares / factor) < 1 - 1e-6
    assert abs(np.mean(found)) < 4 / math.sqrt(size)
    assert abs(stats.kurtosis(found)) < 4 * math.sqrt(24 / size)
    assert stats.chisquare(np.unique(drawn % 2, return_counts=True)[1]).pvalue > 1e-3  # also in its last bit


def test_shares_add_up_to_the_law_of_one(drawn):
    """The sum of n independent shares has n times their variance, and so does their scale, which is never below."""
    chi, squares = stats.chi2(SIZE), np.sum((drawn.sum(axis=0) / STD) ** 2) / SHARES
    assert 1e-3 < chi.cdf(squares) < 1 - 1e-3
    assert not 1e-3 < chi.cdf(squares / 0.85) < 1 - 1e-3
    share = scale_of(STD / math.sqrt(SHARES))
    total = SHARES * share.mantissa**2 * 2.0 ** (2 * share.exponent)
    assert STD**2 <= total <= STD**2 * (1 + 2.0**-29)


def test_what_64_bits_do_not_settle_is_settled_by_more(monkeypatch):
    expected = np.asarray(skellam(KEY, 3, 2.0**20))

    def doubtful(*arguments):
        steps, settled, _ = real(*arguments)
        return noise.Drawn(steps * 0 + 7, settled.at[:3].set(False), False)

    real = noise._draw
    monkeypatch.setattr(noise, "_draw", doubtful)
    np.testing.assert_array_equal(skellam(KEY, 3, 2.0**20), expected)


@pytest.mark.parametrize("std", [0.0, 2.0**11, 2.0**51, math.inf, math.nan])
def test_noise_that_has_no_room_is_refused(std):
    with pytest.raises(ValueError, match="steps"):
        skellam(KEY, 3, std)


def test_streams_and_keys_differ():
    one, other, third = (
        np.asarray(skellam(key, 50, 1e6, stream)) for key, stream in ((KEY, 0), (KEY, 1), (KEY[::-1], 0))
    )
    assert not np.any((one == other) | (one == third))
    assert skellam(KEY, 0, 1e6).shape == (0,)
