"""UserUpdate of Algorithm 1: what a device computes from the model it received and the text of its user."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sottovoce.data.vocabulary import BOS
from sottovoce.local.objective import Batch, Objective, plain, start_of
from sottovoce.local.quantise import EightBit
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import Clip, ClipNorms, finite_or_zero, norm, project

TRAINING = 0x7261696E  # what FedSGD trains with is apart from what chooses its tokens: a draw uses the first folds


class User(NamedTuple):
    """One user's tokens, padded to a public length, and how many there are.

    `public` is text that came with the model, to be rehearsed: it is no part of `length`, which gives the weight w_k.
    """

    tokens: Int[Array, " time"]
    length: Int[Array, ""]
    public: Int[Array, " more"] | None = None


class Trained(NamedTuple):
    """What local training gives: all of it stays on the device."""

    update: Any
    norm: Float[Array, ""]
    clipped: Bool[Array, " parts"]  # did the clip of any step cut a part?
    loss: Float[Array, ""]


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


def local_steps(tokens: Any, lanes: int, unroll: int) -> Any:
    """How many steps hold so many tokens."""
    each = -(-tokens // lanes)
    return -(-each // unroll)


# Public text is counted in parts of the user's own: in whole numbers, which are the same on host and device.
PARTS = 192


def rehearsed(length: Any, user_share: float) -> Any:
    """How many public tokens go with so many of the user's, where theirs are a share λ of all."""
    return length * round(PARTS * (1 / user_share - 1)) // PARTS


