"""The mechanism of a run, which adds the noise. Its numbers are in `sottovoce_evidence.mechanism`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.gpu import on_device
from sottovoce.privacy.clipping import Clip
from sottovoce.privacy.estimators import Estimator
from sottovoce.privacy.fixed_point import BIT_STEP
from sottovoce.privacy.noise import NoiseState, rounded_gaussian
from sottovoce.privacy.noise_stream import NoiseStream, stream_of
from sottovoce.privacy.sampling import Sampler
from sottovoce_evidence import mechanism
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.mechanism import INDEPENDENT

_STEPS_IN_NOISE = 26  # where the grid is chosen by the noise: its standard deviation has at least 2^26 steps


class Estimate(NamedTuple):
    """What a round computes from its cohort, and releases once it is noised."""

    update: Any  # the estimated average update
    bits: Any = None  # where the clip norm adapts: how many users stayed within it, centred


@partial(jax.jit, static_argnums=0)
def _estimate(estimator: Estimator, total: Any, weight: Any) -> Any:
    return estimator.estimate(total, weight)


class GridNoise(NamedTuple):
    """σ of the noise of one part of an estimate, and the public grid that both lie on."""

    std: float
    step: float = 1.0  # of the sum
    finer: int = 0  # by how many bits the steps of the noise are finer
    modulus: int = 0  # the steps are known up to multiples of it; 0: as they are


def _noised(
    part: Any, scale: GridNoise, key: bytes, number: int, stream: NoiseStream, state: NoiseState = ()
) -> tuple[Any, NoiseState]:
    """The part, rounded to whole steps, plus noise in whole steps, and the next state of the stream of noise.

    What is released is a function of their sum.
    """
    if not scale.std:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), part), state
    drawn = rounded_gaussian(key, size_of(part), scale.std / scale.step * 2**scale.finer, number)
    with jax.enable_x64(True):
        noise, state = stream.next(state, drawn)
        return _add_steps(part, noise, on_device(scale.step, np.float64), scale.finer, scale.modulus), state


@partial(jax.jit, static_argnums=(3, 4))
def _add_steps(part: Any, noise: Any, step: Any, finer: int, modulus: int) -> Any:
    """The part plus noise, whose steps are `finer` by so many bits."""
    leaves, structure = jax.tree.flatten(part)
    noises = jnp.split(noise, list(accumulate(leaf.size for leaf in leaves))[:-1])
    noised = []
    for leaf, noise in zip(leaves, noises, strict=True):
        whole = jnp.rint(leaf / step)  # below 2^53, where float64 adds exactly
        if finer:
            whole = whole.astype(jnp.int64) * 2**finer  # below 2^48 by fixed_point.py: shifted, it fits 64 bits
        whole = whole + noise.reshape(leaf.shape)
        if modulus:
            whole = whole - modulus * jnp.floor(whole / modulus + 0.5)
        noised.append((whole * (step / 2**finer)).astype(jnp.float32))
    return structure.unflatten(noised)


def size_of(part: Any) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(part))


@dataclass(frozen=True)
class Mechanism(mechanism.Mechanism):
    """A sampler, a clip, an estimator and noise that belong together, as a round needs them: they draw."""

    sampler: Sampler
    clipping: Clip
    estimator: Estimator

    @cached_property
    def stream(self) -> NoiseStream:
        """The noise of rounds."""
        return stream_of(self.matrix, 1 if self.participation is None else self.participation.rounds)

    def estimate(self, total: Any, weight: Array, bits: Array) -> Estimate:
        """The estimate from the sums over the cohort, with the count of bits where the clip norm adapts."""
        with jax.enable_x64(True):  # sums are exact in float64, and stay so until they are noised
            return Estimate(_estimate(self.estimator, total, weight), None if self.tracking is None else bits)

    def init_noise(self, update: Any) -> NoiseState:
        """The state of the noise before the first round, for updates of this shape; empty if it is independent."""
        return self.stream.init(size_of(update)) if self.noise_multiplier else ()

    def add_noise(
        self, estimate: Estimate, noise: NoiseState, round_number: int, clip_norms: Any, key: bytes
    ) -> tuple[Estimate, NoiseState]:
        """The estimate with its noise, on one public grid, and the next state of the noise, which is a secret.

        Guarantee: it is a function of the sum of the estimate and of Gaussian noise, of the declared multiplier.
        """
        if self.participation is not None and not 1 <= round_number <= self.participation.rounds:
            planned = self.participation.rounds
            raise SottoError(f"round {round_number} was not planned: the noise is for {planned} rounds")
        std, bit_std = self.drawn_std(round_number, clip_norms)
        scale = self._scale(std, clip_norms, size_of(estimate.update))
        update, noise = _noised(estimate.update, scale, key, 0, self.stream, noise)
        bits = estimate.bits
        if bits is not None:
            bits, _ = _noised(bits, GridNoise(bit_std or 0.0, BIT_STEP), key, 1, stream_of(INDEPENDENT, 1))
        return Estimate(update, bits), noise

    def _scale(self, std: float, clip_norms: Any, size: int) -> GridNoise:
        """The grid of an update's noise of standard deviation `std`, with what rounding to the grid adds to that."""
        if not std:
            return GridNoise(0.0)
        one_round = self.sensitivity(clip_norms)
        step = None if self.experiment else self.estimator.step(self.grid(clip_norms))
        if step is None:
            step = 2.0 ** (math.floor(math.log2(std)) - _STEPS_IN_NOISE)
            if not self.experiment:
                # Each of two neighbouring estimates is rounded to the grid, and was divided in float64.
                rounding = math.sqrt(size) * step + 2.0**-50 * joint_norm(clip_norms)
                std *= 1 + rounding / one_round
        finer = self.stream.finer(std / step)
        # In units of what one user moves the run, by `rounding` steps in every coordinate of every round.
        moved = self.stream.rounding * math.sqrt(size * self.stream.rounds) * step / 2**finer
        std *= 1 + moved / (self.run_sensitivity * one_round)
        return GridNoise(std, step, finer, self.modulus or 0)

    def next_clip_norms(self, tracked: Any, noised: Estimate) -> np.ndarray | None:
        """The clip norms of the next round, where they adapt."""
        return None if self.tracking is None else self.tracking.next_clip_norms(tracked, np.asarray(noised.bits))
