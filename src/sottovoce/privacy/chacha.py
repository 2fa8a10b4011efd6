"""The key stream of ChaCha20 (RFC 8439), block by block: one in Python, to read, or many at once on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").tolist()
# Which words of the state are mixed, four at a time.
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_ROUND_PAIRS = 10


def chacha20_block(key: bytes, counter: int, nonce: tuple[int, int, int]) -> list[int]:
    """The 16 words of one block of the key stream."""
    if len(key) != 32:
        raise ValueError(f"a ChaCha20 key has 32 bytes, not {len(key)}")
    state = mixed = [*_CONSTANTS, *np.frombuffer(key, "<u4").tolist(), counter, *nonce]
    for _ in range(_ROUND_PAIRS):
        mixed = _pair_of_rounds(mixed, lambda word: word % 2**32)
    return [(one + other) % 2**32 for one, other in zip(mixed, state, strict=True)]


def chacha20_blocks(key: Any, counters: Any, nonce: tuple[Any, Any, Any]) -> list[Any]:
    """The same for many counters at once: word 0 of all their blocks, word 1, ...

    `key` is 8 words of 32 bits. Rounds are a loop: without it, the program would take half a minute to compile.
    """
    zeros = jnp.zeros_like(counters)
    constants = [jnp.uint32(word) for word in _CONSTANTS]
    state = [zeros + word for word in (*constants, *(key[place] for place in range(8)))]
    state += [counters, *(zeros + jnp.uint32(word) for word in nonce)]
    mixed = jax.lax.fori_loop(0, _ROUND_PAIRS, lambda _, mixed: _pair_of_rounds(mixed, lambda word: word), state)
    return [one + other for one, other in zip(mixed, state, strict=True)]


def _pair_of_rounds(state: list[Any], to_32_bits: Callable[[Any], Any]) -> list[Any]:
    state = list(state)
    for a, b, c, d in (*_COLUMNS, *_DIAGONALS):
        for one, added, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[one] = to_32_bits(state[one] + state[added])
            mixed = state[other] ^ state[one]
            state[other] = to_32_bits((mixed << by) | (mixed >> (32 - by)))
    return state
