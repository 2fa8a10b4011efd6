"""UserUpdate of Algorithm 1: from the model that a device received and the text of its user to an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sottovoce.local.objective import Batch, Objective, initial_state, plain
from sottovoce.models.contract import LanguageModel, join, split
from sottovoce.privacy.clipping import Clip, finite_or_zero, norm, project

if TYPE_CHECKING:
    from sottovoce.privacy.clipping import ClipNorms

TRAINING = 0x7261696E  # the key that FedSGD trains with is not the one that chooses its tokens
Begins = int | tuple[int, ...]  # the token that begins a text, BOS; or all that may, BOS first


class User(NamedTuple):
    """One user's tokens, padded to a public length, and their number, which gives the weight w_k."""

    tokens: Int[Array, " time"]
    length: Int[Array, ""]
    public: Int[Array, " more"] | None = None  # text that came with the model, for rehearsal


class Trained(NamedTuple):
    """The result of local training: all of it stays on the device."""

    update: Any
    norm: Float[Array, ""]
    clipped: Bool[Array, " parts"]  # did the clip of any step cut a part?
    loss: Float[Array, ""]


class UserResult(NamedTuple):
    """`update` and `sound` leave the device; the rest is private and for diagnostics only."""

    update: Any
    sound: Float[Array, ""]  # 1, or 0 when the update was not finite and zeros are sent in its place
    norm: Float[Array, ""]  # before the last clip
    clipped: Bool[Array, " parts"]  # whether a part was clipped at any step
    loss: Float[Array, ""]  # mean over the targets, during training


def begins_text(tokens: Array, begins: Int[Array, " tokens"]) -> Bool[Array, ...]:
    """Where a token is one of those that begin a text."""
    return jnp.isin(tokens, begins, method="compare_all")


