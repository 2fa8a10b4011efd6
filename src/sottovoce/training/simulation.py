"""Many users at once on one machine: the fast twin of `round.sum_one_by_one`, and the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.kernels.lstm_users import Products, train_users
from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.language_model import LanguageModel, parameter_count
from sottovoce.privacy.clipping import Clipping, norms_for
from sottovoce.privacy.estimators import WEIGHT_STEP, user_weight
from sottovoce.privacy.summing import Whole, add, nothing, plus, value
from sottovoce.training.round import Algorithm, CohortSum, Keys, Spender, SumUpdates, play_round
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


def share_out(blocks: list[Block], processes: int) -> list[list[Block]]:
    """Each process's blocks: the largest left goes to whoever has the least to do."""
    shares: list[list[Block]] = [[] for _ in range(processes)]
    work = [0] * processes
    for block in sorted(blocks, key=lambda block: -block.seats * block.steps):
        least = work.index(min(work))
        shares[least].append(block)
        work[least] += block.seats * block.steps
    return shares


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
        blocks = self.blocks(algorithm, store, cohort)
        sums, results = self.add_up(blocks, algorithm, model, store, cohort, key, clip_norms)
        return sums.cohort_sum(algorithm.mechanism.grid(clip_norms), results, [block.places for block in blocks])

    def blocks(self, algorithm: Algorithm, store: Store, cohort: np.ndarray) -> list[Block]:
        return cut_into_blocks(algorithm.user_update.steps(store.lengths(cohort)), self.block, self.devices)

    def add_up(
        self, blocks: list[Block], algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray,
        key: PRNGKeyArray, clip_norms: np.ndarray,
    ) -> tuple[Sums, list[UserResult]]:  # fmt: skip
        """The sums over some blocks of a cohort, and what is known of the users of each."""
        grid = algorithm.mechanism.grid(clip_norms)
        sums = _no_sums(model, grid is not None, len(clip_norms))
        work = Work(
            algorithm.user_update, algorithm.mechanism.clipping, algorithm.weight_cap, self.products, self.devices
        )  # fmt: skip
        results: list[UserResult] = []
        for block in blocks:
            # The device works on while the next block is read: nothing here waits for a result.
            users, rows = _seated(store, cohort[block.places], block.seats)
            sums, result = _add_block(work, sums, model, users, rows, key, clip_norms, grid, block.steps)
            results.append(result)
        return sums, results


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

    def cohort_sum(self, grid: float | None, results: list[UserResult], places: list[np.ndarray]) -> CohortSum:
        total = self.total if grid is None else value(self.total, grid)
        return CohortSum(total, value(self.weight, WEIGHT_STEP), value(self.bits, BIT_STEP), results, places)


@partial(jax.jit, static_argnums=(1, 2))
def _no_sums(model: LanguageModel, exact: bool, parts: int) -> Sums:
    total = nothing(model) if exact else jax.tree.map(jnp.zeros_like, model)
    return Sums(total, nothing(jnp.zeros(())), nothing(jnp.zeros(parts)))


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_block(
    work: Work, sums: Sums, model: LanguageModel, users: User, rows: Int[Array, " block"], key: PRNGKeyArray,
    clip_norms: Array, grid: float | None, steps: int,
) -> tuple[Sums, UserResult]:  # fmt: skip
    if work.devices == 1:
        here, results = _sum_here(work, model, users, rows, key, clip_norms, grid, steps)
    else:
        # Users are shared out over the devices; each adds up its own, and the sums of all are whole numbers.
        mesh = Mesh(np.array(jax.local_devices()[: work.devices]), ("users",))
        alike, apart = PartitionSpec(), PartitionSpec("users")

        def share(model: LanguageModel, users: User, rows: Array, key: Array, clip_norms: Array, steps: Any) -> tuple:
            part, results = _sum_here(work, model, users, rows, key, clip_norms, grid, steps)
            return jax.lax.psum(part, "users"), results

        here, results = jax.shard_map(
            share, mesh=mesh, in_specs=(alike, apart, apart, alike, alike, alike), out_specs=(alike, apart),
            check_vma=False,
        )(model, users, rows, key, clip_norms, steps)  # fmt: skip
    join = plus if grid is not None else partial(jax.tree.map, jnp.add)
    return Sums(join(sums.total, here.total), plus(sums.weight, here.weight), plus(sums.bits, here.bits)), results


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
    ledger: Spender, sum_updates: SumUpdates,
) -> Iterator[tuple[ServerState, CohortSum]]:  # fmt: skip
    """Play the rounds that are left, up to and including round `last`."""
    while state.round < last:
        state, summed = play_round(algorithm, state, store, keys_of(state.round + 1), ledger, sum_updates)
        yield state, summed
