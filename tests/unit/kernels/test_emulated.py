"""The CUDA kernels of the LSTM against their plain twins without a GPU: their source, compiled for this CPU.

`emulated_cuda.h` has what they write in assembler. So this shows which numbers they multiply and where they put them,
that no thread waits for another in vain, and that none reads or overwrites what a copy or a product still needs. Speed,
and the order in which writes are seen, only a GPU shows: see `test_lstm_cuda.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import hopper, lstm_cuda, lstm_users
from sottovoce.kernels.lstm_users import Step, offset_of

pytestmark = pytest.mark.slow

USERS, WORDS, TOKENS, SIZE, HIDDEN = 3, 733, 80, 96, 256  # 733: the last tile of a table is not full
FINISHED = 1  # the user who has


@pytest.fixture(params=[jnp.float16, jnp.float32], ids=["float16", "float32"])
def kind(request, emulated):
    """The kind of the updates between steps. While it is in use, the kernels run here."""
    return request.param


def normal(seed, *shape, kind=jnp.bfloat16, size=1.0):
    return (size * jax.random.normal(jax.random.key(seed), shape)).astype(kind)


def scales(groups=0):
    """One for each user, or for each of their groups of rows; below 0 for the user who has finished."""
    found = (0.02 * jnp.linspace(1, 2, USERS * max(1, groups))).reshape(USERS, *[groups] * bool(groups))
    return found.at[FINISHED].set(-1.0)


def step_of(kind, scale):
    return Step(scale, jnp.full(USERS, 2.0**-6 if kind == jnp.float16 else 1.0), 0.5)


def assert_same(one, other, relative):
    """Closer than `relative` of all numbers together, but for the user who has finished."""
    users = [user for user in range(USERS) if user != FINISHED]
    for ours, theirs in zip(one, other, strict=True):
        ours, theirs = (np.asarray(each, np.float64)[users] for each in (ours, theirs))
        assert ours.shape == theirs.shape
        assert np.linalg.norm(ours - theirs) <= relative * np.linalg.norm(theirs)


def table(kind):
    return (
        normal(1, USERS, TOKENS, SIZE, size=3.0),
        normal(2, WORDS, SIZE, size=0.1),
        normal(3, USERS, WORDS, SIZE, kind=kind),
    )


def test_the_softmax_is_that_of_the_plain_products(kind):
    outputs, received, delta = table(kind)
    given = outputs, received, delta, scales(), offset_of(outputs)
    assert_same(lstm_cuda._scores(*given)[:2], lstm_users._scores(*given)[:2], 1e-3)


def test_a_step_of_the_table_and_its_squares_are_those_of_the_plain_products(kind, monkeypatch):
    outputs, received, delta = table(kind)
    step, offset = step_of(kind, scales()), offset_of(outputs)
    level = offset + jnp.log2(lstm_users._scores(outputs, received, delta, abs(scales()), offset)[0])
    share = jnp.where(jnp.arange(TOKENS) < 70, 1 / 70, 0.0) * jnp.ones((USERS, 1))
    ids = jax.random.randint(jax.random.key(5), (2, USERS, TOKENS), 0, WORDS)
    given = outputs, normal(4, USERS, TOKENS, SIZE, size=0.01), received, delta, level, share, *ids, step, None
    (new, squares), (expected, expected_squares) = lstm_cuda._step_table(*given), lstm_users._step_table(*given)
    assert_same([squares], [expected_squares], 1e-3)
    np.testing.assert_array_equal(new[FINISHED], delta[FINISHED])
    monkeypatch.setattr(lstm_cuda, "MANY", 1)  # the same to the bit, however many rows a program has
    again, their_squares = lstm_cuda._step_table(*given)
    np.testing.assert_array_equal(again, new)
    assert np.array_equal(np.delete(their_squares, FINISHED), np.delete(squares, FINISHED))

    def change(stored):
        stored = np.asarray(stored, np.float64) * np.asarray(step.unit, np.float64)[:, None, None]
        return stored - np.asarray(scales(), np.float64)[:, None, None] * np.asarray(delta, np.float64)

    assert_same([change(new)], [change(expected)], 0.01)  # of bfloat16 numbers, rounded before or after they are scaled


@pytest.mark.parametrize("emulated", ["late"], indirect=True)
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("  bar_wait(&kept, 0);\n", ""),
        ("if (v0 < last) bar_wait(bar + s, (round >> 1) & 1);", ""),
        ("const uint4 u = at_ < AT_HAND ?", "const uint4 u = at_ < 2 * AT_HAND ?"),
        ("t.y == vb", "t.y == va"),
        ("if (v + 64 >= last || ", "if (v + 64 >= last && "),
    ],
    ids=["kept words", "rows", "words that are not kept", "targets", "groups"],
)
def test_a_fault_in_a_step_of_the_table_is_found(there, instead, emulated, monkeypatch):
    real = lstm_cuda.source
    assert real("float16").count(there) == 1
    monkeypatch.setattr(lstm_cuda, "source", lambda stored: real(stored).replace(there, instead))
    with pytest.raises((AssertionError, jax.errors.JaxRuntimeError)):
        test_a_step_of_the_table_and_its_squares_are_those_of_the_plain_products(jnp.float16, monkeypatch)


@pytest.mark.parametrize(("height", "width"), [(4 * HIDDEN, HIDDEN), (4 * HIDDEN, SIZE), (HIDDEN, SIZE)])
def test_a_step_of_a_weight_and_its_squares_are_those_of_the_plain_products(kind, height, width):
    left, right = normal(1, USERS, TOKENS, height, size=0.1), normal(2, USERS, TOKENS, width)
    delta, step = normal(3, USERS, height, width, kind=kind), step_of(kind, scales(height // HIDDEN))
    (new, squares), expected = lstm_cuda._step(left, right, delta, step), lstm_users._step(left, right, delta, step)
    assert_same((new, squares), expected, 1e-4)
    np.testing.assert_array_equal(new[FINISHED], delta[FINISHED])


def test_the_recurrence_and_its_gradient_are_those_of_the_plain_products(kind):
    words, bias = (
        normal(1, USERS, 10, 8, 4 * HIDDEN, size=0.7),
        normal(2, USERS, 4 * HIDDEN, kind=jnp.float32, size=0.3),
    )
    recurrent, delta = normal(3, 4 * HIDDEN, HIDDEN, size=0.06), normal(4, USERS, 4 * HIDDEN, HIDDEN, kind=kind)
    hidden, cell = normal(5, USERS, 8, HIDDEN, size=0.3), normal(6, USERS, 8, HIDDEN, kind=jnp.float32, size=0.4)
    given = words, bias, recurrent, delta, scales(4), hidden, cell
    expected = lstm_users._read(*given)
    assert_same(lstm_cuda._read(*given), expected, 1e-3)
    gates, cells, *_ = expected
    given = normal(7, USERS, 10, 8, HIDDEN, size=0.01), gates, cells, recurrent, delta, scales(4)
    assert_same(lstm_cuda._read_back(*given), lstm_users._read_back(*given), 1e-3)


@pytest.mark.parametrize("cluster", ["", "__cluster_dims__(2, 1, 1)"], ids=["a block", "a cluster"])
def test_a_thread_that_does_not_come_is_found(cluster, emulated, capfd):
    kernel = (
        f'extern "C" __global__ void {cluster} lost_(float* out) {{'
        " if (threadIdx.x != 7) __syncthreads(); out[threadIdx.x] = 1; }"
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="exit status 3"):
        hopper.launch("lost_", hopper.source({}, []) + kernel, 2, 0, (2, 1), [], [hopper.float32(64)])[
            0
        ].block_until_ready()
    assert "63 threads of block" in capfd.readouterr().err
