"""What the local steps of a text should be, written a second time: lane after lane, without the package's loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.words import BOS


def lanes_of(tokens, lanes):
    """What each lane reads and what it should say: the text in pieces, one after another."""
    size = -(-len(tokens) // lanes)
    read = np.concatenate([[BOS], tokens[:-1]]).astype(np.int32)
    return [(read[i * size : (i + 1) * size], tokens[i * size : (i + 1) * size]) for i in range(lanes)]


@jax.jit
def _slope_of(model, inputs, targets, counted, state, key):
    def loss(model):
        outputs, after = model.read(inputs, state, key)
        return -jnp.dot(jax.nn.log_softmax(model.logits(outputs))[jnp.arange(len(targets)), targets], counted), after

    return jax.grad(loss, has_aux=True)(model)


def slopes_of(model, pieces, states, keys, unroll):
    """Of the losses of one step, added up in every lane that has text left; and how many targets they are of.

    `states` is what lanes remember, and is changed.
    """
    slopes, count = [], 0
    for which, (inputs, targets) in enumerate(pieces):
        if len(inputs):
            counted = targets != BOS
            count += np.sum(counted)
            # Filled up to one shape, to compile once: nothing is read after what is filled in.
            filled = np.pad(np.stack([inputs, targets, counted]), ((0, 0), (0, unroll - len(inputs))))
            slope, states[which] = _slope_of(model, *filled, states[which], keys[which])
            slopes.append(slope)
    return slopes, count


def step_along(slopes, rate):
    """Their sum, times a rate."""
    return jax.tree.map(lambda *parts: np.float32(rate) * sum(map(np.asarray, parts)), *slopes)