def cut_into_lanes(user: User, lanes: int, unroll: int, bos: Begins) -> Batch:
    """The local steps of one user, as a `Batch` with a leading axis of steps.

    The token stream is cut into contiguous lanes of ⌈n / lanes⌉ tokens; step i holds tokens i·unroll onwards of every
    lane. The inputs are the stream shifted by one, `bos` first; no token that begins a text is ever a target.
    """
    begins = jnp.atleast_1d(jnp.asarray(bos, user.tokens.dtype))
    capacity = user.tokens.shape[0]
    steps = -(-capacity // (lanes * unroll))
    each = -(-user.length // lanes)  # tokens in a lane of this user
    time = jnp.arange(steps * unroll)
    place = jnp.arange(lanes)[:, None] * each + time  # [lanes, time]: where in the stream
    exists = (time < each) & (place < user.length)
    place = jnp.where(exists, place, 0)
    targets = user.tokens[place]
    inputs = jnp.where(place > 0, user.tokens[place - 1], begins[0])
    mask = (exists & ~begins_text(targets, begins)).astype(jnp.float32)

    def by_step(array: Array) -> Array:
        return array.reshape(lanes, steps, unroll).swapaxes(0, 1)

    return Batch(by_step(inputs), by_step(targets), by_step(mask))


def local_steps(tokens: Any, lanes: int, unroll: int) -> Any:
    """The number of steps that hold a number of tokens."""
    each = -(-tokens // lanes)
    return -(-each // unroll)


# Public text is counted in 1/192 of the user's own: whole numbers are the same on host and device.
PARTS = 192


def rehearsed(length: Any, user_share: float) -> Any:
    """The number of public tokens to read with `length` of the user's, where theirs are a share λ of all."""
    times = round(PARTS * (1 / user_share - 1))
    return length // PARTS * times + length % PARTS * times // PARTS  # length · times may be beyond 32 bits


class LocalTraining(ABC):
    """Local training and the last clip."""

    if TYPE_CHECKING:  # fields of each subclass

        @property
        def clipping(self) -> Clip: ...

    @abstractmethod
    def train(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> Trained:
        """Local training with the key of this user.

        `last` is the number of steps of an epoch: those of the user, or more where users share a program.
        Guarantee: a step without targets changes nothing, to the bit.
        """

    def __call__(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> UserResult:
        """What is sent for a user."""
        return clip_update(self, self.train(received, user, key, clip_norms, last), clip_norms)


@dataclass(frozen=True)
class FedAvg(LocalTraining):
    """E epochs of SGD over the user's text; the update is the change of the parameters, clipped.

    With a `user_share` λ below 1 it is random rehearsal (Popov et al. 2018, section 2.2): public text is added until
    the user's is a share λ of all that is read. `gradient_clip` keeps a step from diverging; it bounds nothing that is
    sent.
    """

    clipping: Clip
    clip_every_step: bool
    epochs: int = 1
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    objective: Objective = plain
    user_share: float = 1.0
    gradient_clip: float | None = None
    bos: Begins = 0  # of the tokenizer

    def steps(self, length: Any) -> Any:
        """The steps of one epoch over a text of this length and the public text that is read with it."""
        return local_steps(length + self.rehearsed(length), self.batch, self.unroll)

    def rehearsed(self, length: Any) -> Any:
        """The number of public tokens to read with `length` of the user's."""
        return rehearsed(length, self.user_share)

    def text(self, user: User) -> User:
        """The user's tokens, then public ones. Cut into lanes, every step has some of both."""
        if user.public is None:
            return user
        place = jnp.arange(user.tokens.shape[0] + user.public.shape[0])
        own = user.tokens[jnp.minimum(place, user.tokens.shape[0] - 1)]
        public = user.public[jnp.clip(place - user.length, 0, user.public.shape[0] - 1)]
        return User(jnp.where(place < user.length, own, public), user.length + self.rehearsed(user.length))

    def train(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> Trained:
        steps = cut_into_lanes(self.text(user), self.batch, self.unroll, self.bos)
        params, frozen = split(received)

        def step(epoch_key: PRNGKeyArray, index: Array, carry: tuple) -> tuple:
            update, state, clipped, length, losses = carry
            step_key = jax.random.fold_in(epoch_key, index)
            batch = jax.tree.map(lambda part: part[index], steps)
            model = join(jax.tree.map(jnp.add, params, update), frozen)
            (loss, state), gradient = mean_loss_and_gradient(self.objective, model, received, batch, state, step_key)
            if self.gradient_clip is not None:
                gradient, _ = project(gradient, self.gradient_clip)
            counts = jnp.any(batch.mask > 0)
            stepped = jax.tree.map(lambda change, part: change - self.learning_rate * part, update, gradient)
            length = jnp.where(counts, norm(stepped), length)
            if self.clip_every_step:
                stepped, now = self.clipping.clip(stepped, clip_norms)
                clipped |= counts & now
            # A second clip of the same update may change its last bits.
            update = jax.tree.map(lambda new, old: jnp.where(counts, new, old), stepped, update)
            return update, state, clipped, length, losses + loss * jnp.sum(batch.mask)

        def epoch(number: Array, carry: tuple) -> tuple:
            update, clipped, length, _ = carry
            states = fresh_states(self.objective, received, self.batch)
            begin = (update, states, clipped, length, jnp.zeros(()))
            update, _, clipped, length, losses = jax.lax.fori_loop(
                0, last, partial(step, jax.random.fold_in(key, number)), begin
            )
            return update, clipped, length, losses

        zeros = jax.tree.map(jnp.zeros_like, params)
        begin = (zeros, jnp.zeros(len(self.clipping.clip_norms), bool), jnp.zeros(()), jnp.zeros(()))
        update, clipped, length, losses = jax.lax.fori_loop(0, self.epochs, epoch, begin)
        loss = losses / jnp.maximum(jnp.sum(steps.mask), 1)
        return Trained(update, length, clipped, loss)


@dataclass(frozen=True)
class FedSGD(LocalTraining):
    """One gradient of the mean loss over `tokens` of the user's tokens (0: all), times -η, clipped."""

    clipping: Clip
    batch: int = 8
    unroll: int = 10
    learning_rate: float = 6.0
    tokens: int = 0
    objective: Objective = plain
    bos: Begins = 0  # of the tokenizer

    def steps(self, length: Any) -> Any:
        """The steps over a text of this length."""
        numpy: Any = jnp if isinstance(length, jax.Array) else np
        return local_steps(numpy.minimum(length, self.tokens) if self.tokens else length, self.batch, self.unroll)

    def train(
        self, received: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: ClipNorms, last: Any
    ) -> Trained:
        training_key = jax.random.fold_in(key, TRAINING)
        steps = cut_into_lanes(self.select(user, key), self.batch, self.unroll, self.bos)
        targets = jnp.maximum(jnp.sum(steps.mask), 1)

        def step(index: Array, carry: tuple) -> tuple:
            gradient, state, losses = carry
            batch = jax.tree.map(lambda part: part[index], steps)
            (loss, state), step_gradient = mean_loss_and_gradient(
                self.objective, received, received, batch, state, jax.random.fold_in(training_key, index)
            )
            share = jnp.sum(batch.mask) / targets
            gradient = jax.tree.map(lambda total, part: total + share * part, gradient, step_gradient)
            return gradient, state, losses + loss * share

        states = fresh_states(self.objective, received, self.batch)
        begin = (jax.tree.map(jnp.zeros_like, split(received)[0]), states, jnp.zeros(()))
        gradient, _, loss = jax.lax.fori_loop(0, last, step, begin)
        update = jax.tree.map(lambda part: -self.learning_rate * part, gradient)
        return Trained(update, norm(update), jnp.array(False), loss)

    def select(self, user: User, key: PRNGKeyArray) -> User:
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
    """The mean loss over the targets of one batch, and its gradient for the trained parameters.

    Guarantee: both are 0 without targets, also where the model has diverged. (0 times a value that is not finite is not
    0.) So a user sends the same update in a program shared with users who have more text.
    """
    params, frozen = split(model)

    def mean_loss(params: Any) -> tuple[Array, Any]:
        losses, new_state = objective(join(params, frozen), received, batch, state, key)
        return jnp.sum(losses * batch.mask) / jnp.maximum(jnp.sum(batch.mask), 1), new_state

    # The carried state is a constant of the next step: gradients stop at the unroll.
    (loss, new_state), gradient = jax.value_and_grad(mean_loss, has_aux=True)(params)
    counts = jnp.any(batch.mask > 0)
    gradient = jax.tree.map(lambda part: jnp.where(counts, part, 0), gradient)
    return (jnp.where(counts, loss, 0), new_state), gradient


def bytes_of_a_step(update: UserUpdate, model: LanguageModel) -> int:
    """What one user keeps of a local step for its gradient. Nothing is computed: shapes tell it.

    What is frozen is not counted: all users of a block share it.
    """
    params, frozen = split(model)

    def kept(params: Any, ids: Array) -> Any:
        batch = Batch(ids, ids, ids.astype(jnp.float32))
        states, key = fresh_states(update.objective, model, update.batch), jax.random.key(0)

        def loss(params: Any) -> Array:
            return jnp.sum(update.objective(join(params, frozen), model, batch, states, key)[0])

        return jax.vjp(loss, params)[1]

    found = jax.tree.leaves(jax.eval_shape(kept, params, jnp.zeros((update.batch, update.unroll), jnp.int32)))
    return max(_bytes(found) - _bytes(jax.tree.leaves(frozen)), 0)


def _bytes(leaves: list[Any]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype"))


def fresh_states(objective: Objective, model: LanguageModel, lanes: int) -> Any:
    """The initial state of every lane."""
    state = initial_state(objective, model)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), state)


def clip_update(local: LocalTraining, trained: Trained, clip_norms: ClipNorms) -> UserResult:
    """The last clip, in float32 after any kernel, and zeros in place of what is not finite."""
    update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), trained.update)
    length = norm(update)
    update, clipped = local.clipping.clip(update, clip_norms)
    update, sound = finite_or_zero(update, length)
    return UserResult(update, sound, trained.norm, trained.clipped | clipped, trained.loss)
