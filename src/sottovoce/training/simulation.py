"""Many users at once on one machine: the fast twin of `round.sum_one_by_one`, and the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.kernels.lstm_users import Products, train_users
from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.language_model import LanguageModel, parameter_count
from sottovoce.privacy.clipping import Clipping, norms_for
from sottovoce.privacy.estimators import WEIGHT_STEP, user_weight
from sottovoce.privacy.summing import Whole, add, nothing, plus, value
from sottovoce.training.round import Algorithm, CohortSum, Keys, Spender, play_round
from sottovoce.training.server import ServerState

MOST_WASTE = 0.1  # of a block's steps: those of padding, and of users who had finished


class Block(NamedTuple):
    """Users of a cohort that are computed side by side: their places in it, the seats, and the steps they all take."""

    places: np.ndarray
    seats: int
    steps: int

    def waste(self, steps: np.ndarray) -> float:
        """The share of the work that is done for nobody, given what each user of the cohort needs."""
        return 1 - float(steps[self.places].sum()) / max(1, self.seats * self.steps)


def cut_into_blocks(steps: np.ndarray, seats: int, devices: int = 1) -> list[Block]:
    """The users of a cohort, by the steps each needs, in blocks of at most `seats` on each of some devices.

    Users of like length share a block. A block has `seats` or a half, a quarter, ... of them: the most with which
    little is wasted. So there are few shapes, whatever the cohort, and each is compiled once.
    """
    order = np.argsort(-steps, kind="stable")
    sizes = [devices * size for size in (seats >> halved for halved in range(5)) if size >= 4 or size == seats]
    blocks, start = [], 0
    while start < len(order):
        for size in sizes:
            block = Block(order[start : start + size], size, int(steps[order[start]]))
            if block.waste(steps) <= MOST_WASTE:
                break
        blocks.append(block)
        start += len(block.places)
    return blocks


@dataclass(frozen=True)
class SumInBlocks:
    """Σ w_k Δ_k over blocks of at most `block` users a device; while one is computed, the next is read.

    A block is filled up with users who have no tokens: their weight is zero, and so is their update.
    """

    block: int
    products: Products | None = None  # where the model has a program of its own
    devices: int = 1

    def __call__(
        self, algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
        clip_norms: np.ndarray,
    ) -> CohortSum:  # fmt: skip
        grid = algorithm.mechanism.grid(clip_norms)
        work = Work(
            algorithm.user_update, algorithm.mechanism.clipping, algorithm.weight_cap, self.products, self.devices
        )  # fmt: skip
        sums = _start(work, model, grid is not None, len(clip_norms))
        model = _everywhere(model, self.devices)
        results: list[UserResult] = []
        blocks = cut_into_blocks(algorithm.user_update.steps(store.lengths(cohort)), self.block, self.devices)
        for block in blocks:
            # The device works on while the next block is read: nothing here waits for a result.
            users, rows = _seated(store, cohort[block.places], block.seats)
            sums, result = _add_block(work, sums, model, users, rows, key, clip_norms, grid, block.steps)
            results.append(result)
        sums = _over_devices(work, sums, grid is not None)
        total = sums.total if grid is None else value(sums.total, grid)
        weight, bits = value(sums.weight, WEIGHT_STEP), value(sums.bits, BIT_STEP)
        return CohortSum(total, weight, bits, results, [block.places for block in blocks])


class Work(NamedTuple):
    """What is done to a block, whoever is in it."""

    update: UserUpdate
    clipping: Clipping
    weight_cap: float
    products: Products | None
    devices: int


def _seated(store: Store, rows: np.ndarray, seats: int) -> tuple[User, Array]:
    block = store.gather(rows)
    tokens, lengths = block.tokens, block.lengths
    if missing := seats - len(rows):
        tokens, lengths = np.pad(tokens, ((0, missing), (0, 0))), np.pad(lengths, (0, missing))
        rows = np.pad(rows, (0, missing))
    return User(jnp.asarray(tokens), jnp.asarray(lengths)), jnp.asarray(rows, jnp.uint32)


BIT_STEP = 0.5


class Sums(NamedTuple):
    """Of the users so far, in whole steps of their grids."""

    total: Any  # float32 where updates are not clipped: then there is no grid, and nothing is promised
    weight: Whole
    bits: Whole


@partial(jax.jit, static_argnums=(1, 2))
def _no_sums(model: LanguageModel, exact: bool, parts: int) -> Sums:
    total = nothing(model) if exact else jax.tree.map(jnp.zeros_like, model)
    return Sums(total, nothing(jnp.zeros(())), nothing(jnp.zeros(parts)))


def _plus(exact: bool, one: Sums, other: Sums) -> Sums:
    join = plus if exact else partial(jax.tree.map, jnp.add)
    return Sums(join(one.total, other.total), plus(one.weight, other.weight), plus(one.bits, other.bits))


def _start(work: Work, model: LanguageModel, exact: bool, parts: int) -> Sums:
    """Nothing yet, on every device."""
    none = _no_sums(model, exact, parts)
    if work.devices == 1:
        return none
    apart = NamedSharding(_mesh(work.devices), PartitionSpec("users"))
    return jax.jit(partial(jax.tree.map, partial(_repeated, work.devices)), out_shardings=apart)(none)


def _repeated(times: int, leaf: Array) -> Array:
    return jnp.broadcast_to(leaf, (times, *leaf.shape))


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_block(
    work: Work, sums: Sums, model: LanguageModel, users: User, rows: Int[Array, " block"], key: PRNGKeyArray,
    clip_norms: Array, grid: float | None, steps: int,
) -> tuple[Sums, UserResult]:  # fmt: skip
    if work.devices == 1:
        here, results = _sum_here(work, model, users, rows, key, clip_norms, grid, steps)
        return _plus(grid is not None, sums, here), results

    # Users are shared out over the devices, and each adds up its own. They wait for one another at the end of the
    # cohort only: programs that do so while others are under way can leave a CPU's threads waiting for ever.
    def share(
        sums: Sums, model: LanguageModel, users: User, rows: Array, key: Array, clip_norms: Array, steps: Any
    ) -> tuple[Sums, UserResult]:
        here, results = _sum_here(work, model, users, rows, key, clip_norms, grid, steps)
        mine = _plus(grid is not None, jax.tree.map(lambda leaf: leaf[0], sums), here)
        return jax.tree.map(lambda leaf: leaf[None], mine), results

    alike, apart = PartitionSpec(), PartitionSpec("users")
    return jax.shard_map(
        share, mesh=_mesh(work.devices), in_specs=(apart, alike, apart, apart, alike, alike, alike),
        out_specs=(apart, apart), check_vma=False,
    )(sums, model, users, rows, key, clip_norms, steps)  # fmt: skip


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), ("users",))


def _everywhere(model: LanguageModel, devices: int) -> LanguageModel:
    """The model on every device: sent once for all blocks."""
    return model if devices == 1 else jax.device_put(model, NamedSharding(_mesh(devices), PartitionSpec()))


def _over_devices(work: Work, sums: Sums, exact: bool) -> Sums:
    """The sums of all devices, on the first of them."""
    if work.devices == 1:
        return sums
    first = jax.local_devices()[0]
    shares = [
        jax.tree.map(lambda leaf, which=which: jax.device_put(leaf.addressable_data(which), first), sums)
        for which in range(work.devices)
    ]
    return _add_shares(exact, shares)


@partial(jax.jit, static_argnums=0)
def _add_shares(exact: bool, shares: list[Sums]) -> Sums:
    first, *others = [jax.tree.map(lambda leaf: leaf[0], share) for share in shares]
    return reduce(partial(_plus, exact), others, first)


def _sum_here(
    work: Work, model: LanguageModel, users: User, rows: Array, key: PRNGKeyArray, clip_norms: Array,
    grid: float | None, steps: Any,
) -> tuple[Sums, UserResult]:  # fmt: skip
    """The sums over the users of one device."""
    shares = user_weight(users.length, work.weight_cap)
    their_norms = jax.vmap(partial(norms_for, work.clipping, clip_norms))(shares)
    if work.products is None:
        keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
        results = jax.vmap(work.update, in_axes=(None, 0, 0, 0, None))(model, users, keys, their_norms, steps)
    else:
        results = train_users(work.products, work.update, model, users, their_norms, steps)  # pyrefly: ignore
    shares = results.sound * shares
    sent = jax.vmap(lambda share, part: jax.tree.map(lambda leaf: share * leaf, part))(shares, results.update)
    bits = jnp.where((shares > 0)[:, None], 0.5 - results.clipped, 0.0)
    none = _no_sums(model, grid is not None, len(clip_norms))
    total = jax.tree.map(lambda parts: jnp.sum(parts, axis=0), sent) if grid is None else add(none.total, sent, grid)
    sums = Sums(total, add(none.weight, shares, WEIGHT_STEP), add(none.bits, bits, BIT_STEP))
    return sums, results._replace(update=None)


def block_size(model: LanguageModel, cohort: float, chosen: int = 0) -> int:
    """Users at once: as chosen, or what suits the model and the device.

    Each user in a block has an update of their own in memory. On a CPU a block larger than the cache is slower.
    """
    if chosen:
        return chosen
    room = 6 * 2**20 if jax.default_backend() == "cpu" else 8 * 2**30
    return max(1, min(512, room // (8 * parameter_count(model)), int(cohort * 1.2) + 1))


def rounds(
    algorithm: Algorithm, state: ServerState, store: Store, last: int, keys_of: Callable[[int], Keys],
    ledger: Spender, sum_updates: SumInBlocks,
) -> Iterator[tuple[ServerState, CohortSum]]:  # fmt: skip
    """Play the rounds that are left, up to and including round `last`."""
    while state.round < last:
        state, summed = play_round(algorithm, state, store, keys_of(state.round + 1), ledger, sum_updates)
        yield state, summed
