"""Every kind of model that a recipe can name, tiny; twice where a setting makes another program of it."""

from __future__ import annotations

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp

from kinds import FAMILY
from sottovoce.local.update import cut_into_lanes
from sottovoce.models import registry
from sottovoce.models.contract import LanguageModel
from sottovoce.models.lstm import LSTM


@cache
def of_family(name: str, words: int = 60) -> LanguageModel:
    made = registry.build(name.partition(",")[0], words, FAMILY[name], jax.random.key(7))
    if name == "stacked_lstm, variational and tied":
        # Its table begins near zero, and so small a model learns hardly more from there than what is rounded off.
        made = eqx.tree_at(lambda model: model.embedding, made, 10 * made.embedding)
    if name.startswith(("transformer", "gpt2")):
        # A norm divides by the length of what comes in: near zero, it would make rounding errors large.
        made = eqx.tree_at(lambda model: model.embedding, made, 20 * made.embedding)
    return made


@partial(jax.jit, static_argnums=0)
def send(update, model, user, key, clip_norms, last):
    """`update(model, …)`, what one user sends, compiled as one program."""
    return update(model, user, key, clip_norms, last)


@jax.jit
def read(model, tokens, state, key=None):
    """`model.read`, compiled as one program: dozens of small ones take longer."""
    return model.read(tokens, state, key)


@jax.jit
def log_chances(model, tokens):
    """log P of every word after each of these tokens, read from the beginning."""
    return jax.nn.log_softmax(model.logits(model.read(tokens, model.initial_state())[0]))


cut = partial(jax.jit, static_argnames=("lanes", "unroll", "bos"))(cut_into_lanes)


class Bigrams(eqx.Module):
    """A model that knows which word follows which, and nothing else."""

    table: jax.Array

    def initial_state(self):
        return jnp.zeros(())

    def read(self, tokens, state, key=None):
        return self.table[tokens], state

    def logits(self, outputs):
        return outputs


class HalfFrozen(eqx.Module):
    """An LSTM whose embedding is not trained, behind a frozen table of whole numbers that renames tokens."""

    lstm: LSTM
    order: jax.Array

    @staticmethod
    def make(words: int, seed: int = 7) -> HalfFrozen:
        keys = jax.random.split(jax.random.key(seed))
        return HalfFrozen(LSTM(words, embedding=4, hidden=5, key=keys[0]), jax.random.permutation(keys[1], words))

    def trained(self):
        frozen = (".lstm.embedding", ".order")
        return jax.tree_util.tree_map_with_path(lambda path, _: jax.tree_util.keystr(path) not in frozen, self)

    def initial_state(self):
        return self.lstm.initial_state()

    def read(self, tokens, state, key=None):
        return self.lstm.read(self.order[tokens], state, key)

    def logits(self, outputs):
        return self.lstm.logits(outputs)[..., self.order]
