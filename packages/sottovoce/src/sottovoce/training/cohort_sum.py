"""Σ w_k Δ_k over many users at once on one machine: the fast twin of `round.sum_one_by_one`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.gpu import on_device
from sottovoce.kernels.find import Program
from sottovoce.kernels.general import train_each
from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import norm
from sottovoce.privacy.estimators import WEIGHT_STEP, user_weight
from sottovoce.privacy.fixed_point import BIT_STEP, MOST, FixedPoint, add, add_all, values, zeros
from sottovoce.training.blocks import cut_into_blocks
from sottovoce.training.types import Algorithm, CohortSum, Task
from sottovoce.training.users import excerpts_for
from sottovoce_evidence.errors import SottoError

SKETCH = 4096  # numbers of a count sketch


@dataclass(frozen=True)
class SumInBlocks:
    """Σ w_k Δ_k over blocks of `block` seats on each device. While one is computed, the next is read.

    An empty seat has a user without tokens: their weight is zero, and so is their update.
    Guarantee: what a user sends is the same to the bit in every seat, on every device, whoever has the other seats. All
    blocks of a run have one program: its shapes are public, and no number in it is compiled in from text.
    """

    block: int
    products: Program | None = None  # kernels, if there are any for the model
    devices: int = 1

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        blocks = self.blocks(algorithm, store, task.cohort)
        sums, results = self.add_up(blocks, algorithm, task, store)
        return sums.cohort_sum(algorithm.mechanism.grid(task.clip_norms), results, blocks)

    def blocks(self, algorithm: Algorithm, store: Store, cohort: np.ndarray) -> list[np.ndarray]:
        """The places in the cohort of the users of each block."""
        if len(cohort) > MOST:
            raise SottoError(f"a cohort has more than {MOST:,} users, the most that a sum holds")
        steps = algorithm.user_update.steps(store.lengths(cohort))
        return cut_into_blocks(steps, self.block * self.devices)

    def add_up(
        self, blocks: list[np.ndarray], algorithm: Algorithm, task: Task, store: Store
    ) -> tuple[Sums, list[UserResult]]:
        """The sums over some blocks of a cohort, and the results of the users of each."""
        grid = algorithm.mechanism.grid(task.clip_norms)
        sums = _start(self.devices, task.params, grid is not None, len(task.clip_norms))
        spec = self._spec(algorithm)
        # Sent once for all blocks.
        model = jax.device_put(algorithm.model(task.params), NamedSharding(_mesh(self.devices), PartitionSpec()))
        results: list[UserResult] = []
        step, clip_norms = None if grid is None else on_device(grid, np.float32), on_device(task.clip_norms, np.float32)
        broadcast = Broadcast(model, task.key, clip_norms)
        for seated in _read_ahead(partial(_seated, self, spec.update, task, store), blocks):
            sums, result = _add_block(spec, sums, seated, broadcast, step)
            for column in jax.tree.leaves(result):  # so that who reads it later does not wait for the device
                column.copy_to_host_async()
            results.append(result)
        return _over_devices(self.devices, sums, grid is not None), results

    def project_updates(
        self, vector: Any, algorithm: Algorithm, task: Task, store: Store
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of what each user would send: its dot product with a vector, and a count sketch of it.

        The dot product of two sketches is that of the updates, up to 1/√SKETCH of their lengths.
        """
        rows = task.cohort
        here, found = replace(self, devices=1), (np.zeros(len(rows)), np.zeros((len(rows), SKETCH)))
        spec, broadcast = here._spec(algorithm), Broadcast(algorithm.model(task.params), task.key, task.clip_norms)
        blocks = here.blocks(algorithm, store, rows)
        for places, seated in zip(
            blocks, _read_ahead(partial(_seated, here, spec.update, task, store), blocks), strict=True
        ):
            for column, part in zip(found, _project(spec, vector, seated, broadcast), strict=True):
                column[places] = part[: len(places)]
        return found

    def _spec(self, algorithm: Algorithm) -> BlockSpec:
        update = replace(algorithm.user_update, clipping=algorithm.mechanism.clipping.normalised())
        return BlockSpec(update, algorithm.weight_cap, self.products, self.devices)


