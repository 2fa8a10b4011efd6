"""Many users at once on one machine: the fast twin of `round.sum_one_by_one`, and the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.kernels.lstm_users import Products, model_of, train_users
from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.privacy.clipping import Clip, norm, norms_for
from sottovoce.privacy.estimators import WEIGHT_STEP, user_weight
from sottovoce.privacy.fixed_point import BIT_STEP, MOST, FixedPoint, add, add_all, values, zeros
from sottovoce.training.round import (
    Algorithm,
    CohortSum,
    Keys,
    Spender,
    SumUpdates,
    Watch,
    excerpts_for,
    play_round,
    until_paid,
)
from sottovoce.training.server import ServerState

SKETCH = 4096  # numbers that stand for an update where many are compared with one another
MOST_WASTE = 0.1  # of a block's steps: those of padding, and of users who had finished


class Block(NamedTuple):
    """Users of a cohort that are computed side by side: their places in it, the seats, and the steps they all take."""

    places: np.ndarray
    seats: int
    steps: int

    def waste(self, steps: np.ndarray) -> float:
        """The share of the work that is done for nobody, given what each user of the cohort needs."""
        return 1 - float(steps[self.places].sum()) / max(1, self.seats * self.steps)


def cut_into_blocks(steps: np.ndarray, seats: int, devices: int = 1, latency: float = 0) -> list[Block]:
    """The users of a cohort, by the steps each needs, in blocks of at most `seats` on each of some devices.

    Users of like length share a block. A block has `seats` or a half, a quarter, ... of them: the most with which
    little is wasted. So there are few shapes, whatever the cohort, and each is compiled once. Where a step costs
    `latency` on top of its seats, neighbouring blocks are joined if padding costs less than that.
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
    return _joined(blocks, sizes, devices * latency) if latency else blocks


