"""One object from which everything private is derived: sensitivity, noise, and what the accountant charges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.gpu import on_device
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import Clip, joint_norm
from sottovoce.privacy.device_noise import DeviceNoise, check_noised
from sottovoce.privacy.estimators import Estimator
from sottovoce.privacy.fixed_point import BIT_STEP, grid_of
from sottovoce.privacy.noise import NoiseState, rounded_gaussian
from sottovoce.privacy.noise_stream import NoiseStream, finer, stream_of
from sottovoce.privacy.sampling import Sampler
from sottovoce.privacy.schedule import CONSTANT, Schedule
from sottovoce.privacy.skellam import skellam
from sottovoce_evidence.accounting.events import ADDED, CorrelatedGaussian, Covered, Event, NonPrivate
from sottovoce_evidence.accounting.matrices import Identity, Participation, StrategyMatrix
from sottovoce_evidence.errors import SottoError

# Beyond these, squares and quotients leave the range of float32.
LEAST_NORM, MOST_NORM = 1e-9, 1e9
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
MOST_CORRELATED = 2.0**14  # noise over the clip norm: beyond, the numbers of a stream leave the range of float64
_STEPS_IN_NOISE = 26  # where the grid is chosen by the noise: its standard deviation has at least 2^26 steps


INDEPENDENT = Identity()


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
class Mechanism:
    """A sampler, a clip, an estimator and noise that belong together.

    `noise_multiplier` is z: the noise over the add-or-remove sensitivity. It and the clip norm may follow a schedule;
    the clip norm may instead adapt by `tracking`. An `experiment` may have a σ of its own, or no clip, and charges an
    infinite ε.

    The noise of rounds is independent, unless `matrix` correlates it over the planned rounds of `participation`. Then
    the sensitivity is that of the run: how far one user moves C·(estimates of all rounds). It is one release.

    Where the sampler lets one person be a user of m silos, every silo clips to S/m, and the sensitivity is that of the
    person: m updates, each as long as the clip allows.
    """

    sampler: Sampler
    clipping: Clip
    estimator: Estimator
    noise_multiplier: float
    clip_schedule: Schedule = CONSTANT
    noise_schedule: Schedule = CONSTANT
    tracking: QuantileTracking | None = None
    experiment: bool = False
    experiment_noise_std: float | None = None
    nominal_clip_norm: float = math.inf  # what an experiment without a clip scales its noise by
    unit: str = "user"
    matrix: StrategyMatrix = INDEPENDENT  # C
    participation: Participation | None = None  # how often one user may join, where noise is correlated
    devices: DeviceNoise | None = None  # where devices add noise: then z is at least theirs, and all noise is Skellam

    def __post_init__(self) -> None:
        if self.experiment_noise_std is not None and not self.experiment:
            raise SottoError("noise_std is for experiments: a private round derives it from noise_multiplier")
        if self.clipping.weight_aware and not self.estimator.takes_weighted_clip:
            raise SottoError(
                "weight-aware clipping bounds w·Δ; this estimator needs a bound of Δ; use fixed_denominator"
            )
        if self.stream is not None:
            self._check_correlated()
        if self.devices is not None:
            self._check_devices(self.devices)
        # The sampler refuses a noise that it has no accounting for.
        self.sampler.events([(factor, 1) for _, factor in self.noise_schedule.points])
        if not self.experiment and self.noise_multiplier:
            self._check_numbers()

    def _check_correlated(self) -> None:
        if self.participation is None or self.participation != self.sampler.participation(self.participation.rounds):
            raise SottoError("correlated noise needs the participation that its sampler keeps to")
        changes = self.tracking is not None or {self.noise_schedule, self.clip_schedule} != {CONSTANT}
        if self.experiment or changes:
            raise SottoError("correlated noise needs a private run with one clip norm and one noise multiplier")

    def _check_devices(self, devices: DeviceNoise) -> None:
        changes = self.tracking is not None or self.noise_schedule != CONSTANT
        if self.experiment or changes or self.stream is not None or self.estimator.step(1.0) is None:
            raise SottoError(
                "noise of devices needs a private run with a fixed denominator, one noise multiplier, and independent "
                "noise"
            )
        if devices.honest < 1 or self.noise_multiplier < devices.noise_multiplier:
            raise SottoError("noise of devices needs an honest device, and is part of the noise of a round")

    @cached_property
    def stream(self) -> NoiseStream | None:
        """The noise of rounds, where it is correlated."""
        return None if self.participation is None else stream_of(self.matrix, self.participation.rounds)

    @cached_property
    def _run(self) -> CorrelatedGaussian:
        """The one event of a run with correlated noise."""
        assert self.participation is not None
        return CorrelatedGaussian(self.noise_multiplier, self.matrix, self.participation)

    @cached_property
    def run_sensitivity(self) -> float:
        """How far one user moves a run, over how far they move one round."""
        return 1.0 if self.stream is None else self._run.sensitivity

    def across_devices(self) -> Mechanism:
        """The same at a server whose devices have added their noise, where they do."""
        return self if self.devices is None else replace(self, devices=replace(self.devices, simulated=False))

    def joining(self, rounds: int) -> Participation | None:
        """How often, and how close together, a device lets a user join; None where nothing bounds it."""
        found = self.sampler.participation(rounds)
        if found is not None or self.devices is None:
            return found
        return Participation(rounds, 1, self.devices.participations)

    def with_sampler(self, sampler: Sampler) -> Mechanism:
        """The same noise with another sampler; where it is correlated, z follows from what that one lets a user do."""
        if self.participation is None:
            return replace(self, sampler=sampler)
        other = replace(self, sampler=sampler, participation=sampler.participation(self.participation.rounds))
        return replace(other, noise_multiplier=self.noise_multiplier * self.run_sensitivity / other.run_sensitivity)

    def _check_numbers(self) -> None:
        """Refuse, before anything is trained, what a proof in real numbers allows and float32 does not."""
        for _, factor in self.noise_schedule.points:
            z = self.noise_multiplier * factor
            if self.stream is not None and z * self.run_sensitivity > MOST_CORRELATED:
                raise SottoError(
                    f"noise_multiplier={z:g} times the sensitivity {self.run_sensitivity:g} of the run must be at most "
                    f"{MOST_CORRELATED:g}"
                )
            if not LEAST_NOISE <= z <= MOST_NOISE:
                raise SottoError(
                    f"noise_multiplier={z:g} must be from {LEAST_NOISE:g} to {MOST_NOISE:g} in every round; often 1"
                )
            if (multiplier := self._update_multiplier(z)) > MOST_NOISE:
                raise SottoError(
                    f"the bits of adaptive clipping leave the update a noise multiplier of {multiplier:g}, above "
                    f"{MOST_NOISE:g}; raise privacy.adaptive_bit_noise"
                )
        norms = self.clipping.clip_norms if self.clipping.bounded else ()
        for norm in (each * factor for _, factor in self.clip_schedule.points for each in norms):
            if not LEAST_NORM <= norm <= MOST_NORM:
                raise SottoError(
                    f"clip_norm={norm:g} must be from {LEAST_NORM:g} to {MOST_NORM:g} in every round and layer"
                )

    def start(self) -> np.ndarray | None:
        """The clip norms that tracking begins with; None where the clip norm does not adapt."""
        return None if self.tracking is None else np.asarray(self.clipping.clip_norms, np.float32)

    def clip_norms(self, round_number: int, tracked: Any) -> np.ndarray:
        """What each part of an update is clipped to in this round: public, since it is planned or was noised."""
        if self.tracking is not None:
            return np.asarray(tracked, np.float32)
        return np.asarray(self.clipping.clip_norms, np.float32) * np.float32(self.clip_schedule(round_number))

    def sensitivity(self, clip_norms: Any) -> float:
        """How far adding or removing one user can move the estimate, with all the updates that they may send."""
        return self.sampler.most_updates * self.estimator.sensitivity(joint_norm(clip_norms))

    def grid(self, clip_norms: Any) -> float | None:
        """Contributions are cut to whole multiples of this, and added exactly; None without a clip."""
        longest = joint_norm(clip_norms)
        return grid_of(longest) if math.isfinite(longest) else None

    def steps(self, clip_norms: Any) -> float:
        """S in steps of the grid, where there is a clip: of a person, with all the updates that they may send."""
        grid = self.grid(clip_norms)
        assert grid is not None
        return self.sampler.most_updates * joint_norm(clip_norms) / grid

    def estimate(self, total: Any, weight: Array, bits: Array) -> Estimate:
        """The estimate from the sums over the cohort, with the count of bits where the clip norm adapts."""
        with jax.enable_x64(True):  # sums are exact in float64, and stay so until they are noised
            return Estimate(_estimate(self.estimator, total, weight), None if self.tracking is None else bits)

    def noise_std(self, round_number: int, clip_norms: Any) -> tuple[float, float | None]:
        """σ on every coordinate of the estimate, and on each count of bits where there are any."""
        z = self.noise_multiplier * self.noise_schedule(round_number)
        bits = None if self.tracking is None else self.tracking.bit_noise
        if self.experiment_noise_std is not None:
            return self.experiment_noise_std * self.noise_schedule(round_number), bits
        if self.experiment:
            nominal = self.nominal_clip_norm * self.clip_schedule(round_number)
            longest = self.sampler.most_updates * joint_norm(clip_norms)
            return (z * self.estimator.sensitivity(min(longest, nominal)) if z else 0.0), bits
        if not z:
            return 0.0, None if bits is None else 0.0
        if self.devices is not None and self.devices.simulated:
            steps = self.steps(clip_norms)
            return self.devices.drawn_at_once(z, steps) / steps * self.sensitivity(clip_norms), None
        return self._update_multiplier(z) * self.run_sensitivity * self.sensitivity(clip_norms), bits

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

    @property
    def is_private(self) -> bool:
        """Does it promise anything? That needs noise, and a bound on what one user can do."""
        bound = self.sensitivity(self.clipping.clip_norms)
        return not self.experiment and self.noise_multiplier > 0 and math.isfinite(bound)

    def event(self, round_number: int, again: bool = False) -> Event:
        """What a round charges: z, since update and bits are one Gaussian mechanism.

        A round that is done `again` has its users twice, so no earlier charge covers it.
        """
        if not self.is_private:
            return NonPrivate()
        if self.stream is not None:
            if again:
                raise SottoError("a round with correlated noise is released once: two releases share earlier noise")
            return self._run if round_number == 1 else Covered(self.noise_multiplier, ADDED)
        z = self.noise_multiplier * self.noise_schedule(round_number)
        event = self.sampler.event(z) if again else self.sampler.event_of_round(z, round_number)
        return event if self.devices is None else self.devices.charged([(event, 1)])[0][0]

    @property
    def repeatable(self) -> bool:
        """May a round be done again with another sum, for another charge?

        Not with correlated noise: both releases would hold the same noise of earlier rounds.
        """
        return self.stream is None

    def events(self, rounds: int, done: int = 0) -> list[tuple[Event, int]]:
        """What rounds `done` + 1 to `rounds` of a run charge, in order."""
        if self.stream is not None and self.is_private:
            if rounds > self._run.participation.rounds:
                raise SottoError(f"{rounds} rounds are more than the {self._run.participation.rounds} planned ones")
            return [(self._run, 1)] if rounds and not done else []
        noise = [(self.noise_multiplier * factor, count) for factor, count in self.noise_schedule.stretches(rounds)]
        charges = self.sampler.events(noise, done)
        if self.devices is not None:
            charges = self.devices.charged(charges)
        return charges if self.is_private else [(NonPrivate(), count) for _, count in charges]

    def _update_multiplier(self, z: float) -> float:
        if self.tracking is None:
            return z
        # The noise over what one update and its bits move: a person has `most` of both.
        most = self.sampler.most_updates
        return self.tracking.update_multiplier(z * most, len(self.clipping.clip_norms)) / most
