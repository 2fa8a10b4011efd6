from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import Bigrams, of_family
from kinds import FAMILY
from sottovoce.kernels import general
from sottovoce.kernels.general import Narrow
from sottovoce.local.update import FedAvg, User
from sottovoce.models import head
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip

QUICK = ("lstm", "gpt2, in pieces")


@pytest.mark.slow
def test_it_is_the_update_itself_with_other_products():
    model = build("gru", 20, {"embedding": 4, "hidden": 4}, jax.random.key(0))
    update = FedAvg(FlatClip(0.3), True, batch=2, unroll=3)
    users = User(jnp.full((2, 6), 5), jnp.asarray([6, 0]))
    arguments = (model, users, jax.random.split(jax.random.key(0), 2), jnp.full((2, 1), 0.3), 1)
    lowered = jax.jit(lambda *given: Narrow().train(update, *given)).lower(*arguments)
    assert "BF16" in lowered.as_text() or "bf16" in lowered.as_text()
    exact = jax.vmap(update, in_axes=(None, 0, 0, 0, None))
    fast, slow = (jax.jit(each)(*arguments) for each in (lambda *given: Narrow("float32").train(update, *given), exact))
    for one, other in zip(jax.tree.leaves(fast.update), jax.tree.leaves(slow.update), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert Narrow().put_together(model) is model


def user_of(tokens):
    return User(jax.ShapeDtypeStruct((tokens,), "int32"), jax.ShapeDtypeStruct((), "int32"))  # pyrefly: ignore


@pytest.mark.parametrize(
    "kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILY]
)
def test_a_gpu_computes_users_at_once_only_where_no_sum_depends_on_the_order(kind, monkeypatch):
    """The gradient of a lookup adds up rows. Left to a GPU, all indices of a block decide in which order."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    model, update = of_family(kind), FedAvg(FlatClip(0.3), True, batch=2, unroll=3)

    def program(model):
        one = (user_of(12), jax.random.key(0), jnp.ones(1))
        return jax.make_jaxpr(lambda *given: update(model, *given, 1))(*one).jaxpr

    assert not general._adds_in_any_order(program(model))
    assert general._adds_in_any_order(program(Bigrams(jnp.zeros((60, 60)))))  # a model of somebody's own


@pytest.mark.slow
def test_a_user_alone_on_a_gpu_is_trained_in_turn_where_sums_have_no_order(monkeypatch):
    """Either way the updates are the same."""
    update, users = FedAvg(FlatClip(0.3), True, batch=2, unroll=3), User(jnp.full((2, 6), 5), jnp.asarray([6, 4]))
    given = (update, Bigrams(jnp.zeros((20, 20))), users, jax.random.split(jax.random.key(0), 2), jnp.full((2, 1), 0.3))
    on_cpu = jax.jit(general.train_each, static_argnums=(0, 5))(*given, 1)
    together = jax.vmap(update, in_axes=(None, 0, 0, 0, None))(*given[1:], 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    lowered = jax.make_jaxpr(lambda *one: general.train_each(update, *one, 1))(*given[1:])
    assert "while" in str(lowered) or "scan" in str(lowered)
    for one, other in zip(jax.tree.leaves(on_cpu), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_rows_are_added_up_as_a_scatter_adds_them(monkeypatch):
    generator = np.random.default_rng(0)
    table, ids = jnp.asarray(generator.normal(size=(7, 3)), jnp.float32), jnp.array([[1, 4, 1], [1, 0, 6]])
    change = jnp.asarray(generator.normal(size=(2, 3, 3)), jnp.float32)
    usual = jax.vjp(lambda table: table[ids], table)[1](change)[0]
    np.testing.assert_allclose(head.add_rows(table, ids.ravel(), change.reshape(-1, 3)), table + usual, atol=1e-6)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows, back = jax.vjp(lambda table: head.rows_of(table, ids), table)
    np.testing.assert_array_equal(rows, table[ids])
    np.testing.assert_allclose(back(change)[0], usual, atol=1e-6)
