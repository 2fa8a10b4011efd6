"""The key stream of ChaCha20 (RFC 8439), in blocks: one in Python, to read; many at once, on a device or by OpenSSL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Array, UInt32

from sottovoce.gpu import is_hopper

_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").tolist()
# Which words of the state are mixed, four at a time.
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_ROUND_PAIRS = 10
_TILE = 128  # blocks of one program of the kernel
_ZEROS = bytes(2**18)  # what OpenSSL encrypts, again and again: it stays in a cache


def chacha20_block(key: bytes, counter: int, nonce: tuple[int, int, int]) -> list[int]:
    """The 16 words of one block of the key stream."""
    if len(key) != 32:
        raise ValueError(f"a ChaCha20 key has 32 bytes, not {len(key)}")
    state = mixed = [*_CONSTANTS, *np.frombuffer(key, "<u4").tolist(), counter, *nonce]
    for _ in range(_ROUND_PAIRS):
        mixed = _pair_of_rounds(mixed, lambda word: word % 2**32)
    return [(one + other) % 2**32 for one, other in zip(mixed, state, strict=True)]


def chacha20_by_openssl(
    key: bytes, blocks: int, nonce: tuple[int, int, int]
) -> UInt32[np.ndarray, "blocks words"] | None:
    """The blocks with counters 0, 1, ...; None where OpenSSL is held to approved ciphers, of which this is none."""
    start = np.array([0, *nonce], "<u4").tobytes()
    try:
        encryptor = Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor()
    except UnsupportedAlgorithm:
        return None
    room = np.empty(64 * blocks + 64, np.uint8)
    edge = -room.ctypes.data % 64  # JAX takes without a copy what begins there
    stream = room.data[edge : edge + 64 * blocks]
    for begin in range(0, len(stream), len(_ZEROS)):
        part = stream[begin : begin + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
    return np.frombuffer(stream, "<u4").reshape(blocks, 16)


def chacha20_blocks(key: Any, counters: Any, nonce: tuple[Any, Any, Any]) -> list[Any]:
    """The same for many counters at once: word 0 of all their blocks, word 1, ...

    `key` is 8 words of 32 bits.
    """
    header = jnp.concatenate([jnp.asarray(part, jnp.uint32) for part in (_CONSTANTS, key, [0], nonce)])
    if is_hopper():
        return list(_by_kernel(header, counters))
    return _mixed([jnp.full_like(counters, word) for word in header], counters)


def _mixed(header: Any, counters: Any) -> list[Any]:
    """The blocks that begin with these words, of which one is the counter.

    Rounds are a loop: without it, the program would take half a minute to compile.
    """
    state = [*header[:12], counters, *header[13:]]
    mixed = jax.lax.fori_loop(0, _ROUND_PAIRS, lambda _, mixed: _pair_of_rounds(mixed, lambda word: word), state)
    return [one + other for one, other in zip(mixed, state, strict=True)]


def _by_kernel(
    header: UInt32[Array, " words"], counters: UInt32[Array, " blocks"], interpret: bool = False
) -> UInt32[Array, "words blocks"]:
    """The same by one kernel, which keeps the words in registers. XLA writes them to memory in every turn of a loop."""
    from jax.experimental import pallas as pl  # takes a while to import
    from jax.experimental.pallas import triton

    count = -(-counters.size // _TILE) * _TILE
    words = pl.pallas_call(
        partial(_mix_tile, blocks=count),
        grid=(count // _TILE,),
        out_shape=jax.ShapeDtypeStruct((16 * count,), jnp.uint32),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="chacha20",
    )(header, jnp.pad(counters, (0, count - counters.size)))
    return words.reshape(16, count)[:, : counters.size]


def _mix_tile(header: Any, counters: Any, out: Any, *, blocks: int) -> None:
    """One program: the blocks of a tile."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    first = pl.program_id(0) * _TILE
    words = [jnp.full(_TILE, header[word]) for word in range(16)]
    for word, values in enumerate(_mixed(words, triton.load(counters.at[pl.ds(first, _TILE)]))):
        triton.store(out.at[pl.ds(word * blocks + first, _TILE)], values)


def _pair_of_rounds(state: list[Any], to_32_bits: Callable[[Any], Any]) -> list[Any]:
    state = list(state)
    for a, b, c, d in (*_COLUMNS, *_DIAGONALS):
        for one, added, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[one] = to_32_bits(state[one] + state[added])
            mixed = state[other] ^ state[one]
            state[other] = to_32_bits((mixed << by) | (mixed >> (32 - by)))
    return state
