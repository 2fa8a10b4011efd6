from __future__ import annotations

import hashlib

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.privacy import sha256


@pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (0, 40, 64, 200))])
def test_every_lane_has_the_digest_of_its_words(size):
    words = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    found = np.asarray(sha256._digests(jnp.asarray(words), 4)).T.astype(">u4")
    filled = np.pad(words, (0, -size % 64)).reshape(-1, 4).T.astype(">u4")
    for lane, digest in zip(filled, found, strict=True):
        assert digest.tobytes() == hashlib.sha256(np.ascontiguousarray(lane).tobytes()).digest()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3000])
def test_the_kernel_finds_the_same_digests(size):
    words = jnp.asarray(np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32))
    found = sha256._by_kernel(words, 2 * sha256._TILE, interpret=True)
    np.testing.assert_array_equal(found, sha256._digests(words, 2 * sha256._TILE))


def lanes_by_hashlib(words: np.ndarray, lanes: int) -> np.ndarray:
    filled = np.pad(words, (0, -words.size % (16 * lanes))).reshape(-1, lanes).T.astype(">u4")
    digests = [hashlib.sha256(np.ascontiguousarray(lane).tobytes()).digest() for lane in filled]
    return np.frombuffer(b"".join(digests), ">u4").astype(np.uint32).reshape(lanes, 8).T


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16 * sha256.LANES + 1])
def test_a_digest_is_that_of_the_digests_of_lanes_and_of_their_lanes(size):
    words = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    first = np.ascontiguousarray(lanes_by_hashlib(words, sha256.LANES)).ravel()
    second = lanes_by_hashlib(first, sha256.FEWER_LANES).T.astype(">u4").tobytes()
    begins = f"{size} words in {sha256.LANES} and {sha256.FEWER_LANES} lanes".encode()
    assert sha256.digest_in_lanes(jnp.asarray(words)) == hashlib.sha256(begins + second).digest()


@pytest.mark.slow
def test_a_digest_changes_with_every_word_and_with_their_number():
    words = np.arange(50, dtype=np.uint32)
    seen = {
        sha256.digest_in_lanes(jnp.asarray(words)),
        sha256.digest_in_lanes(jnp.asarray(np.append(words, np.uint32(0)))),
    }
    for place in (0, 17, 49):
        other = words.copy()
        other[place] ^= 1
        seen.add(sha256.digest_in_lanes(jnp.asarray(other)))
    assert len(seen) == 5
