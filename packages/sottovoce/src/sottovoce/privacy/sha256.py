"""SHA-256 (FIPS 180-4) of a long array on its device, in many lanes at once.

On an H200 the sum of a model of 1.35 million numbers takes 0.5 ms this way, and 15 ms on the host.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from sottovoce.gpu import for_host, is_hopper

LANES, FEWER_LANES = 2**14, 2**9
_TILE = 64  # lanes of one program of the kernel


def _fraction_bits(root: int, count: int) -> np.ndarray:
    """The first 32 bits of the fractions of the square or cube roots of the first primes."""
    primes = [number for number in range(2, 400) if all(number % other for other in range(2, number))][:count]
    found = []  # for each, the largest x with x^root <= p · 2^(32·root), without its whole part
    for prime in primes:
        low, high = 0, 2**40
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if middle**root <= prime << (32 * root) else (low, middle)
        found.append(low % 2**32)
    return np.array(found, np.uint32)


_START = _fraction_bits(2, 8)
_ROUND_CONSTANTS = _fraction_bits(3, 64)


def digest_in_lanes(words: UInt32[Array, " words"]) -> bytes:
    """SHA-256 of the digests of all lanes, after the number of words. Word i is in lane i mod the number of lanes.

    The digests of many lanes are words again, and are hashed in fewer: that is what leaves the device.
    """
    found = np.asarray(_of_two_levels(words, is_hopper())).T.astype(">u4").tobytes()
    return hashlib.sha256(f"{words.size} words in {LANES} and {FEWER_LANES} lanes".encode() + found).digest()


@partial(jax.jit, static_argnums=1)
def _of_two_levels(words: UInt32[Array, " words"], kernel: bool) -> UInt32[Array, "8 lanes"]:
    digests = _by_kernel if kernel else _digests
    return for_host(digests(digests(words, LANES).ravel(), FEWER_LANES))


def _in_blocks(words: UInt32[Array, " words"], lanes: int) -> UInt32[Array, "blocks 16 lanes"]:
    """The words of each lane, filled up with zeros to whole blocks of 16."""
    return jnp.pad(words, (0, -words.size % (16 * lanes))).reshape(-1, 16, lanes)


def _last_block(blocks: int) -> list[int]:
    """What follows so many blocks: a bit, and the number of bits before it."""
    return [2**31, *[0] * 13, *divmod(512 * blocks, 2**32)]


@partial(jax.jit, static_argnums=1)
def _digests(words: UInt32[Array, " words"], lanes: int) -> UInt32[Array, "8 lanes"]:
    """SHA-256 of each lane's words."""
    blocks, constants = _in_blocks(words, lanes), jnp.asarray(_ROUND_CONSTANTS)
    start, end = (
        tuple(jnp.full(lanes, word, jnp.uint32) for word in some) for some in (_START, _last_block(len(blocks)))
    )
    state, _ = jax.lax.scan(lambda state, block: (_compress(state, tuple(block), constants), None), start, blocks)
    return jnp.stack(_compress(state, end, constants))


@partial(jax.jit, static_argnums=(1, 2))
def _by_kernel(words: UInt32[Array, " words"], lanes: int, interpret: bool = False) -> UInt32[Array, "8 lanes"]:
    """The same by one kernel in Pallas, which keeps the states in registers."""
    from jax.experimental import pallas as pl  # takes a while to import
    from jax.experimental.pallas import triton

    blocks = _in_blocks(words, lanes)
    found = pl.pallas_call(
        partial(_hash_lanes, blocks=len(blocks), lanes=lanes),
        grid=(lanes // _TILE,),
        out_shape=jax.ShapeDtypeStruct((8 * lanes,), jnp.uint32),
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="sha256",
    )(blocks.ravel(), jnp.asarray(_ROUND_CONSTANTS))
    return found.reshape(8, lanes)


def _hash_lanes(words: Any, constants: Any, out: Any, *, blocks: int, lanes: int) -> None:
    """One program: the lanes of a tile."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    first = pl.program_id(0) * _TILE

    def block(number: Any, state: Any) -> Any:
        places = [pl.ds((number * 16 + word) * lanes + first, _TILE) for word in range(16)]
        return _compress(state, tuple(triton.load(words.at[place]) for place in places), constants)

    start, end = (
        tuple(jnp.full(_TILE, jnp.uint32(word)) for word in map(int, some)) for some in (_START, _last_block(blocks))
    )
    state = _compress(jax.lax.fori_loop(0, blocks, block, start), end, constants)
    for word, values in enumerate(state):
        triton.store(out.at[pl.ds(word * lanes + first, _TILE)], values)


def _compress(state: tuple[Array, ...], block: tuple[Array, ...], constants: Any) -> tuple[Array, ...]:
    """The state after a block. 16 of the 64 rounds are written out: more of them compile for minutes."""

    def rounds(part: Any, carry: Any) -> Any:
        (a, b, c, d, e, f, g, h), window = carry
        for number in range(16):
            mixed = h + _xor_of(e, 6, 11, 25) + ((e & f) ^ (~e & g)) + constants[16 * part + number] + window[0]
            majority = _xor_of(a, 2, 13, 22) + ((a & b) ^ (a & c) ^ (b & c))
            early, late = window[1], window[14]
            following = window[0] + (_xor_of(early, 7, 18) ^ (early >> 3)) + window[9]
            following += _xor_of(late, 17, 19) ^ (late >> 10)
            window = (*window[1:], following)
            a, b, c, d, e, f, g, h = mixed + majority, a, b, c, d + mixed, e, f, g
        return (a, b, c, d, e, f, g, h), window

    mixed, _ = jax.lax.fori_loop(0, 4, rounds, (state, block))
    return tuple(one + other for one, other in zip(state, mixed, strict=True))


def _xor_of(word: Array, *turns: int) -> Array:
    """The xor of the word rotated right by each of these numbers of bits."""
    found = jnp.zeros_like(word)
    for by in turns:
        found ^= (word >> by) | (word << (32 - by))
    return found
