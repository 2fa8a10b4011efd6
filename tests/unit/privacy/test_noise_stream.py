"""Streams of correlated noise, in whole numbers: the noise is C⁻¹ m, and what is released follows from C x + m."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.privacy.noise_stream import MOST_STD, stream_of
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity

ROUNDS, SIZE, STD = 21, 50, 2.0**41
MATRICES = {
    "blt": Blt((0.3, 0.2, 0.01), (0.9, 0.4, 0.999)),
    "banded": Banded((1.0, 0.5, 0.375, 0.3)),
}


def drawn(seed: int) -> np.ndarray:
    """m of every round, in whole steps."""
    return np.rint(STD * np.random.default_rng(seed).standard_normal((ROUNDS, SIZE)))


def play(stream, drawn) -> np.ndarray:
    """w of every round."""
    state, found = stream.init(SIZE), []
    with jax.enable_x64(True):
        for vector in drawn:
            noise, state = stream.next(state, jnp.asarray(vector))
            assert state.dtype == jnp.float64
            assert bool(jnp.all(state == jnp.rint(state)))
            found.append(np.asarray(noise))
    return np.array(found)


def dense(matrix) -> np.ndarray:
    column = matrix.coefficients(ROUNDS)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])


@pytest.mark.parametrize("kind", MATRICES)
def test_noise_is_the_inverse_of_the_matrix_times_independent_noise(kind):
    matrix = MATRICES[kind]
    stream = stream_of(matrix, ROUNDS)
    given = drawn(1)
    exact = np.linalg.solve(dense(matrix), given)
    inverse = np.abs(np.linalg.inv(dense(matrix))).sum(axis=1).max()
    # Half a step for every rounding, and what float64 loses in the solution it is compared with.
    assert np.abs(play(stream, given) - exact).max() <= stream.rounding * inverse + 1e-12 * STD


@pytest.mark.parametrize("kind", MATRICES)
def test_what_one_user_moves_the_means_is_the_matrix_times_their_updates_up_to_the_declared_rounding(kind):
    """The proof of `noise_stream.py` in numbers: two populations, one release, and the m that each needs for it."""
    matrix, generator = MATRICES[kind], np.random.default_rng(2)
    stream = stream_of(matrix, ROUNDS)
    released = play(stream, drawn(3))
    moved = np.rint(0.1 * STD * generator.standard_normal((ROUNDS, SIZE)))
    means = []
    for data in (np.zeros((ROUNDS, SIZE)), moved):
        # m is what the stream must be given so that its noise is released - data.
        state, needed = stream.init(SIZE), []
        with jax.enable_x64(True):
            for wanted in released - data:
                nothing, _ = stream.next(state, jnp.zeros(SIZE))
                needed.append(wanted - np.asarray(nothing))
                _, state = stream.next(state, jnp.asarray(needed[-1]))
        means.append(np.array(needed))
    difference = means[0] - means[1]
    assert np.abs(difference - dense(matrix) @ moved).max() <= stream.rounding
    assert np.abs(difference - dense(matrix) @ moved).max() > 0  # there is rounding to be bounded


@pytest.mark.parametrize("kind", MATRICES)
def test_a_stream_keeps_as_many_vectors_as_its_matrix_says(kind):
    stream = stream_of(MATRICES[kind], ROUNDS)
    assert stream.init(7).shape == (MATRICES[kind].buffers(ROUNDS), 7)


def test_independent_noise_is_what_is_drawn_on_the_grid_of_the_sum():
    stream, given = stream_of(Identity(), ROUNDS), np.arange(7)
    assert stream.init(7) == ()
    noise, state = stream.next((), given)
    np.testing.assert_array_equal(noise, given)
    assert (state, stream.finer(2.0**27), stream.rounding) == ((), 0, 0)


@pytest.mark.parametrize("std", [1e-3, 1.0, 5.0, 2.0**29, 2.0**41, MOST_STD])
def test_steps_are_so_fine_that_noise_has_forty_one_bits_and_fits(std):
    scaled = std * 2.0 ** stream_of(MATRICES["blt"], ROUNDS).finer(std)
    assert scaled <= MOST_STD
    assert scaled >= 2.0**40 or std < 1