@dataclass(frozen=True)
class FedAvg:
    """E passes of SGD over the user's text; the update is what they changed, clipped.

    With a `user_share` λ below 1 it is random rehearsal (Popov et al. 2018, section 2.2): public text joins the user's
    until theirs is a share λ of all that is read.

    `gradient_clip` keeps a step from running away. It promises nothing: what is sent is bounded by `clipping`.
    """

    clipping: Clip
    clip_every_step: bool
    epochs: int = 1
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    objective: Objective = plain
    user_share: float = 1.0
    compression: EightBit | None = None
    gradient_clip: float | None = None

    def steps(self, length: Any) -> Any:
        """The steps of one pass over a text of this length, and over what is rehearsed with it."""
        return local_steps(length + self.rehearsed(length), self.batch, self.unroll)

    def rehearsed(self, length: Any) -> Any:
        """How many public tokens go with so many of the user's."""
        return rehearsed(length, self.user_share)

    def text(self, user: User) -> User:
        """All that is read: the user's tokens, then public ones. Cut into lanes, every step has some of both."""
        if user.public is None:
            return user
        place = jnp.arange(user.tokens.shape[0] + user.public.shape[0])
        own = user.tokens[jnp.minimum(place, user.tokens.shape[0] - 1)]
        public = user.public[jnp.clip(place - user.length, 0, user.public.shape[0] - 1)]
        return User(jnp.where(place < user.length, own, public), user.length + self.rehearsed(user.length))

    def __call__(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> UserResult:
        """What is sent for a user: local training and the last clip."""
        return clip_update(self, self.train(received, user, key, clip_norms, last), clip_norms, key)

    def train(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> Trained:
        """What training changes, given the model received and the norms to clip to; `key` is the user's own.

        Every step of every pass trains with a key of its own, made from it. `last` is how many steps a pass takes:
        those of the user, or more where others share the program. A step without targets changes nothing.
        """
        steps = cut_into_lanes(self.text(user), self.batch, self.unroll)

        def step(pass_key: PRNGKeyArray, index: Array, carry: tuple) -> tuple:
            update, state, cut, length, losses = carry
            step_key = jax.random.fold_in(pass_key, index)
            batch = jax.tree.map(lambda part: part[index], steps)
            model = jax.tree.map(jnp.add, received, update)
            (loss, state), gradient = mean_loss_and_gradient(self.objective, model, received, batch, state, step_key)
            if self.gradient_clip is not None:
                gradient, _ = project(gradient, self.gradient_clip)
            update = jax.tree.map(lambda change, slope: change - self.learning_rate * slope, update, gradient)
            length = jnp.where(jnp.sum(batch.mask) > 0, norm(update), length)
            if self.clip_every_step:
                update, clipped = self.clipping.clip(update, clip_norms)
                cut |= clipped
            return update, state, cut, length, losses + loss * jnp.sum(batch.mask)

        def epoch(number: Array, carry: tuple) -> tuple:
            update, cut, length, _ = carry
            pass_key = jax.random.fold_in(key, number)
            begin = (update, fresh_states(self.objective, received, self.batch), cut, length, jnp.zeros(()))
            update, _, cut, length, losses = jax.lax.fori_loop(0, last, partial(step, pass_key), begin)
            return update, cut, length, losses

        nothing = jax.tree.map(jnp.zeros_like, received)
        start = (nothing, jnp.zeros(len(self.clipping.clip_norms), bool), jnp.zeros(()), jnp.zeros(()))
        update, cut, length, losses = jax.lax.fori_loop(0, self.epochs, epoch, start)
        loss = losses / jnp.maximum(jnp.sum(steps.mask), 1)
        return Trained(update, length, cut, loss)


@dataclass(frozen=True)
class FedSGD:
    """One gradient of the mean loss over `tokens` of the user's tokens (0: all), times -η, clipped."""

    clipping: Clip
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    tokens: int = 0
    objective: Objective = plain
    compression: EightBit | None = None

    def steps(self, length: Any) -> Any:
        """The steps over a text of this length."""
        return local_steps(np.minimum(length, self.tokens) if self.tokens else length, self.batch, self.unroll)

    def __call__(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> UserResult:
        """What is sent for a user: the gradient and the last clip."""
        return clip_update(self, self.train(received, user, key, clip_norms, last), clip_norms, key)

    def train(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> Trained:
        """As `FedAvg`; `key` chooses the tokens too."""
        training_key = jax.random.fold_in(key, TRAINING)
        steps = cut_into_lanes(self._select(user, key), self.batch, self.unroll)
        targets = jnp.maximum(jnp.sum(steps.mask), 1)

        def step(index: Array, carry: tuple) -> tuple:
            gradient, state, losses = carry
            batch = jax.tree.map(lambda part: part[index], steps)
            (loss, state), slope = mean_loss_and_gradient(
                self.objective, received, received, batch, state, jax.random.fold_in(training_key, index)
            )
            share = jnp.sum(batch.mask) / targets
            gradient = jax.tree.map(lambda total, part: total + share * part, gradient, slope)
            return gradient, state, losses + loss * share

        states = fresh_states(self.objective, received, self.batch)
        start = (jax.tree.map(jnp.zeros_like, received), states, jnp.zeros(()))
        gradient, _, loss = jax.lax.fori_loop(0, last, step, start)
        update = jax.tree.map(lambda slope: -self.learning_rate * slope, gradient)
        return Trained(update, norm(update), jnp.array(False), loss)

    def _select(self, user: User, key: PRNGKeyArray) -> User:
        """A random run of `tokens` tokens of the user."""
        capacity = user.tokens.shape[0]
        if not 0 < self.tokens < capacity:
            return user
        length = jnp.minimum(user.length, self.tokens)
        start = jax.random.randint(key, (), 0, user.length - length + 1)
        return User(jax.lax.dynamic_slice(user.tokens, (start,), (self.tokens,)), length)


UserUpdate = FedAvg | FedSGD


def mean_loss_and_gradient(
    objective: Objective, model: LanguageModel, received: LanguageModel, batch: Batch, state: Any, key: PRNGKeyArray
) -> tuple[tuple[Array, Any], LanguageModel]:
    """The mean over the targets of one batch. Without targets it is 0, and so is its gradient.

    Guarantee: also where the model has run away. A user takes such steps only beside others with more text, and must
    send the same whoever they are; but 0 times what has left the range of a float is not 0.
    """

    def mean_loss(model: LanguageModel) -> tuple[Array, Any]:
        losses, new_state = objective(model, received, batch, state, key)
        return jnp.sum(losses * batch.mask) / jnp.maximum(jnp.sum(batch.mask), 1), new_state

    # The carried state is a constant of the next step: gradients stop at the unroll.
    (loss, new_state), gradient = jax.value_and_grad(mean_loss, has_aux=True)(model)
    counts = jnp.any(batch.mask > 0)
    gradient = jax.tree.map(lambda slope: jnp.where(counts, slope, 0), gradient)
    return (jnp.where(counts, loss, 0), new_state), gradient


def fresh_states(objective: Objective, model: LanguageModel, lanes: int) -> Any:
    start = start_of(objective, model)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), start)


def clip_update(
    local: UserUpdate, trained: Trained, clip_norms: ClipNorms, key: PRNGKeyArray | None = None
) -> UserResult:
    """The last clip, in float32 whatever came before it, and zeros in place of what is not finite.

    An update that is packed on the way is clipped on both sides of it: what is unpacked may be longer.
    """
    update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), trained.update)
    update, clipped = local.clipping.clip(update, clip_norms)
    update, sound = finite_or_zero(update)
    if local.compression is not None:
        assert key is not None
        packed = local.compression.pack(update, key)
        update, _ = local.clipping.clip(local.compression.unpack(packed), clip_norms)
    return UserResult(update, sound, trained.norm, trained.clipped | clipped, trained.loss)
