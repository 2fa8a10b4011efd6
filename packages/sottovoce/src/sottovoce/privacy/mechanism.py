"""The mechanism of a run, which adds the noise. Its numbers are in `sottovoce_evidence.mechanism`."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from sottovoce.privacy.noise_stream import NoiseStream, finer, stream_of
from sottovoce.privacy.sampling import Sampler
from sottovoce.privacy.skellam import skellam
from sottovoce_evidence import mechanism
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.device_noise import DeviceNoise, check_noised
from sottovoce_evidence.errors import SottoError

_STEPS_IN_NOISE = 26  # where the grid is chosen by the noise: its standard deviation has at least 2^26 steps


class Estimate(NamedTuple):
    """What a round computes from its cohort, and releases once it is noised."""

    update: Any  # the estimated average update
    bits: Any = None  # where the clip norm adapts: how many users stayed within it, centred


@partial(jax.jit, static_argnums=0)
def _estimate(estimator: Estimator, total: Any, weight: Any) -> Any:
    return estimator.estimate(total, weight)


def _noised(
    part: Any, std: float, step: float, key: bytes, stream: int, use: Callable[[Any], Any] = lambda noised: noised
) -> Any:
    """The part, rounded to whole steps, plus noise in whole steps: what is released is a function of their sum.

    Or what `use` makes of it: see `rounded_gaussian`.
    """
    if not std:
        return use(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), part))

    def add(noise: Any) -> Any:
        with jax.enable_x64(True):
            noised = _add_steps(part, noise, on_device(step, np.float64))
        return use(noised)

    return rounded_gaussian(key, size_of(part), std / step, stream, add)


def _with_skellam(part: Any, steps: float, step: float, key: bytes) -> Any:
    """The same with Skellam noise, of a standard deviation of so many steps; without any if that is 0."""
    check_noised(size_of(part))
    noise = skellam(key, size_of(part), steps) if steps else np.zeros(size_of(part), np.int64)
    with jax.enable_x64(True):
        return _add_steps(part, noise, step)


@partial(jax.jit, static_argnums=3)
def _add_steps(part: Any, noise: Any, step: Any, finer: int = 0) -> Any:
    """The part plus noise, whose steps are `finer` by so many bits. What is behind the noise is not used."""
    leaves, structure = jax.tree.flatten(part)
    *noises, _ = jnp.split(noise, list(accumulate(leaf.size for leaf in leaves)))
    noised = []
    for leaf, noise in zip(leaves, noises, strict=True):
        whole = jnp.rint(leaf / step)  # below 2^53, where float64 adds exactly
        if finer:
            whole = whole.astype(jnp.int64) * 2**finer  # below 2^48 by fixed_point.py: shifted, it fits 64 bits
        noised.append(((whole + noise.reshape(leaf.shape)) * (step / 2**finer)).astype(jnp.float32))
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
    def stream(self) -> NoiseStream | None:
        """The noise of rounds, where it is correlated."""
        return None if self.participation is None else stream_of(self.matrix, self.participation.rounds)

    def estimate(self, total: Any, weight: Array, bits: Array) -> Estimate:
        """The estimate from the sums over the cohort, with the count of bits where the clip norm adapts."""
        with jax.enable_x64(True):  # sums are exact in float64, and stay so until they are noised
            return Estimate(_estimate(self.estimator, total, weight), None if self.tracking is None else bits)

    def init_noise(self, update: Any) -> NoiseState:
        """The state of the noise before the first round, for updates of this shape; empty if it is independent."""
        return () if self.stream is None or not self.noise_multiplier else self.stream.init(size_of(update))

    def add_noise(
        self,
        estimate: Estimate,
        noise: NoiseState,
        round_number: int,
        clip_norms: Any,
        key: bytes,
        use: Callable[[Estimate, NoiseState], Any] = lambda noised, noise: (noised, noise),
    ) -> Any:
        """The estimate with its noise, on one public grid, and the next state of the noise, which is a secret.

        Or what `use` makes of them. It may be asked twice, and what it answers the last time counts: a device goes on
        while the host finds out whether all of the noise is settled.

        Guarantee: it is a function of the sum of the estimate and of Gaussian noise, of the declared multiplier.
        """
        if self.devices is not None:
            return use(self._add_skellam(self.devices, estimate, clip_norms, key), noise)
        std, bit_std = self.noise_std(round_number, clip_norms)
        step = None if self.experiment else self.estimator.step(self.grid(clip_norms))
        if step is None and std:
            step = 2.0 ** (math.floor(math.log2(std)) - _STEPS_IN_NOISE)
            if not self.experiment:
                # Each of two neighbouring estimates is rounded to the grid, and was divided in float64.
                rounding = math.sqrt(size_of(estimate.update)) * step + 2.0**-50 * joint_norm(clip_norms)
                std *= 1 + rounding / self.sensitivity(clip_norms)
        if self.stream is not None and std:
            assert step is not None
            scale = std, step, self.sensitivity(clip_norms)
            return use(*self._add_correlated(estimate, noise, round_number, scale, key))
        bits = None if estimate.bits is None else _noised(estimate.bits, bit_std or 0.0, BIT_STEP, key, 1)
        return _noised(estimate.update, std, step or 1.0, key, 0, lambda update: use(Estimate(update, bits), noise))

    def _add_skellam(self, devices: DeviceNoise, estimate: Estimate, clip_norms: Any, key: bytes) -> Estimate:
        """The estimate with the noise of devices and server; of the server alone, where devices have added theirs."""
        draw = devices.drawn_at_once if devices.simulated else devices.top_up
        step = self.estimator.step(self.grid(clip_norms))
        assert step is not None
        noise = draw(self.noise_multiplier, self.steps(clip_norms)) if self.noise_multiplier else 0.0
        return Estimate(_with_skellam(estimate.update, noise, step, key))

    def _add_correlated(
        self, estimate: Estimate, noise: NoiseState, round_number: int, scale: tuple[float, float, float], key: bytes
    ) -> tuple[Estimate, NoiseState]:
        assert self.stream is not None
        assert self.participation is not None
        if not 1 <= round_number <= self.participation.rounds:
            planned = self.participation.rounds
            raise SottoError(f"round {round_number} was not planned: the noise is for {planned} rounds")
        std, step, one_round = scale
        bits, size = finer(std / step), size_of(estimate.update)
        # In units of what one user moves the run, by `rounding` steps in every coordinate of every round.
        moved = self.stream.rounding * math.sqrt(size * self.participation.rounds) * step / 2**bits
        std *= 1 + moved / (self.run_sensitivity * one_round)
        drawn = rounded_gaussian(key, size, std / step * 2**bits, 0)
        with jax.enable_x64(True):
            steps, noise = self.stream.next(noise, drawn.astype(jnp.float64))
            return Estimate(_add_steps(estimate.update, steps.astype(jnp.int64), step, bits)), noise

    def next_clip_norms(self, tracked: Any, noised: Estimate) -> np.ndarray | None:
        """The clip norms of the next round, where they adapt."""
        return None if self.tracking is None else self.tracking.next_clip_norms(tracked, np.asarray(noised.bits))
