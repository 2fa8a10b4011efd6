"""Noise in whole steps: the program for many coordinates and the twin to read draw the same, on any device."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from sottovoce.privacy import chacha, noise
from sottovoce.privacy.noise import (
    CELLS,
    LEAST_SCALE,
    MOST_SCALE,
    Drawn,
    Scale,
    draw_one,
    rounded_gaussian,
    thresholds,
)

KEY = bytes(range(32))


@pytest.mark.parametrize("std", [2.0**-20, 0.3, 1.0, 12.7, 2.0**33, 2.0**37, 2.0**38, 1e13, 2.0**50])
def test_many_at_once_are_what_one_by_one_are(std):
    one_by_one = [draw_one(KEY, place, Scale.at_least(std), 1) for place in range(40)]
    np.testing.assert_array_equal(rounded_gaussian(KEY, 40, std, 1), one_by_one)


def test_coordinates_beyond_those_that_are_drawn_together_are_drawn_as_alone():
    size = 3 * noise._BLOCKS_AT_ONCE
    many = np.asarray(rounded_gaussian(KEY, 2 * size, 1e6, 1))
    for place in (size - 1, size, size + 1, 2 * size - 1):
        assert many[place] == draw_one(KEY, place, Scale.at_least(1e6), 1)


def test_noise_is_the_same_without_openssl(monkeypatch):
    """As where it is held to approved ciphers: then the program computes the key stream."""
    expected = np.asarray(rounded_gaussian(KEY, 5000, 1e6, 1))

    def unsupported(*_, **__):
        raise UnsupportedAlgorithm("not an approved cipher")

    monkeypatch.setattr(chacha, "Cipher", unsupported)
    np.testing.assert_array_equal(rounded_gaussian(KEY, 5000, 1e6, 1), expected)


@pytest.mark.parametrize("first", [0, 3 * noise._BLOCKS_AT_ONCE + 1200])
def test_a_coordinate_whose_first_candidate_is_not_kept_goes_on_to_the_next(first):
    """One in 160: they are drawn at once too, and as one by one, in every part and every stream of the noise."""
    scale, stream = Scale.at_least(1e6), 5
    drawn, settled = (np.asarray(each) for each in noise.draw_many(KEY, 6 * noise._BLOCKS_AT_ONCE, scale, stream))
    assert np.all(settled)
    missed = []
    for place in range(first, first + 600):
        cell, within, coin = (noise._Uniform(KEY, stream, place, 0, use).first(64) for use in ("cell", "place", "coin"))
        if not noise._kept(noise._cell(cell, 64), within, coin, 64):
            missed.append(place)
    assert 0 < len(missed) < 20
    for place in missed:
        assert drawn[place] == draw_one(KEY, place, scale, stream)


@pytest.fixture
def one_in_two(monkeypatch) -> Iterator[Callable[[float], None]]:
    """Candidates are kept by the flip of a coin, which the program knows up to an error."""

    def flip(error: float) -> None:
        monkeypatch.setattr(noise, "_chance", lambda cell, t: t * 0 + 0.5)
        monkeypatch.setattr(noise, "_EXP_ERROR", error)
        monkeypatch.setattr(noise, "_kept", lambda cell, place, coin, bits: coin < 2 ** (bits - 1))
        noise._draw.clear_cache()  # of programs of the other law

    yield flip
    noise._draw.clear_cache()


def test_what_is_called_settled_is_as_drawn_one_by_one(one_in_two):
    """Also where many candidates are in doubt, and there is no room for all coordinates that need further ones."""
    one_in_two(0.1)
    scale, stream = Scale.at_least(1e6), 5
    drawn, settled = (np.asarray(each) for each in noise.draw_many(KEY, 3072, scale, stream))
    assert not np.all(settled)
    assert 1200 < np.sum(settled) < 1500  # two in five first candidates are kept, and a few have room for the next
    for place in np.flatnonzero(settled):
        assert drawn[place] == draw_one(KEY, int(place), scale, stream)


def test_what_64_bits_do_not_settle_is_settled_by_more(monkeypatch):
    """Were every decision in doubt, the result would be the same."""
    expected = np.asarray(rounded_gaussian(KEY, 30, 1e6))
    asked = []

    def doubtful(*arguments):
        steps, settled = real(*arguments)
        return Drawn(steps * 0 + 7, settled.at[:30].set(False))

    def watched(key, coordinate, scale, stream):
        asked.append(coordinate)
        return draw_one(key, coordinate, scale, stream)

    real = noise._draw
    monkeypatch.setattr(noise, "_draw", doubtful)
    monkeypatch.setattr(noise, "draw_one", watched)
    np.testing.assert_array_equal(rounded_gaussian(KEY, 30, 1e6), expected)
    assert asked == list(range(30))


@pytest.mark.parametrize("room", [1, 40, 3000])
def test_places_are_those_that_are_chosen_as_far_as_there_is_room(room):
    chosen = np.random.default_rng(0).random(3000) < 0.01
    expected = np.append(np.flatnonzero(chosen), np.full(room, 3000))[:room]
    np.testing.assert_array_equal(noise._places_of(jnp.asarray(chosen), room), expected)


@pytest.mark.parametrize("place", [0, 17, 29])
def test_one_coordinate_in_doubt_is_drawn_again(monkeypatch, place):
    expected, real = np.asarray(rounded_gaussian(KEY, 30, 1e6)), noise._draw

    def doubtful(*arguments):
        steps, settled = real(*arguments)
        return Drawn(steps.at[place].set(7), settled.at[place].set(False))

    monkeypatch.setattr(noise, "_draw", doubtful)
    np.testing.assert_array_equal(rounded_gaussian(KEY, 30, 1e6), expected)


@pytest.mark.parametrize("size", [0, 5, 3072])
def test_all_is_settled_where_no_coordinate_is_in_doubt(size, one_in_two):
    """Were every candidate in doubt: what is padding is not drawn again."""
    given = noise.drawn_from(KEY, Scale.at_least(1e6), 0, size)
    with jax.enable_x64(True):
        assert np.all(noise._draw(given, 3072).settled)
        one_in_two(1.0)
        np.testing.assert_array_equal(noise._draw(given, 3072).settled, np.arange(3072) >= size)


def test_candidates_in_doubt_are_found():
    """A coin and a cell at the edge of what they decide: the bits at hand do not settle them."""
    table = noise._table()
    with jax.enable_x64(True):
        for cell_bits, coin, settled in ((table[5], 0, False), (table[5] + np.uint64(1), 0, True)):
            words = [jnp.zeros(1, jnp.uint32)] * 16
            for number in range(3):
                words[5 * number] = jnp.asarray([cell_bits >> np.uint64(32)], jnp.uint32)
                words[5 * number + 1] = jnp.asarray([cell_bits & np.uint64(2**32 - 1)], jnp.uint32)
                words[5 * number + 4] = jnp.asarray([coin], jnp.uint32)
            scale = Scale.at_least(1e6)
            shift = jnp.uint64(noise._shift(scale, 64))
            _, kept, sure = noise._candidates(np.uint64(scale.mantissa), shift, table, words)
            assert np.all(kept)
            assert np.all(np.asarray(sure) == settled)
        # At t = 1/2 in cell 6: a coin whose 32 bits are those of the chance, and its neighbours.
        chance = int(math.exp(-0.5 * (12 + 0.5) / (2 * CELLS**2)) * 2**32)
        for coin, expected in ((chance - 1, (True, True)), (chance, (False, False)), (chance + 1, (False, True))):
            words = [jnp.zeros(1, jnp.uint32)] * 16
            for number in range(3):
                words[5 * number] = jnp.asarray([(table[5] >> np.uint64(32)) + np.uint64(1)], jnp.uint32)
                words[5 * number + 2] = jnp.asarray([2**31], jnp.uint32)
                words[5 * number + 4] = jnp.asarray([coin], jnp.uint32)
            _, kept, sure = noise._candidates(np.uint64(scale.mantissa), shift, table, words)
            assert (bool(kept[0, 0]), bool(sure[0, 0])) == expected


def test_decisions_that_are_close_are_left_to_more_bits():
    """The bits of a cell, a coin or a place that leave two outcomes possible are never called settled."""
    table = thresholds(64)
    assert noise._cell(table[3], 64) is None
    assert noise._cell(table[3] + 1, 64) == 4
    assert noise._cell(table[3] - 1, 64) == 3
    chance = math.exp(-0.5 * (2 * 100 + 0.5) / (2 * CELLS**2))
    coin, place = int(chance * 2**64), 2**63
    assert noise._kept(100, place, coin - 2**30, 64)
    assert noise._kept(100, place, coin + 2**30, 64) is False
    with decimal.localcontext(prec=60):
        t = decimal.Decimal(place) / 2**64
        exact = int((-t * (200 + t) / (2 * CELLS**2)).exp() * 2**64)
    assert noise._kept(100, place, exact, 64) is None
    # A product whose following bits carry it to the next whole number, and its neighbours, which they do not carry.
    with jax.enable_x64(True):
        for std in (1.0, 2.0**37 * 1.5, 2.0**38, 2.0**45):
            scale = Scale.at_least(std)
            shift = noise._shift(scale, 64)
            edge = ((2 * int(std) + 1) * 2 ** (shift - 1) - 1) // scale.mantissa
            settled = []
            for number in (edge - 1, edge, edge + 1):
                cell, place = np.uint64(number >> 64), np.uint64(number % 2**64)
                steps, exact = noise._rounded(
                    jnp.asarray(cell), jnp.asarray(place), jnp.uint64(scale.mantissa), jnp.uint64(shift)
                )
                assert int(steps) == scale.mantissa * number + 2 ** (shift - 1) >> shift
                settled.append(bool(exact))
            assert settled == [True, False, True]


def test_thresholds_are_the_chances_of_cells():
    weights = np.exp(-((np.arange(1000) / CELLS) ** 2) / 2)
    np.testing.assert_allclose(
        np.array(thresholds(64), float) / 2.0**64, np.cumsum(weights / weights.sum())[: len(thresholds(64))], atol=1e-12
    )
    assert thresholds(64)[-1] == 2**64 - 1
    assert [threshold >> 64 for threshold in thresholds(128)[: len(thresholds(64))]] == thresholds(64)


def test_exp_of_this_machine_is_as_close_as_assumed():
    with jax.enable_x64(True):
        places = np.random.default_rng(0).random(2000)
        cells = np.random.default_rng(1).integers(0, len(thresholds(64)), 2000)
        found = np.asarray(jnp.exp(-places * (2 * cells + places) / (2 * CELLS**2)))
    with decimal.localcontext(prec=40):
        for place, cell, value in zip(places.tolist(), cells.tolist(), found.tolist(), strict=True):
            t = decimal.Decimal(place)
            exact = (-t * (2 * cell + t) / (2 * CELLS**2)).exp()
            assert abs(decimal.Decimal(value) - exact) < noise._EXP_ERROR / 2**6


@pytest.mark.parametrize("std", [LEAST_SCALE, 0.1, 1.0, 1 + 2**-40, 3.14159e8, MOST_SCALE])
def test_a_scale_is_never_below_what_was_asked_for(std):
    scale = Scale.at_least(std)
    assert 2**31 <= scale.mantissa < 2**32
    assert std <= scale.mantissa * 2.0**scale.exponent <= std * (1 + 2**-30)


@pytest.mark.parametrize("std", [0.0, 2.0**-21, 2.0**52, math.inf, math.nan])
def test_noise_that_has_no_room_is_refused(std):
    with pytest.raises(ValueError, match="steps"):
        rounded_gaussian(KEY, 3, std)


def test_streams_of_one_key_differ():
    one, other = (np.asarray(rounded_gaussian(KEY, 50, 1e9, stream)) for stream in (0, 1))
    assert not np.any(one == other)


def test_no_coordinates_are_none():
    assert rounded_gaussian(KEY, 0, 1.0).shape == (0,)
