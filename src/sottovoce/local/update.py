"""UserUpdate of Algorithm 1: what a device computes from the model it received and the text of its user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sottovoce.data.vocabulary import BOS
from sottovoce.local.objective import Batch, Objective, plain
from sottovoce.models.language_model import LanguageModel
from sottovoce.privacy.clipping import ClipNorms, Clipping, finite_or_zero, norm


class User(NamedTuple):
    """One user's tokens, padded to a public length, and how many there are."""

    tokens: Int[Array, " time"]
    length: Int[Array, ""]


class UserResult(NamedTuple):
    """What leaves the device is `update` (and `sound`); the rest is private and for diagnostics only."""

    update: Any
    sound: Float[Array, ""]  # 1, or 0 when the update was not finite and zeros are sent in its place
    norm: Float[Array, ""]  # before the last clip
    clipped: Bool[Array, " parts"]  # was anything of a part cut off, at any step?
    loss: Float[Array, ""]  # mean over the targets, as training went on


def cut_into_lanes(user: User, lanes: int, unroll: int) -> Batch:
    """The local steps of one user, as a `Batch` with a leading axis of steps.

    The token stream is cut into contiguous lanes of ⌈n / lanes⌉ tokens; step i holds tokens i·unroll onwards of every
    lane. What is read is the stream shifted by one, BOS first; BOS is never a target.
    """
    capacity = user.tokens.shape[0]
    steps = -(-capacity // (lanes * unroll))
    each = -(-user.length // lanes)  # tokens in a lane of this user
    time = jnp.arange(steps * unroll)
    place = jnp.arange(lanes)[:, None] * each + time  # [lanes, time]: where in the stream
    exists = (time < each) & (place < user.length)
    place = jnp.where(exists, place, 0)
    targets = user.tokens[place]
    inputs = jnp.where(place > 0, user.tokens[place - 1], BOS)
    mask = (exists & (targets != BOS)).astype(jnp.float32)

    def by_step(array: Array) -> Array:
        return array.reshape(lanes, steps, unroll).swapaxes(0, 1)

    return Batch(by_step(inputs), by_step(targets), by_step(mask))


@dataclass(frozen=True)
class FedAvg:
    """E passes of SGD over the user's text; the update is what they changed, clipped."""

    clipping: Clipping
    clip_every_step: bool
    epochs: int = 1
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    objective: Objective = plain

    def __call__(self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms) -> UserResult:
        """What is sent for a user, given the model received and the norms to clip to; `key` is the user's own."""
        del key
        steps = cut_into_lanes(user, self.batch, self.unroll)

        def step(carry: tuple, batch: Batch) -> tuple[tuple, tuple]:
            update, state, cut = carry
            model = jax.tree.map(jnp.add, received, update)
            (loss, state), gradient = _mean_loss_and_gradient(self.objective, model, received, batch, state)
            update = jax.tree.map(lambda change, slope: change - self.learning_rate * slope, update, gradient)
            length = norm(update)
            if self.clip_every_step:
                update, clipped = self.clipping.clip(update, clip_norms)
                cut |= clipped
            return (update, state, cut), (loss * jnp.sum(batch.mask), length)

        def epoch(carry: tuple, _: None) -> tuple[tuple, tuple]:
            update, cut = carry
            (update, _, cut), (losses, lengths) = jax.lax.scan(
                step, (update, _fresh_states(received, self.batch), cut), steps
            )
            return (update, cut), (jnp.sum(losses), lengths[-1])

        start = (jax.tree.map(jnp.zeros_like, received), jnp.zeros(len(self.clipping.clip_norms), bool))
        (update, cut), (losses, lengths) = jax.lax.scan(epoch, start, None, length=self.epochs)
        loss = losses[-1] / jnp.maximum(jnp.sum(steps.mask), 1)
        return _send(self.clipping, clip_norms, update, lengths[-1], cut, loss)


@dataclass(frozen=True)
class FedSGD:
    """One gradient of the mean loss over `tokens` of the user's tokens (0: all), times -η, clipped."""

    clipping: Clipping
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    tokens: int = 0
    objective: Objective = plain

    def __call__(self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms) -> UserResult:
        steps = cut_into_lanes(self._select(user, key), self.batch, self.unroll)
        targets = jnp.maximum(jnp.sum(steps.mask), 1)

        def step(carry: tuple, batch: Batch) -> tuple[tuple, Array]:
            gradient, state = carry
            (loss, state), slope = _mean_loss_and_gradient(self.objective, received, received, batch, state)
            share = jnp.sum(batch.mask) / targets
            gradient = jax.tree.map(lambda total, part: total + share * part, gradient, slope)
            return (gradient, state), loss * share

        start = (jax.tree.map(jnp.zeros_like, received), _fresh_states(received, self.batch))
        (gradient, _), losses = jax.lax.scan(step, start, steps)
        update = jax.tree.map(lambda slope: -self.learning_rate * slope, gradient)
        return _send(self.clipping, clip_norms, update, norm(update), jnp.array(False), jnp.sum(losses))

    def _select(self, user: User, key: PRNGKeyArray) -> User:
        """A random run of `tokens` tokens of the user."""
        capacity = user.tokens.shape[0]
        if not 0 < self.tokens < capacity:
            return user
        length = jnp.minimum(user.length, self.tokens)
        start = jax.random.randint(key, (), 0, user.length - length + 1)
        return User(jax.lax.dynamic_slice(user.tokens, (start,), (self.tokens,)), length)


UserUpdate = FedAvg | FedSGD


def _mean_loss_and_gradient(
    objective: Objective, model: LanguageModel, received: LanguageModel, batch: Batch, state: Any
) -> tuple[tuple[Array, Any], LanguageModel]:
    """The mean over the targets of one batch. Without targets it is 0, and so is its gradient."""

    def mean_loss(model: LanguageModel) -> tuple[Array, Any]:
        losses, new_state = objective(model, received, batch, state)
        return jnp.sum(losses * batch.mask) / jnp.maximum(jnp.sum(batch.mask), 1), new_state

    # The carried state is a constant of the next step: gradients stop at the unroll.
    return jax.value_and_grad(mean_loss, has_aux=True)(model)


def _fresh_states(model: LanguageModel, lanes: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), model.start())


def _send(clipping: Clipping, clip_norms: ClipNorms, update: Any, length: Array, cut: Array, loss: Array) -> UserResult:
    """The last clip, in float32 whatever came before it, and zeros in place of what is not finite."""
    update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), update)
    update, clipped = clipping.clip(update, clip_norms)
    update, sound = finite_or_zero(update)
    return UserResult(update, sound, length, cut | clipped, loss)