def _joined(blocks: list[Block], sizes: list[int], latency: float) -> list[Block]:
    """The fastest way to join neighbours, a step of a block taking as long as its seats and `latency` more.

    To begin a block and to add it up takes about as long as the latency of one more step.
    """
    best: list[tuple[float, list[Block]]] = [(0, [])]  # for the first 0, 1, 2, ... blocks
    for end in range(1, len(blocks) + 1):
        ways = []
        for start in reversed(range(end)):
            run = blocks[start:end]
            places = np.concatenate([block.places for block in run])
            if len(places) > sizes[0]:
                break
            size = min(size for size in sizes if size >= len(places))
            time, before = best[start]
            time += run[0].steps * (size + latency) + latency
            ways.append((time, [*before, Block(places, size, run[0].steps)]))
        best.append(min(ways, key=lambda way: way[0]))
    return best[-1][1]


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
    latency: float = 0  # of a step, in seats: see `cut_into_blocks`

    def __call__(
        self, algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
        clip_norms: np.ndarray,
    ) -> CohortSum:  # fmt: skip
        blocks = self.blocks(algorithm, store, cohort)
        sums, results = self.add_up(blocks, algorithm, model, store, cohort, key, clip_norms)
        return sums.cohort_sum(algorithm.mechanism.grid(clip_norms), results, [block.places for block in blocks])

    def blocks(self, algorithm: Algorithm, store: Store, cohort: np.ndarray) -> list[Block]:
        if len(cohort) > MOST:
            raise SottoError(f"a cohort of {len(cohort):,} is more than {MOST:,} users, of which a sum is exact")
        steps = algorithm.user_update.steps(store.lengths(cohort))
        return cut_into_blocks(steps, self.block, self.devices, self.latency)

    def add_up(
        self, blocks: list[Block], algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray,
        key: PRNGKeyArray, clip_norms: np.ndarray,
    ) -> tuple[Sums, list[UserResult]]:  # fmt: skip
        """The sums over some blocks of a cohort, and what is known of the users of each."""
        grid = algorithm.mechanism.grid(clip_norms)
        work = self._work(algorithm, self.devices)
        sums = _start(work, model, grid is not None, len(clip_norms))
        model = _everywhere(model, self.devices)
        results: list[UserResult] = []
        for block, users, rows in _read_ahead(partial(_seated, work.update, store, cohort, key), blocks):
            sums, result = _add_block(work, sums, model, users, rows, key, clip_norms, grid, block.steps)
            results.append(result)
        return _over_devices(work, sums, grid is not None), results

    def along(
        self, vector: Any, algorithm: Algorithm, model: LanguageModel, store: Store, rows: np.ndarray,
        key: PRNGKeyArray, clip_norms: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Of what each user would send: its dot product with a vector, and a sketch of it.

        Dot products of sketches are about those of what they are sketches of, to 1/√SKETCH of the lengths.
        """
        work, found = self._work(algorithm, 1), (np.zeros(len(rows)), np.zeros((len(rows), SKETCH)))
        blocks = cut_into_blocks(algorithm.user_update.steps(store.lengths(rows)), self.block)
        for block, users, who in _read_ahead(partial(_seated, work.update, store, rows, key), blocks):
            for column, part in zip(
                found, _along(work, vector, model, users, who, key, clip_norms, block.steps), strict=True
            ):
                column[block.places] = part[: len(block.places)]
        return found

    def _work(self, algorithm: Algorithm, devices: int) -> Work:
        clipping = algorithm.mechanism.clipping.normalised()
        update = replace(algorithm.user_update, clipping=clipping)
        return Work(update, clipping, algorithm.weight_cap, self.products, devices)


class Work(NamedTuple):
    """What is done to a block, whoever is in it."""

    update: UserUpdate
    clipping: Clip
    weight_cap: float
    products: Products | None
    devices: int


def _read_ahead(
    seated: Callable[[Block], tuple[User, Array]], blocks: list[Block]
) -> Iterator[tuple[Block, User, Array]]:
    """Each block with its users, the next one read meanwhile.

    By a thread of its own: on a GPU the call that computes a block returns only when its loop over steps has ended.
    """
    with ThreadPoolExecutor(1) as reader:
        coming = None
        for block, following in zip_longest(blocks, blocks[1:]):
            # The first is read here: there is nothing to do meanwhile.
            users, rows = coming.result() if coming else seated(block)
            if following is not None:
                coming = reader.submit(seated, following)
            yield block, users, rows


def _seated(
    update: UserUpdate, store: Store, cohort: np.ndarray, key: PRNGKeyArray, block: Block
) -> tuple[User, Array]:
    rows = cohort[block.places]
    users = store.gather(rows, block.seats)
    rows = np.pad(rows + store.first, (0, block.seats - len(rows))).astype(np.uint32)
    public = excerpts_for(update, store, rows, key)
    return jax.device_put((User(users.tokens, users.lengths, public), rows))  # pyrefly: ignore


class Sums(NamedTuple):
    """Of the users so far, in whole steps of their grids."""

    total: Any  # float32 where updates are not clipped: then there is no grid, and nothing is promised
    weight: FixedPoint
    bits: FixedPoint

    def cohort_sum(self, grid: float | None, results: list[UserResult], places: list[np.ndarray]) -> CohortSum:
        if grid is None:
            total, (weight, bits) = self.total, values((self.weight, self.bits), (WEIGHT_STEP, BIT_STEP))
        else:
            total, weight, bits = values(self, (grid, WEIGHT_STEP, BIT_STEP))
        return CohortSum(total, weight, bits, results, places)


@partial(jax.jit, static_argnums=(1, 2))
def _no_sums(model: LanguageModel, exact: bool, parts: int) -> Sums:
    total = zeros(model) if exact else jax.tree.map(jnp.zeros_like, model)
    return Sums(total, zeros(jnp.zeros(())), zeros(jnp.zeros(parts)))


def _plus(exact: bool, one: Sums, other: Sums) -> Sums:
    join = add if exact else partial(jax.tree.map, jnp.add)
    return Sums(join(one.total, other.total), add(one.weight, other.weight), add(one.bits, other.bits))


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
    shares, sent, results = _train_here(work, model, users, rows, key, clip_norms, steps)
    bits = jnp.where((shares > 0)[:, None], 0.5 - results.clipped, 0.0)
    put_together = model_of if work.products is not None else lambda parts: parts
    if grid is None:
        total = put_together(jax.tree.map(lambda parts: jnp.sum(parts, axis=0), sent))
    else:
        total = FixedPoint(*map(put_together, _sum_of(sent, grid)))
    return Sums(total, _sum_of(shares, WEIGHT_STEP), _sum_of(bits, BIT_STEP)), results._replace(update=None)


def _train_here(
    work: Work, model: LanguageModel, users: User, rows: Array, key: PRNGKeyArray, clip_norms: Array, steps: Any
) -> tuple[Array, Any, UserResult]:
    """w_k and w_k Δ_k of every user of a block, in the parts that the program has, and what is known of them."""
    shares = user_weight(users.length, work.weight_cap)
    their_norms = jax.vmap(partial(norms_for, work.clipping, clip_norms))(shares)
    if work.products is None:
        keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
        results = jax.vmap(work.update, in_axes=(None, 0, 0, 0, None))(model, users, keys, their_norms, steps)
    else:
        results = train_users(work.products, work.update, model, users, their_norms, steps)  # pyrefly: ignore
    shares = results.sound * shares
    sent = jax.vmap(lambda share, part: jax.tree.map(lambda leaf: share * leaf, part))(shares, results.update)
    return shares, sent, results


@partial(jax.jit, static_argnums=0)
def _along(
    work: Work, vector: Any, model: LanguageModel, users: User, rows: Array, key: PRNGKeyArray, clip_norms: Array,
    steps: int,
) -> tuple[Array, Array]:  # fmt: skip
    _, sent, _ = _train_here(work, model, users, rows, key, clip_norms, steps)

    way = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(vector)])
    places, signs = jax.random.split(jax.random.key(0))  # public: which numbers are put together, and how
    places = jax.random.randint(places, way.shape, 0, SKETCH)
    signs = jax.random.rademacher(signs, way.shape, jnp.float32)

    def measure(sent: Any) -> tuple[Array, Array]:
        update = model_of(sent) if work.products is not None else sent
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(update)])
        sketch = jnp.zeros(SKETCH).at[places].add(signs * flat)
        # Of the length that the update has: so the sketch is off in its direction alone.
        return jnp.dot(flat, way), sketch * norm(update) / jnp.maximum(norm(sketch), 1e-30)

    return jax.vmap(measure)(sent)


def _sum_of(contributions: Any, grid: float) -> FixedPoint:
    return add_all(zeros(jax.tree.map(lambda parts: parts[0], contributions)), contributions, grid)


def block_size(model: LanguageModel, cohort: float, chosen: int = 0) -> int:
    """Users at once: as chosen, or what suits the model and the device.

    Each user in a block has an update of their own in memory. On a CPU a block larger than the cache is slower.
    """
    if chosen:
        return chosen
    on_cpu = jax.default_backend() == "cpu"
    room = 6 * 2**20 if on_cpu else 8 * 2**30
    size = max(1, min(512, room // (8 * parameter_count(model)), int(cohort * 1.2) + 1))
    # In whole lots of 32, which is how many users the recurrence has on an H200 at a time.
    return size if on_cpu or size < 32 else -(-size // 32) * 32


def latency(products: Products | None) -> float:
    """What a step of a block takes on top of its seats, in seats. Measured on an H200 (docs/log.md).

    A GPU has launches and dependent products to wait for, however few the users are: as long as 30 users take. Kernels
    pass over empty seats and users who have finished, which cost a seventh of the others: it is worth more of those.
    """
    if jax.default_backend() == "cpu":
        return 0
    return 32 if products is None else 64


def rounds(
    algorithm: Algorithm, state: ServerState, store: Store, last: int, keys_of: Callable[[int], Keys],
    ledger: Spender, sum_updates: SumUpdates, watch: Watch | None = None,
) -> Iterator[tuple[ServerState, CohortSum]]:  # fmt: skip
    """Play the rounds that are left, up to and including round `last`."""
    while state.round < last:
        play = partial(play_round, algorithm, state, store, ledger=ledger, sum_updates=sum_updates, watch=watch)
        state, summed = until_paid(state.round + 1, keys_of, play)
        yield state, summed