class SeatedUsers(NamedTuple):
    """The users of a block and their rows, which decide their randomness. All arrays begin with [seats, devices]."""

    users: User
    rows: Int[Array, "seats devices"]

    def on_one_device(self) -> SeatedUsers:
        """Those of the only device that is seen: [seats]."""
        return jax.tree.map(lambda leaf: leaf[:, 0], self)


class Broadcast(NamedTuple):
    """What all users of a block share."""

    model: LanguageModel
    key: PRNGKeyArray
    clip_norms: Any


class BlockSpec(NamedTuple):
    """What is done to a block: the static half of its program."""

    update: UserUpdate
    weight_cap: float
    products: Program | None
    devices: int


def _read_ahead(read: Callable[[np.ndarray], SeatedUsers], blocks: list[np.ndarray]) -> Iterator[SeatedUsers]:
    """The users of each block. A thread reads the next one: on a GPU, to compute a block does not return at once."""
    if len(blocks) == 1:
        yield read(blocks[0])
        return
    with ThreadPoolExecutor(1) as reader:
        coming = None
        for block, following in zip_longest(blocks, blocks[1:]):
            seated = coming.result() if coming else read(block)
            if following is not None:
                coming = reader.submit(read, following)
            yield seated


def _seated(sums: SumInBlocks, update: UserUpdate, task: Task, store: Store, places: np.ndarray) -> SeatedUsers:
    """The users at these places in the cohort, dealt out to the devices in turn: the longest texts are shared out."""
    rows, size = task.cohort[places], sums.block * sums.devices
    users = store.gather(rows, size)
    rows = np.pad(rows + store.first, (0, size - len(rows))).astype(np.uint32)
    public = excerpts_for(update, store, rows, task.key)
    given = SeatedUsers(User(users.tokens, users.lengths, public), rows)  # pyrefly: ignore
    by_seat = jax.tree.map(lambda leaf: leaf.reshape(sums.block, sums.devices, *leaf.shape[1:]), given)
    return jax.device_put(by_seat, NamedSharding(_mesh(sums.devices), PartitionSpec(None, "users")))


class Sums(NamedTuple):
    """Sums over the users so far, in whole steps of their grids."""

    total: Any  # float32 where updates are not clipped: then there is no grid
    weight: FixedPoint
    bits: FixedPoint

    def cohort_sum(self, grid: float | None, results: list[UserResult], places: list[np.ndarray]) -> CohortSum:
        if grid is None:
            total, (weight, bits) = self.total, values((self.weight, self.bits), (WEIGHT_STEP, BIT_STEP))
        else:
            total, weight, bits = values(self, (grid, WEIGHT_STEP, BIT_STEP))
        return CohortSum(total, weight, bits, results, places)


def _no_sums(model: LanguageModel, exact: bool, parts: int) -> Sums:
    total = zeros(model) if exact else jax.tree.map(jnp.zeros_like, model)
    return Sums(total, zeros(jnp.zeros(())), zeros(jnp.zeros(parts)))


def _plus(exact: bool, one: Sums, other: Sums) -> Sums:
    join = add if exact else partial(jax.tree.map, jnp.add)
    return Sums(join(one.total, other.total), add(one.weight, other.weight), add(one.bits, other.bits))


def _start(devices: int, model: LanguageModel, exact: bool, parts: int) -> Sums:
    """Sums of nothing. Each device has its own, along a leading axis."""
    return _for_each(devices)(model, exact, parts)


@lru_cache
def _for_each(devices: int) -> Callable[[LanguageModel, bool, int], Sums]:
    """Sums of nothing for each device. It is kept: made anew, it would be compiled anew in every round."""

    def repeat(model: LanguageModel, exact: bool, parts: int) -> Sums:
        none = _no_sums(model, exact, parts)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (devices, *leaf.shape)), none)

    return jax.jit(repeat, static_argnums=(1, 2), out_shardings=NamedSharding(_mesh(devices), _apart(devices)))


