"""A model whose scores are given."""

from __future__ import annotations

import jax
import jax.numpy as jnp


class Table:
    """After each token the scores of its row: exact numbers, whatever program computes them."""

    def __init__(self, rows):
        self.rows = rows

    def initial_state(self):
        return jnp.zeros(())

    def read(self, tokens, state, key=None):
        return self.rows[tokens], state

    def logits(self, outputs):
        return outputs


jax.tree_util.register_pytree_node(Table, lambda t: ((t.rows,), None), lambda _, rows: Table(*rows))
