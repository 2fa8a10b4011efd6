"""The rank of a target among all logits."""

from __future__ import annotations

import jax.numpy as jnp

from sottovoce.evaluation.ranks import ranks_of


def test_ties_are_broken_as_by_argmax():
    scores = jnp.array([[1.0, 2.0, 2.0, 0.0]])
    assert [int(ranks_of(scores, jnp.array([token])).rank[0]) for token in range(4)] == [2, 0, 1, 3]