def _apart(devices: int) -> PartitionSpec:
    """One of each on every device. Of a single device JAX says that all have it: said otherwise, it compiles anew."""
    return PartitionSpec("users") if devices > 1 else PartitionSpec()


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_block(
    spec: BlockSpec, sums: Sums, seated: SeatedUsers, broadcast: Broadcast, grid: float | None
) -> tuple[Sums, UserResult]:
    # Each device adds up its share of the users. They wait for one another at the end of the cohort only: programs that
    # do so while others run can deadlock a CPU's threads.
    def share(sums: Sums, seated: SeatedUsers, broadcast: Broadcast) -> tuple[Sums, UserResult]:
        here, results = _sum_here(spec, seated.on_one_device(), broadcast, grid)
        mine = _plus(grid is not None, jax.tree.map(lambda leaf: leaf[0], sums), here)
        return jax.tree.map(lambda leaf: leaf[None], mine), jax.tree.map(lambda leaf: leaf[:, None], results)

    alike, apart, by_seat = PartitionSpec(), _apart(spec.devices), PartitionSpec(None, "users")
    return jax.shard_map(
        share, mesh=_mesh(spec.devices), in_specs=(apart, by_seat, alike), out_specs=(apart, by_seat), check_vma=False
    )(sums, seated, broadcast)


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), ("users",))


def _over_devices(devices: int, sums: Sums, exact: bool) -> Sums:
    """The sums of all devices, on the first of them."""
    first = jax.local_devices()[0]
    shares = [
        jax.tree.map(lambda leaf, which=which: jax.device_put(leaf.addressable_data(which), first), sums)
        for which in range(devices)
    ]
    return _add_shares(exact, shares)


@partial(jax.jit, static_argnums=0)
def _add_shares(exact: bool, shares: list[Sums]) -> Sums:
    first, *others = [jax.tree.map(lambda leaf: leaf[0], share) for share in shares]
    return reduce(partial(_plus, exact), others, first)


def _sum_here(
    spec: BlockSpec, seated: SeatedUsers, broadcast: Broadcast, grid: float | None
) -> tuple[Sums, UserResult]:
    """The sums over the users of one device."""
    shares, sent, results = _train_here(spec, seated, broadcast)
    bits = jnp.where((shares > 0)[:, None], 0.5 - results.clipped, 0.0)
    put_together = spec.products.put_together if spec.products is not None else lambda parts: parts
    if grid is None:
        total = put_together(jax.tree.map(lambda parts: jnp.sum(parts, axis=0), sent))
    else:
        total = FixedPoint(*map(put_together, add_all(sent, grid)))
    return Sums(total, add_all(shares, WEIGHT_STEP), add_all(bits, BIT_STEP)), results._replace(update=None)


def _train_here(spec: BlockSpec, seated: SeatedUsers, broadcast: Broadcast) -> tuple[Array, Any, UserResult]:
    """w_k and w_k Δ_k of every user of a block, and their results. With kernels, updates are in `Parts`."""
    (users, rows), (model, key, clip_norms) = seated, broadcast
    shares = user_weight(users.length, spec.weight_cap)
    their_norms = jnp.broadcast_to(clip_norms, (len(shares), *clip_norms.shape))
    keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
    # As many steps as the longest text may have, which is public. A GPU then never waits for the host, which would
    # otherwise ask it after every step whether there is another.
    last = int(spec.update.steps(users.tokens.shape[1]))
    train = train_each if spec.products is None else spec.products.train
    results = train(spec.update, model, users, keys, their_norms, last)  # pyrefly: ignore
    shares = results.sound * shares
    sent = jax.vmap(lambda share, part: jax.tree.map(lambda leaf: share * leaf, part))(shares, results.update)
    return shares, sent, results


@partial(jax.jit, static_argnums=0)
def _project(spec: BlockSpec, vector: Any, seated: SeatedUsers, broadcast: Broadcast) -> tuple[Array, Array]:
    _, sent, _ = _train_here(spec, seated.on_one_device(), broadcast)
    way = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(vector)])
    places, signs = jax.random.split(jax.random.key(0))  # of the sketch: public
    places = jax.random.randint(places, way.shape, 0, SKETCH)
    signs = jax.random.rademacher(signs, way.shape, jnp.float32)

    def measure(sent: Any) -> tuple[Array, Array]:
        update = spec.products.put_together(sent) if spec.products is not None else sent
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(update)])
        sketch = jnp.zeros(SKETCH).at[places].add(signs * flat)
        # The sketch gets the length of the update: it differs in its direction alone.
        return jnp.dot(flat, way), sketch * norm(update) / jnp.maximum(norm(sketch), 1e-30)

    return jax.vmap(measure)(sent)
