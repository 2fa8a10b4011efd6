"""The CUDA kernels of a table of logits, compiled for a CPU with `gpu.h`, against their plain twins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import table_cuda
from sottovoce.kernels.any_users import Table, Target, plain_softmax
from sottovoce.kernels.lstm_users import Step
from sottovoce.kernels.table_cuda import Shape

USERS, PART, GROUP, UNIT, RATE = 2, 256, 256, 2.0**-9, 0.5


def run_on_cpu(shape: Shape, folder: Path, arrays: dict) -> dict[str, np.ndarray]:
    """Both passes by the kernels' own source."""
    others = ["bias"] * shape.biased + ["their_outputs", "their_level"] * shape.compared
    others += ["their_bias"] * (shape.biased and shape.compared)
    calls = {
        "STORED": {"float16": "half", "float32": "float"}[shape.stored],
        "OTHERS": "".join(f"{name}, " for name in others),
        "MORE_STEP": ", of_bias.data()" * shape.biased,
        "MORE_SCORES": ", other.data()" * shape.compared,
    }
    defined = "".join(f"#define {name} {text}\n" for name, text in calls.items())
    here = Path(__file__).parent
    text = f"#define ON_CPU\n{defined}{table_cuda.source(shape)}{(here / 'table.cpp').read_text()}"
    (folder / "all.cpp").write_text(text)
    subprocess.run(
        ["g++", "-O1", "-w", "-std=c++17", f"-I{here}", "all.cpp", "-o", "table"], cwd=folder, check=True, timeout=60
    )
    for name, array in arrays.items():
        np.asarray(array).tofile(folder / name)
    subprocess.run(["./table"], cwd=folder, check=True, timeout=60)
    kinds = {"new": np.dtype(shape.stored)}
    names = ["most", "total", "mean", "other", "new", "squares", *["of_bias"] * shape.biased]
    return {name: np.fromfile(folder / name, kinds.get(name, np.float32)) for name in names}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler is here")
@pytest.mark.parametrize(
    ("size", "unit", "biased", "compared", "stored", "spread"),
    [
        (44, False, False, False, "float16", 1.0),
        (300, False, False, False, "float16", 8.0),  # logits of hundreds: the offset moves
        (72, False, True, False, "float16", 1.0),
        (96, True, False, True, "float16", 1.0),
        (28, True, True, True, "float32", 1.0),
    ],
)
def test_the_kernels_compute_what_their_plain_twins_compute(size, unit, biased, compared, stored, spread, tmp_path):
    words, tokens, rng = 328, 48, np.random.default_rng(size)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def narrow(values):
        return values.astype(jnp.bfloat16)

    scale = jnp.asarray([1e-3, -1.0])
    delta = (30 * normal(USERS, words, size)).astype(stored)
    table = Table(narrow(0.3 * spread * normal(words, size)), delta, scale, None, unit)
    target = Target(jnp.asarray(rng.integers(0, words, (USERS, tokens)), jnp.int32), jnp.full((USERS, tokens), 1 / 48))
    arrays: dict = {}
    if biased:
        table = table._replace(bias=normal(USERS, words))
        arrays |= {"bias": table.bias}
    if compared:
        other = (narrow(normal(USERS, tokens, size)), jnp.full((USERS, tokens), 9.0), normal(words) if biased else None)
        target = Target(target.tokens, target.share, 0.3, *other)
        arrays |= {"their_outputs": target.outputs, "their_level": target.level}
        arrays |= {"their_bias": target.bias} if biased else {}
    outputs = narrow(3 * normal(USERS, tokens, size))
    step = Step(scale, jnp.full(USERS, UNIT), RATE)
    plain = plain_softmax(jnp.bfloat16, jnp.dtype(stored))
    scores = plain.scores(outputs, table, target)
    new, squares, of_bias = plain.step_table(outputs, table, target, scores.level, step)

    shape = Shape(tokens, size, unit, biased, compared, stored)
    assert table_cuda.fits(shape, words)
    arrays |= {"sizes": np.array([words, PART, GROUP, USERS], np.int32), "targets": target.tokens, "delta": delta}
    arrays |= {"outputs": outputs, "received": table.received, "scale": scale, "share": target.share}
    arrays |= {"unit": step.unit if stored == "float16" else jnp.ones(USERS), "level": scores.level}
    arrays |= {"numbers": np.array([RATE, target.user_share], np.float32)}
    found = run_on_cpu(shape, tmp_path, arrays)

    fast = table_cuda.put_together(
        *(found[name].reshape(USERS, -1, tokens) for name in ("most", "total")),
        found["mean"].reshape(USERS, -1, tokens, size),
        found["other"].reshape(USERS, -1, tokens, size) if compared else None,
    )
    np.testing.assert_allclose(fast.level[0], scores.level[0], rtol=1e-6, atol=1e-4)
    assert distance(fast.mean[0], scores.mean[0]) < 0.005
    if compared:
        assert distance(fast.other[0], scores.other[0]) < 0.005
    kept = found["new"].reshape(USERS, words, size)
    before = np.float64(delta[0]) * (1e-3 / (UNIT if stored == "float16" else 1))
    assert distance(kept[0] - before, np.float64(new[0]) - before) < 0.01
    np.testing.assert_allclose(found["squares"].reshape(USERS, -1).sum(1)[0], squares[0], rtol=1e-3)
    if biased:
        assert distance(found["of_bias"].reshape(USERS, words)[0], of_bias[0]) < 1e-3
    # The second user has finished: nothing of theirs changes.
    np.testing.assert_array_equal(kept[1], np.asarray(delta[1]))


def distance(found, wanted) -> float:
    found, wanted = np.float64(found), np.float64(wanted)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_rows_that_are_too_long_or_odd_have_no_kernels():
    def fits(tokens, size, vocabulary=10_000, stored="float16"):
        return table_cuda.fits(Shape(tokens, size, False, False, False, stored), vocabulary)

    assert fits(80, 300)
    assert not fits(80, 650)  # its mean rows do not fit the registers
    assert not fits(80, 300, stored="float32")  # nor two blocks of rows the shared memory
    assert not fits(80, 97)
    assert not fits(77, 96)
    assert not fits(80, 300, vocabulary=10_001)


def test_a_machine_without_a_gpu_has_no_kernels():
    assert jax.default_backend() == "cpu"
    assert table_cuda.softmax(Shape(80, 96, True, False, False, "float16"), 10_000) is None
