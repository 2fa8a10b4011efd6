"""Gaussian noise in whole steps of a public grid: round(scale · X) with X ~ N(0, 1), drawn exactly.

The last bits of floating-point noise tell two sums apart. Here the noise is a whole number, and so is the sum:
n + round(g) = round(n + g) is a function of the Gaussian mechanism n + g that the accountant charges.

X is drawn by rejection, from the key stream of ChaCha20. |X| lies in cell j, [j, j + 1)/64, with a chance in proportion
to exp(-(j/64)²/2); its place t within the cell is uniform, and is kept with chance exp(-t(2j + t)/8192). Each decision
compares real numbers, of which finitely many bits are known. A program for many coordinates makes the decisions that 64
bits settle, nearly all; `draw_one` takes as many more bits as it needs. So the result follows from the key alone, on
every machine and device.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from sottovoce.privacy.chacha import chacha20_block, chacha20_blocks, chacha20_by_openssl

CELLS = 64  # in a standard deviation
# A block of 16 words has three candidates: five words each, and a bit of the last word for the sign. The first
# candidates of coordinates 3b, 3b + 1 and 3b + 2 share block b; the second to fourth of a coordinate are in one block.
SHARED, OWN = 0, 1  # the first word of the nonce of either kind of block; further bits have nonces from 2 on
_EXP_ERROR = 2.0**-44  # more than a float64 exp in (0.8, 1] is ever wrong by, on a CPU or a GPU
_MANTISSA = 32  # bits of a scale
LEAST_SCALE, MOST_SCALE = 2.0**-20, 2.0**51  # results of these scales fit into 64 bits

NoiseState = Any  # what is remembered of earlier rounds' noise (`noise_stream.py`): a pytree of arrays, a secret

_LEAST_BLOCKS = 2**10  # that a program draws
_BLOCKS_AT_ONCE = 2**14  # on a CPU: few enough for its cache, and enough for XLA to give every core a part of them


class Scale(NamedTuple):
    """A standard deviation in steps: mantissa · 2^exponent, the mantissa of 32 bits."""

    mantissa: int
    exponent: int

    @staticmethod
    def at_least(std: float) -> Scale:
        """The least scale that is no smaller than `std`, however that was rounded."""
        if not LEAST_SCALE <= std <= MOST_SCALE:
            raise ValueError(f"noise of {std:g} steps is not from {LEAST_SCALE:g} to {MOST_SCALE:g}")
        fraction, exponent = math.frexp(std * (1 + 2.0**-50))
        mantissa = math.ceil(fraction * 2**_MANTISSA)
        if mantissa == 2**_MANTISSA:
            mantissa, exponent = mantissa // 2, exponent + 1
        return Scale(mantissa, exponent - _MANTISSA)


class Drawn(NamedTuple):
    """Many coordinates, and more behind them: padding."""

    steps: Int[Array, " padded"]
    settled: Bool[Array, " padded"]  # by 64 bits, or padding; the others are for `draw_one`


def rounded_gaussian(key: bytes, size: int, std: float, stream: int = 0) -> Int[Array, " size"]:
    """round(std · X), `size` times: the noise that a key has for a stream.

    Guarantee: coordinates are independent, and each has exactly this distribution, given that the key stream of
    ChaCha20 under a secret key of 256 bits is uniform. A standard deviation is rounded up by at most 2^-31 of it.
    """
    if not 0 <= size < 2**31:
        raise ValueError(f"{size} coordinates are more than one key has blocks for")
    scale = Scale.at_least(std)
    steps, settled = draw_many(key, size, scale, stream)
    with jax.enable_x64(True):
        if not bool(jnp.all(settled)):  # hardly ever
            for place in map(int, np.flatnonzero(~np.asarray(settled))):
                steps = steps.at[place].set(draw_one(key, place, scale, stream))
        return steps[:size]


def draw_many(key: bytes, size: int, scale: Scale, stream: int) -> Drawn:
    """As many coordinates, as far as 64 bits settle them."""
    padded = _padded_size(size)
    shared = None
    if jax.default_backend() == "cpu":  # OpenSSL is faster there than what XLA compiles
        shared = chacha20_by_openssl(key, padded // 3, (SHARED, stream, 0))
    with jax.enable_x64(True):
        return _draw(drawn_from(key, scale, stream, size), padded, shared)


def drawn_from(key: bytes, scale: Scale, stream: int, size: int) -> np.ndarray:
    """The first argument of `_draw`: the words of a key, the stream, the scale, and how many coordinates are no
    padding. A device gets all of it at once.
    """
    numbers = np.array([stream, scale.mantissa, _shift(scale, 64), size], "<u4")
    return np.concatenate([np.frombuffer(key, "<u4"), numbers])


def _padded_size(size: int) -> int:
    """The size rounded up, so that models of about one size share a program: three coordinates for every block."""
    blocks = -(-size // 3)
    step = max(_LEAST_BLOCKS, 2 ** (blocks.bit_length() - 3))
    return 3 * max(1, -(-blocks // step)) * step


def _blocks_at_once(blocks: int) -> int:
    """All of them on a GPU."""
    return math.gcd(_BLOCKS_AT_ONCE, blocks) if jax.default_backend() == "cpu" else blocks


@partial(jax.jit, static_argnums=1)
def _draw(words: Any, padded: int, shared: UInt32[Array, "blocks words"] | None = None) -> Drawn:
    """The program of `draw_many`. The first candidates' words are `shared`, or else computed here."""
    key, (stream, mantissa, shift, size) = words[:8], words[8:]
    scale = mantissa.astype(jnp.uint64), shift.astype(jnp.uint64)
    table = jax.lax.optimization_barrier(jnp.asarray(_table()))  # else XLA looks up every number while it compiles
    candidates = partial(_candidates, *scale, table)

    def draw(counters: Array, shared: Array | None) -> tuple[Array, Array]:
        """Coordinates that lie side by side, and whether they are settled."""
        first = chacha20_blocks(key, counters, (SHARED, stream, 0)) if shared is None else list(shared.T)
        steps, kept, sure = (each.reshape(-1) for each in candidates(first))
        # One in 160 needs its second candidate. `draw_one` has what there is no room for.
        places = _places_of(sure & ~kept, len(steps) // 32 + 32)
        own = (3 * counters[0] + places).astype(jnp.uint32)
        again, found, certain = candidates(chacha20_blocks(key, own, (OWN, stream, 0)))
        first_found = jnp.argmax(found, axis=1, keepdims=True)
        certain = found.any(axis=1) & (certain | (jnp.arange(3) > first_found)).all(axis=1)
        steps = steps.at[places].set(jnp.take_along_axis(again, first_found, axis=1)[:, 0], mode="drop")
        return steps, (kept & sure).at[places].set(certain, mode="drop")

    counters = jnp.arange(padded // 3, dtype=jnp.uint32).reshape(-1, _blocks_at_once(padded // 3))
    shared = None if shared is None else shared.reshape(*counters.shape, 16)
    drawn = jax.lax.map(lambda part: draw(*part), (counters, shared))
    steps, settled = (each.reshape(padded) for each in drawn)
    settled |= jnp.arange(padded) >= size
    return Drawn(steps, settled)


def _places_of(chosen: Bool[Array, " size"], room: int) -> Int[Array, " room"]:
    """The first places that are chosen; where there are fewer, `size` follows. It is faster than `jnp.nonzero`."""
    until = jnp.cumsum(chosen, dtype=jnp.int32)
    return jnp.searchsorted(until, jnp.arange(1, room + 1, dtype=jnp.int32), method="scan_unrolled")


def _candidates(mantissa: Any, shift: Any, table: Any, words: list[Array]) -> tuple[Array, Array, Array]:
    """The three candidates of every block: round(scale · X), is it kept, and do 64 bits of each number settle both?"""
    cell_high, cell_low, place_high, place_low, coin = (
        jnp.stack([words[word + 5 * number] for number in range(3)], axis=1) for word in range(5)
    )
    cell_bits, place = _joined(cell_high, cell_low), _joined(place_high, place_low)
    cell = jnp.searchsorted(table, cell_bits, side="left", method="scan_unrolled")  # as many thresholds lie below
    sure = jnp.take(table, cell, mode="clip") != cell_bits
    t = place.astype(jnp.float64) * 2.0**-64
    drawn, exact = _rounded(cell.astype(jnp.uint64), place, mantissa, shift)
    chance = _chance(cell, t)
    least, most = (coin.astype(jnp.float64) + end for end in (0, 1))  # of the coin, in units of 2^-32
    kept = most <= (chance - _EXP_ERROR) * 2.0**32
    sure &= exact & (kept | (least >= (chance + _EXP_ERROR) * 2.0**32))
    negative = (words[15][:, None] >> jnp.arange(3, dtype=jnp.uint32)) & 1 == 1
    return jnp.where(negative, -drawn, drawn), kept, sure


def _chance(cell: Array, t: Array) -> Array:
    """The chance that a candidate is kept: the density at its place over that at the start of the cell."""
    return jnp.exp(-t * (2 * cell + t) / (2 * CELLS**2))


def _rounded(cell: Array, place: Array, mantissa: Any, shift: Any) -> tuple[Array, Array]:
    """floor(mantissa · (cell · 2^64 + place) / 2^shift + 1/2), and is it so whatever bits follow in `place`?

    The product has up to 106 bits, so it is kept in two numbers of 64. Shifts below 0 or above 63 give 0.
    """
    one, all_ones, low_half = jnp.uint64(1), ~jnp.uint64(0), jnp.uint64(2**32 - 1)
    below = mantissa * (place & low_half)
    above = mantissa * (place >> 32) + (below >> 32)
    high, low = mantissa * cell + (above >> 32), (above << 32) | (below & low_half)
    rounded = low + (one << (shift - 1))
    high += (one << (shift - 65)) + (rounded < low).astype(jnp.uint64)
    low = rounded
    steps = (high >> (shift - 64)) | (high << (64 - shift)) | (low >> shift)
    # The bits that follow add less than `mantissa` to the product: does that carry beyond what is cut off?
    high_mask = jnp.where(shift > 64, ~(all_ones << (shift - 64)), 0)
    low_mask = ~(all_ones << shift)
    rest = low & low_mask
    carried = rest + (mantissa - 1)
    carries = (carried > low_mask) | (carried < rest) & (high & high_mask == high_mask)
    return steps.astype(jnp.int64), ~carries


def _joined(high: Array, low: Array) -> Array:
    return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)


def _shift(scale: Scale, bits: int) -> int:
    """How far mantissa · (cell · 2^bits + place) is from scale · |X|."""
    return bits + CELLS.bit_length() - 1 - scale.exponent


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    return np.array(thresholds(64), np.uint64)


@lru_cache(maxsize=8)
def thresholds(bits: int) -> list[int]:
    """floor(2^bits · P[|X|'s cell <= j]) for j = 0, 1, ... up to the first that is 2^bits - 1."""
    with decimal.localcontext() as context:
        context.prec = digits = math.ceil(bits * math.log10(2)) + 30
        context.Emin, context.Emax = -(10**9), 10**9
        weights = []
        while not weights or weights[-1] > decimal.Decimal(10) ** -digits:
            weights.append((-((decimal.Decimal(len(weights)) / CELLS) ** 2) / 2).exp())
        whole, found, total = sum(weights), [], decimal.Decimal(0)
        for weight in weights:
            total += weight
            scaled = total / whole * 2**bits
            floor = int(scaled)
            error = abs(scaled - round(scaled))  # a floor that the last digits decide would not be known
            assert error > decimal.Decimal(10) ** -15
            found.append(floor)
            if floor == 2**bits - 1:
                return found
    raise AssertionError("the cells that were weighed do not reach the last threshold")


def draw_one(key: bytes, coordinate: int, scale: Scale, stream: int = 0) -> int:
    """One coordinate, with as many bits of every random number as its decisions need: the twin to read."""
    for candidate in count():
        cell_bits, place, coin, sign = (_Uniform(key, stream, coordinate, candidate, use) for use in _USES)
        cell = _settled(_cell, cell_bits)
        if _settled(partial(_kept, cell), place, coin):
            steps = _settled(partial(_steps_of, scale, cell), place)
            return -steps if sign.first(1) else steps
    raise AssertionError("some candidate is kept")


def _settled(decide: Callable[..., Any], *numbers: _Uniform) -> Any:
    """What the first 64 bits of some numbers decide, or else twice as many, and so on."""
    bits = 64
    while (found := decide(*(number.first(bits) for number in numbers), bits)) is None:
        bits *= 2
    return found


def _steps_of(scale: Scale, cell: int, place: int, bits: int) -> int | None:
    """round(scale · |X|), unless bits of the place that follow could change it."""
    shift = _shift(scale, bits)
    least = scale.mantissa * (cell * 2**bits + place) + 2 ** (shift - 1)
    return least >> shift if least >> shift == (least + scale.mantissa - 1) >> shift else None


def _cell(uniform: int, bits: int) -> int | None:
    """The cell of a uniform number in [uniform, uniform + 1)/2^bits, unless a threshold lies in there."""
    table = thresholds(bits)
    return None if uniform in table else sum(threshold < uniform for threshold in table)


def _kept(cell: int, place: int, coin: int, bits: int) -> bool | None:
    """Is coin < exp(-t(2·cell + t)/8192), for any t and coin that begin with these bits?"""
    with decimal.localcontext() as context:
        context.prec = 2 * bits
        slack = decimal.Decimal(2) ** -(bits + 8)  # more than the rounding of the lines below
        ends = [decimal.Decimal(end) / 2**bits for end in (place, place + 1)]
        most, least = ((-t * (2 * cell + t) / (2 * CELLS**2)).exp() for t in ends)
        if decimal.Decimal(coin + 1) / 2**bits <= least - slack:
            return True
        return False if decimal.Decimal(coin) / 2**bits >= most + slack else None


_USES = {"cell": (0, 2), "place": (2, 4), "coin": (4, 5), "sign": (5, 5)}  # with the words of a candidate


class _Uniform(NamedTuple):
    """A uniform random number in [0, 1), for one use by one candidate of a coordinate, with as many bits as needed.

    The first bits are those of `_candidates`. Further bits, and later candidates, have blocks of their own.
    """

    key: bytes
    stream: int
    coordinate: int
    candidate: int
    use: str

    def first(self, bits: int) -> int:
        number, known = self._drawn_at_once()
        block = 0
        while known < bits:
            nonce = (2 + 4 * self.candidate + list(_USES).index(self.use), self.stream, block)
            for word in chacha20_block(self.key, self.coordinate, nonce):
                number, known = number << 32 | word, known + 32
            block += 1
        return number >> (known - bits)

    def _drawn_at_once(self) -> tuple[int, int]:
        """The bits of this number that `_candidates` has, and their number."""
        if self.candidate > 3:
            return 0, 0
        if self.candidate == 0:
            block, place = divmod(self.coordinate, 3)
            words = chacha20_block(self.key, block, (SHARED, self.stream, 0))
        else:
            place = self.candidate - 1
            words = chacha20_block(self.key, self.coordinate, (OWN, self.stream, 0))
        if self.use == "sign":
            return words[15] >> place & 1, 1
        first, last = _USES[self.use]
        number = 0
        for word in words[5 * place + first : 5 * place + last]:
            number = number << 32 | word
        return number, 32 * (last - first)
