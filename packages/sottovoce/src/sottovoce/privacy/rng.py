"""Generators of numbers on the host, each from a secret key: a quick one and a cipher."""

from __future__ import annotations

import numpy as np


def philox(key: bytes) -> np.random.Generator:
    """Counter-based, with 128 bits of the key. Its output was not made to resist analysis."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def chacha20(key: bytes) -> np.random.Generator:
    """The stream cipher of RFC 8439, with 256 bits of key: without the key its output looks like chance."""
    import randomgen  # a plan, and many a command, does without it

    if len(key) != 32:
        raise ValueError(f"a ChaCha20 key has 32 bytes, not {len(key)}")
    return np.random.Generator(randomgen.ChaCha(key=int.from_bytes(key, "little"), rounds=20))  # pyrefly: ignore
