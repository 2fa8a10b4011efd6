"""The kernels of a table of logits, run by Pallas' interpreter, against their plain twins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import table as module
from sottovoce.kernels.any_users import Table, Target, plain_softmax
from sottovoce.kernels.lstm_users import Step

USERS, WORDS, TOKENS = 2, 90, 16


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "PART", 64)
    monkeypatch.setattr(module, "GROUP", 64)


@pytest.mark.parametrize(
    ("size", "unit", "biased", "compared"),
    [
        pytest.param(20, True, False, False, marks=pytest.mark.slow),
        pytest.param(40, False, True, False, marks=pytest.mark.slow),
        pytest.param(24, True, False, True, marks=pytest.mark.slow),
        pytest.param(24, False, True, True, marks=pytest.mark.slow),
    ],
)
def test_the_kernels_compute_what_their_plain_twins_compute(size, unit, biased, compared):
    rng = np.random.default_rng(size)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def narrow(values):
        return values.astype(jnp.bfloat16)

    table = Table(
        narrow(normal(WORDS, size)),
        normal(USERS, WORDS, size).astype(jnp.float16),
        jnp.asarray([0.1, -1.0]),
        normal(USERS, WORDS) if biased else None,
        unit,
    )
    target = Target(jnp.asarray(rng.integers(0, WORDS, (USERS, TOKENS))), jnp.full((USERS, TOKENS), 1 / TOKENS))
    if compared:
        other = (narrow(normal(USERS, TOKENS, size)), jnp.full((USERS, TOKENS), 9.0), normal(WORDS) if biased else None)
        target = Target(target.tokens, target.share, 0.3, *other)
    outputs = narrow(normal(USERS, TOKENS, size))
    step = Step(table.scale, jnp.asarray([0.01, 0.02]), 0.5)
    results = []
    for softmax in (module.softmax(jnp.float16, interpret=True), plain_softmax(jnp.bfloat16, jnp.float16)):
        scores = jax.jit(lambda given, scores=softmax.scores: scores(given, table, target))(outputs)
        results.append(
            (scores, softmax.step_table(outputs, table, target, results[0][0].level if results else scores.level, step))
        )
    (fast, fast_step), (slow, slow_step) = results
    np.testing.assert_allclose(fast.level[0], slow.level[0], atol=1e-4)
    np.testing.assert_allclose(fast.mean[0], slow.mean[0], atol=0.02)
    assert (fast.other is None) == (not compared)
    if fast.other is not None:
        np.testing.assert_allclose(fast.other[0], slow.other[0], rtol=0.01, atol=0.02)
    np.testing.assert_allclose(np.float32(fast_step[0][0]), np.float32(slow_step[0][0]), rtol=0.01, atol=0.1)
    np.testing.assert_allclose(fast_step[1][0], slow_step[1][0], rtol=1e-3)
    # The second user has finished: nothing of theirs changes.
    np.testing.assert_array_equal(fast_step[0][1], table.delta[1])
    if biased:
        np.testing.assert_allclose(fast_step[2][0], slow_step[2][0], atol=1e-3, rtol=1e-3)


def test_rows_that_are_too_long_or_odd_numbers_of_tokens_have_no_kernels():
    assert module.fits(80, 256)
    assert not module.fits(80, 300)
    assert not module.fits(80, 650)
    assert not module.fits(77, 96)
