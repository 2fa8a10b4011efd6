"""What a run is recognised by, and the precision of its sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sottovoce import assembly
from sottovoce.local.update import FedAvg, User
from sottovoce.privacy.clipping import FlatClip
from sottovoce.recipe import Recipe
from sottovoce.training.simulation import _add_block


def change_cores(monkeypatch):
    monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _: {0}, raising=False)


def change_versions(monkeypatch):
    monkeypatch.setattr(assembly, "_versions", lambda: ["optax 99"])


def change_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--another=flag")


@pytest.mark.parametrize("change", [change_cores, change_versions, change_flags])
def test_whatever_may_change_a_sum_changes_the_fingerprint(store, monkeypatch, change):
    if change is change_cores and getattr(assembly.os, "sched_getaffinity", lambda _: None)(0) == {0}:
        monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _: {0, 1})
    before = assembly._fingerprint(Recipe(), store, 4)
    assert before == assembly._fingerprint(Recipe(), store, 4)
    change(monkeypatch)
    assert assembly._fingerprint(Recipe(), store, 4) != before


def test_recipe_store_block_and_jax_settings_are_in_the_fingerprint(store, vocabulary):
    before = assembly._fingerprint(Recipe(), store, 4)
    assert assembly._fingerprint(Recipe().replace(run={"seed": 1}), store, 4) != before
    assert assembly._fingerprint(Recipe(), store, 5) != before
    assert assembly._fingerprint(Recipe(), type(store).from_users([[5]], vocabulary, 48), 4) != before
    with jax.default_matmul_precision("float32"):
        inside = assembly._fingerprint(Recipe(), store, 4)
    assert inside != before


def test_clipped_updates_are_summed_in_full_precision(model):
    """On a GPU the default would round every contribution, some of them to above S."""
    users = User(jnp.zeros((2, 12), jnp.int32), jnp.zeros((2,), jnp.int32))
    program = _add_block.lower(
        FedAvg(FlatClip(1.0), True, batch=2, unroll=3), 1.0, model, jnp.zeros(()), model, users,
        jnp.zeros((2,), jnp.uint32), jax.random.key(0),
    ).as_text()  # fmt: skip
    assert program.count("precision = [HIGHEST, HIGHEST]") == len(jax.tree.leaves(model))
