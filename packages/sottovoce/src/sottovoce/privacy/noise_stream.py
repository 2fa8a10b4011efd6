"""The noise of a run's rounds, in whole steps of a public grid: w = C⁻¹ m for a strategy matrix C.

m has independent rounded Gaussians (`noise.py`), w is added to the estimates. Where C is the identity, the noise of
rounds is independent; else it is correlated. All numbers here are whole: float64 holds them exactly, products are
rounded one by one, and sums of whole numbers have no order. So w follows from m to the bit, on every machine.

Why what is released is a Gaussian mechanism (docs/explanation/guarantees.md has the proof): given the rounds before, a
round releases round(μ + g) with exact Gaussian g, where μ follows from the data and from what was released. One user
moves all μ of a run together by at most the sensitivity of C, and by `rounding` steps in each coordinate of each round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.privacy.noise import NoiseState
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, StrategyMatrix

# Where noise is correlated, a standard deviation of m has 2^41 to 2^42 steps: float64 then holds 2^11 standard
# deviations, and what rounding adds to the sensitivity is less than a millionth of it for a million parameters and 500
# rounds.
_STD_BITS = 42
MOST_STD = 2.0**_STD_BITS  # in steps of the sum


@dataclass(frozen=True)
class NoiseStream(ABC):
    """How the noise of the rounds of a run follows from independent draws: of every strategy matrix there is one.

    `init` is what it remembers before the first round, `next` the noise of the next round.
    """

    matrix: Any  # C
    rounds: int  # of the run

    @property
    @abstractmethod
    def rounding(self) -> float:
        """By how many steps rounding moves one coordinate of a round's mean, at most, between two populations."""

    def finer(self, std: float) -> int:
        """By how many bits its steps are finer than those of the sum, of which m has a standard deviation of `std`."""
        return max(0, _STD_BITS - (int(std).bit_length() if std >= 1 else 1))

    @abstractmethod
    def buffers(self) -> int:
        """How many vectors are remembered."""

    def init(self, size: int) -> NoiseState:
        """Before the first round."""
        with jax.enable_x64(True):
            return jnp.zeros((self.buffers(), size), jnp.float64)

    @abstractmethod
    def next(self, state: NoiseState, drawn: Any) -> tuple[Any, NoiseState]:
        """The noise of a round from its m, in steps, and what is remembered after it.

        Call it with 64-bit numbers enabled.
        """


class IdentityStream(NoiseStream):
    """w_t = m_t: independent noise, in steps of the sum. It remembers nothing."""

    @property
    def rounding(self) -> float:
        return 0.0

    def finer(self, std: float) -> int:
        return 0

    def buffers(self) -> int:
        return 0

    def init(self, size: int) -> NoiseState:
        return ()

    def next(self, state: NoiseState, drawn: Any) -> tuple[Any, NoiseState]:
        return drawn, state


class BltStream(NoiseStream):
    """w_t = m_t - Σ a_i s_i, then s_i ← λ_i s_i + w_t."""

    @property
    def rounding(self) -> float:
        # A product of whole numbers below 2^53 is off by 1 at most. In a buffer such errors decay like the buffer.
        pairs = zip(self.matrix.scales, self.matrix.decays, strict=True)
        lasting = [(scale, min(self.rounds, 1 / (1 - decay)) if decay < 1 else self.rounds) for scale, decay in pairs]
        return 2 * sum(1 + scale * lasts for scale, lasts in lasting)

    def buffers(self) -> int:
        return len(self.matrix.scales)

    def next(self, state: NoiseState, drawn: Any) -> tuple[Any, NoiseState]:
        return _next_blt(state, drawn, jnp.asarray(self.matrix.scales), jnp.asarray(self.matrix.decays))


@jax.jit
def _next_blt(state: Any, drawn: Any, scales: Any, decays: Any) -> tuple[Any, Any]:
    noise = drawn.astype(jnp.float64) - jnp.sum(jnp.rint(scales[:, None] * state), axis=0)
    return noise.astype(jnp.int64), jnp.rint(decays[:, None] * state) + noise


class BandedStream(NoiseStream):
    """w_t = m_t - Σ_j c_j w_{t-j}, from the noise of the last rounds."""

    @property
    def rounding(self) -> float:
        return 2.0 * self.buffers()

    def buffers(self) -> int:
        return len(self.matrix.bands) - 1

    def next(self, state: NoiseState, drawn: Any) -> tuple[Any, NoiseState]:
        return _next_banded(state, drawn, jnp.asarray(self.matrix.bands[1:]))


@jax.jit
def _next_banded(state: Any, drawn: Any, coefficients: Any) -> tuple[Any, Any]:
    noise = drawn.astype(jnp.float64) - jnp.sum(jnp.rint(coefficients[:, None] * state), axis=0)
    return noise.astype(jnp.int64), jnp.concatenate([noise[None], state[:-1]])[: len(state)]


_STREAMS = {Identity.kind: IdentityStream, Blt.kind: BltStream, Banded.kind: BandedStream}


def stream_of(matrix: StrategyMatrix, rounds: int) -> NoiseStream:
    """The stream of a strategy matrix, for so many rounds."""
    return _STREAMS[matrix.kind](matrix, rounds)
