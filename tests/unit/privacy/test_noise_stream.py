"""Streams of correlated noise, in whole numbers: the noise is C⁻¹ m, and what is released follows from C x + m."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.privacy.noise_stream import MOST_STD, finer, stream_of
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, Tree

ROUNDS, SIZE, STD = 21, 50, 2.0**41
MATRICES = {
    "blt": Blt((0.3, 0.2, 0.01), (0.9, 0.4, 0.999)),
    "banded": Banded((1.0, 0.5, 0.375, 0.3)),
    "tree": Tree(),
}


def drawn(stream, seed: int) -> list[list[np.ndarray]]:
    """m of every round, in whole steps."""
    generator = np.random.default_rng(seed)
    counts = [stream.draws(number) for number in range(1, ROUNDS + 1)]
    return [[np.rint(STD * generator.standard_normal(SIZE)) for _ in range(count)] for count in counts]


def play(stream, drawn) -> np.ndarray:
    """w of every round."""
    state, found = stream.init(SIZE), []
    with jax.enable_x64(True):
        for number, vectors in enumerate(drawn, 1):
            noise, state = stream.next(state, [jnp.asarray(vector) for vector in vectors], number)
            assert state.dtype == jnp.float64
            assert bool(jnp.all(state == jnp.rint(state)))
            found.append(np.asarray(noise))
    return np.array(found)


def dense(matrix) -> np.ndarray:
    column = matrix.coefficients(ROUNDS)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])


@pytest.mark.parametrize("kind", ["blt", "banded"])
def test_noise_is_the_inverse_of_the_matrix_times_independent_noise(kind):
    matrix = MATRICES[kind]
    stream = stream_of(matrix, ROUNDS)
    given = drawn(stream, 1)
    exact = np.linalg.solve(dense(matrix), np.array([vectors[0] for vectors in given]))
    inverse = np.abs(np.linalg.inv(dense(matrix))).sum(axis=1).max()
    # Half a step for every rounding, and what float64 loses in the solution it is compared with.
    assert np.abs(play(stream, given) - exact).max() <= stream.rounding * inverse + 1e-12 * STD


@pytest.mark.parametrize("kind", ["blt", "banded"])
def test_what_one_user_moves_the_means_is_the_matrix_times_their_updates_up_to_the_declared_rounding(kind):
    """The proof of `noise_stream.py` in numbers: two populations, one release, and the m that each needs for it."""
    matrix, generator = MATRICES[kind], np.random.default_rng(2)
    stream = stream_of(matrix, ROUNDS)
    released = play(stream, drawn(stream, 3))
    moved = np.rint(0.1 * STD * generator.standard_normal((ROUNDS, SIZE)))
    means = []
    for data in (np.zeros((ROUNDS, SIZE)), moved):
        # m is what the stream must be given so that its noise is released - data.
        state, needed = stream.init(SIZE), []
        with jax.enable_x64(True):
            for number, wanted in enumerate(released - data, 1):
                nothing, _ = stream.next(state, [jnp.zeros(SIZE)], number)
                needed.append(wanted - np.asarray(nothing))
                _, state = stream.next(state, [jnp.asarray(needed[-1])], number)
        means.append(np.array(needed))
    difference = means[0] - means[1]
    assert np.abs(difference - dense(matrix) @ moved).max() <= stream.rounding
    assert np.abs(difference - dense(matrix) @ moved).max() > 0  # there is rounding to be bounded


def test_a_release_of_the_tree_follows_from_its_noised_nodes_alone():
    """A node is the sum of its rounds plus m. Prefix sums from nodes are those of data plus noise, to the bit."""
    stream, generator = stream_of(Tree(), ROUNDS), np.random.default_rng(4)
    given = drawn(stream, 5)
    data = np.rint(1e6 * generator.standard_normal((ROUNDS, SIZE)))
    released = np.cumsum(play(stream, given) + data, axis=0)
    estimates: dict[tuple[int, int], np.ndarray] = {}  # by level and last round
    variances = [1.0]
    for number, vectors in enumerate(given, 1):
        for level, m in enumerate(vectors):
            noised = data[number - 2**level : number].sum(axis=0) + m
            if level:
                variances = [*variances[:level], 1 / (1 + 1 / (2 * variances[level - 1]))]
                children = estimates[level - 1, number - 2 ** (level - 1)] + estimates[level - 1, number]
                noised = children + np.rint(variances[level] * (noised - children))
            estimates[level, number] = noised
        prefix, end = np.zeros(SIZE), number
        while end:
            level = (end & -end).bit_length() - 1
            prefix, end = prefix + estimates[level, end], end - 2**level
        assert np.array_equal(released[number - 1], prefix)


@pytest.mark.parametrize("kind", MATRICES)
def test_a_stream_keeps_as_many_vectors_as_its_matrix_says(kind):
    stream = stream_of(MATRICES[kind], ROUNDS)
    assert stream.init(7).shape == (MATRICES[kind].buffers(ROUNDS), 7)


def test_the_tree_draws_once_for_every_node_that_a_round_completes():
    stream = stream_of(Tree(), 8)
    assert [stream.draws(number) for number in range(1, 9)] == [1, 2, 1, 3, 1, 2, 1, 4]


def test_independent_noise_has_no_stream():
    assert stream_of(Identity(), ROUNDS) is None


@pytest.mark.parametrize("std", [1e-3, 1.0, 5.0, 2.0**29, 2.0**41, MOST_STD])
def test_steps_are_so_fine_that_noise_has_forty_one_bits_and_fits(std):
    scaled = std * 2.0 ** finer(std)
    assert scaled <= MOST_STD
    assert scaled >= 2.0**40 or std < 1
