"""The CUDA kernels of a table of logits, emulated on a CPU, against their plain twins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import table_cuda
from sottovoce.kernels.any_users import Table, Target, plain_softmax
from sottovoce.kernels.lstm_users import Step
from sottovoce.kernels.table_cuda import Shape

USERS, UNIT, RATE = 2, 2.0**-9, 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "unit", "biased", "compared", "stored", "spread"),
    [
        (48, False, False, False, "float16", 1.0),
        (304, False, True, False, "float16", 8.0),  # logits of hundreds: the offset moves
        (80, True, True, False, "float16", 1.0),
        (96, True, False, True, "float16", 1.0),
        (32, True, True, True, "float32", 1.0),
        (128, False, True, False, "float32", 1.0),
    ],
)
def test_the_kernels_compute_what_their_plain_twins_compute(
    size, unit, biased, compared, stored, spread, emulated, monkeypatch
):
    monkeypatch.setattr(table_cuda, "PART", 256)
    monkeypatch.setattr(table_cuda, "GROUP", 256)
    check_kernels(size, unit, biased, compared, stored, spread)


@pytest.mark.slow
@pytest.mark.parametrize("emulated", ["late"], indirect=True)
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("bar_wait(&arrived[t & 1], (t >> 1) & 1);", ""),
        ("bar_wait(&made[t & 1], (t >> 1) & 1);", ""),
        ("    pair_sync();\n    if (tid == 0 && t + 2 < tiles) fetch(t + 2);", ""),
        ("    const bool raised =", "    if (tid == 0 && t + 2 < tiles) fetch(t + 2);\n    const bool raised ="),
        ("if (v0 < last) bar_wait(bar, turn);", ""),
        ("    wgmma_wait(s);\n    IF_COMPARED(pin(theirs);)", ""),
        ("      wgmma_wait<0>();\n      pin(c);", "pin(c);"),
    ],
)
def test_a_kernel_that_does_not_wait_is_found(there, instead, emulated, monkeypatch):
    monkeypatch.setattr(table_cuda, "PART", 768)
    monkeypatch.setattr(table_cuda, "GROUP", 768)
    real = table_cuda.source
    assert real(table_cuda.Shape(80, 48, False, False, False, "float16")).count(there) == 1
    monkeypatch.setattr(table_cuda, "source", lambda shape: real(shape).replace(there, instead))
    with pytest.raises((AssertionError, jax.errors.JaxRuntimeError)):
        check_kernels(48, False, False, False, "float16", 1.0, words=744)


def check_kernels(size, unit, biased, compared, stored, spread, words=328):
    tokens, rng = 48, np.random.default_rng(size)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def narrow(values):
        return values.astype(jnp.bfloat16)

    scale = jnp.asarray([1e-3, -1.0])
    delta = (30 * normal(USERS, words, size)).astype(stored)
    table = Table(narrow(0.3 * spread * normal(words, size)), delta, scale, None, unit)
    share = jnp.where(jnp.arange(tokens) < 40, 1 / 40, 0.0) * jnp.ones((USERS, 1))  # the last ones count for nothing
    target = Target(jnp.asarray(rng.integers(0, words, (USERS, tokens)), jnp.int32), share)
    if biased:
        table = table._replace(bias=normal(USERS, words))
    if compared:
        other = (narrow(normal(USERS, tokens, size)), jnp.full((USERS, tokens), 9.0), normal(words) if biased else None)
        target = Target(target.tokens, target.share, 0.3, *other)
    outputs = narrow(3 * normal(USERS, tokens, size))
    step = Step(scale, jnp.full(USERS, UNIT), RATE)
    plain = plain_softmax(jnp.bfloat16, jnp.dtype(stored))
    scores = plain.scores(outputs, table, target)
    new, squares, of_bias = plain.step_table(outputs, table, target, scores.level, step)

    assert table_cuda.fits(Shape(tokens, size, unit, biased, compared, stored))
    fast = table_cuda._scores(outputs, table, target)
    kept, fast_squares, fast_of_bias = table_cuda._step_table(outputs, table, target, scores.level, step)
    # The norm of a row may differ in its last bit, and turn a number of the row to the next in bfloat16.
    np.testing.assert_allclose(fast.level[0], scores.level[0], rtol=1e-6, atol=5e-4 if unit else 1e-4)
    assert distance(fast.mean[0], scores.mean[0]) < 0.005
    if compared:
        assert distance(fast.other[0], scores.other[0]) < 0.005
    before = np.float64(delta[0]) * (1e-3 / (UNIT if stored == "float16" else 1))
    assert distance(np.float64(kept[0]) - before, np.float64(new[0]) - before) < 0.01
    np.testing.assert_allclose(fast_squares[0], squares[0], rtol=1e-3)
    if biased:
        # The second pass rounds the rows, and divides by their norms afterwards.
        assert distance(fast_of_bias[0], of_bias[0]) < (0.005 if unit else 1e-3)
    # The second user has finished: nothing of theirs changes.
    np.testing.assert_array_equal(kept[1], delta[1])


def distance(found, wanted) -> float:
    found, wanted = np.float64(found), np.float64(wanted)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_a_machine_without_a_gpu_has_no_kernels():
    assert jax.default_backend() == "cpu"
    assert table_cuda.softmax(Shape(80, 96, True, False, False, "float16")) is None
