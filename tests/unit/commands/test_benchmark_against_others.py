"""The programs of `benchmarks/` that time this project next to others."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmark_modules import load_benchmark

OPTIONS = Namespace(users=6, slow_users=None, seconds=1.0, clip_every_step=True)


@pytest.fixture
def against():
    return load_benchmark("against_pfl")


def program(folder: Path, name: str, answer: str) -> str:
    """In the place of a Python: it is ready at once, and answers every turn the same."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho ready here\nwhile read line; do echo other; {answer}; done\n")
    path.chmod(0o755)
    return str(path)


def test_users_of_all_processes_count_and_a_program_that_fails_is_left_out(against, tmp_path):
    teams = {
        against.PFL: against.Team(against.PFL, program(tmp_path, "fails", "exit 1"), 2, OPTIONS),
        against.TORCH: against.Team(against.TORCH, program(tmp_path, "slow", "echo trained 3 6.0 2.0"), 2, OPTIONS),
        against.OURS: against.Team(against.OURS, program(tmp_path, "fast", "echo trained 60 2.0 10.0"), 1, OPTIONS),
    }
    try:
        found = against.measure(teams, 3)
    finally:
        for team in teams.values():
            team.end()
    assert found["run_by"] == {name: ["here"] for name in teams}
    assert found["users_per_second"]["turns"] == {against.TORCH: [1.0] * 3, against.OURS: [30.0] * 3}
    assert found["users_per_second"]["ratios"] == {against.TORCH: 30.0}
    assert found["users_per_core_second"]["medians"] == {against.TORCH: 1.5, against.OURS: 6.0}


def test_plain_jax_in_bfloat16_keeps_its_weights_in_float32():
    plain = load_benchmark("plain")
    model = jax.eval_shape(lambda: plain.new_model(jax.random.key(0), 48, 128))
    tokens = jax.ShapeDtypeStruct((2, 20, 8, 11), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    after = jax.eval_shape(lambda *given: plain.play_round(*given, 1, jnp.bfloat16), model, tokens, key)
    assert after == model
    assert "bf16" in str(jax.make_jaxpr(lambda *given: plain.play_round(*given, 1, jnp.bfloat16))(model, tokens, key))
