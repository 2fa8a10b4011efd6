"""Noise that is correlated over rounds, tested by distribution: accepted at its covariance, refused at 0.8 of it."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.privacy.sampling import InTurn
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting.matrices import Banded, Blt, StrategyMatrix

Z, S, ROUNDS, STREAMS = 0.7, 1.3, 11, 20_000
FIXED = FixedDenominator(4.0)
SAMPLER = InTurn(cohort=4, users=16, seed=0)
MATRICES = {"banded": Banded((1.0, 0.5, 0.375, 0.3)), "blt": Blt((0.3, 0.2), (0.9, 0.4))}


def mechanism_of(matrix: StrategyMatrix, estimator=FIXED) -> Mechanism:
    return Mechanism(SAMPLER, FlatClip(S), estimator, Z, matrix=matrix, participation=SAMPLER.participation(ROUNDS))


@lru_cache
def simulated(mechanism: Mechanism) -> np.ndarray:
    """The noise of every round (rows) in many coordinates, each a stream of its own."""
    with jax.enable_x64(True):
        nothing = Estimate((jnp.zeros(STREAMS, jnp.float64),))
    state, secrets, found = mechanism.init_noise(nothing.update), Secrets.seeded(4), []
    for number in range(1, ROUNDS + 1):
        key = secrets.noise_key(number)
        noised, state = mechanism.add_noise(nothing, state, number, np.array([S], np.float32), key)
        found.append(np.asarray(noised.update[0], np.float64))
    return np.array(found)


def inverse_of(matrix: StrategyMatrix) -> np.ndarray:
    """C⁻¹: w = C⁻¹ m."""
    column = matrix.coefficients(ROUNDS)
    return np.linalg.inv([[column[i - j] if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])


def whitened(noise: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    return np.linalg.solve(np.linalg.cholesky(covariance), noise)


@pytest.mark.parametrize("kind", MATRICES)
def test_noise_of_all_rounds_together_has_the_covariance_of_its_matrix(kind):
    matrix = MATRICES[kind]
    mechanism = mechanism_of(matrix)
    std = Z * matrix.sensitivity(mechanism.participation) * S / 4
    assert mechanism.noise_std(1, np.array([S], np.float32))[0] == pytest.approx(std)
    noise, inverse = simulated(mechanism), inverse_of(matrix)
    covariance = std**2 * inverse @ inverse.T
    # If the covariance is right, whitened rounds are independent and standard normal: so is every direction of them.
    white = whitened(noise, covariance)
    observed = white @ white.T / STREAMS
    error = np.sqrt((1 + np.eye(ROUNDS)) / STREAMS)
    assert (np.abs(observed - np.eye(ROUNDS)) < 4.5 * error).all()
    assert stats.kstest(white.ravel()[::7], "norm").pvalue > 1e-3
    chi = stats.chi2(white.size)
    assert chi.sf(np.sum(np.square(white))) > 1e-3
    for wrong in (0.8 * covariance, covariance / 0.8):  # 0.8 of the variance
        assert not 1e-9 < chi.cdf(np.sum(np.square(whitened(noise, wrong)))) < 1 - 1e-9


@pytest.mark.parametrize("kind", MATRICES)
def test_rounds_are_correlated_and_not_independent(kind):
    """The covariance of independent noise is refused: the test above can tell them apart."""
    noise = simulated(mechanism_of(MATRICES[kind]))
    white = noise / noise.std()
    observed = white @ white.T / STREAMS
    assert np.abs(observed - np.diag(np.diag(observed))).max() > 20 / np.sqrt(STREAMS)


def test_the_estimator_without_a_public_step_gets_the_same_correlations():
    matrix = MATRICES["blt"]
    mechanism = mechanism_of(matrix, ClippedDenominator(4.0))
    std = Z * matrix.sensitivity(mechanism.participation) * 2 * S / 5
    inverse = inverse_of(matrix)
    white = whitened(simulated(mechanism), std**2 * inverse @ inverse.T)
    assert np.abs(white @ white.T / STREAMS - np.eye(ROUNDS)).max() < 7 / np.sqrt(STREAMS)
