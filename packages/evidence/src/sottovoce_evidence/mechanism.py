"""One object from which everything private is derived: sensitivity, noise, and what the accountant charges.

These are the numbers: a statement, a plan and a reviewer ask for them, and do without jax. The library's
`privacy/mechanism.py` adds the noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from sottovoce_evidence import bounds, sampling
from sottovoce_evidence.accounting import DEFAULT_ACCOUNTANT
from sottovoce_evidence.accounting.composition import Spent
from sottovoce_evidence.accounting.events import ADDED, CorrelatedGaussian, Covered, Event, NonPrivate
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, Participation, StrategyMatrix
from sottovoce_evidence.adaptive import LEARNING_RATE, QuantileTracking
from sottovoce_evidence.bounds import ClipNorms, Sensitivity, even_norms, grid_of, joint_norm
from sottovoce_evidence.device_noise import DeviceNoise, how_often
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Privacy, Recipe
from sottovoce_evidence.registry import Registry
from sottovoce_evidence.sampling import Sampling
from sottovoce_evidence.schedule import CONSTANT, Schedule, build_schedule

# Beyond these, squares and quotients leave the range of float32.
LEAST_NORM, MOST_NORM = 1e-9, 1e9
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
MOST_CORRELATED = 2.0**14  # noise over the clip norm: beyond, the numbers of a stream leave the range of float64
INDEPENDENT = Identity()


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

    sampler: Sampling
    clipping: ClipNorms
    estimator: Sensitivity
    noise_multiplier: float
    clip_schedule: Schedule = CONSTANT
    noise_schedule: Schedule = CONSTANT
    tracking: QuantileTracking | None = None
    experiment: bool = False
    experiment_noise_std: float | None = None
    nominal_clip_norm: float = math.inf  # what an experiment without a clip scales its noise by
    matrix: StrategyMatrix = INDEPENDENT  # C
    participation: Participation | None = None  # how often one user may join, where noise is correlated
    devices: DeviceNoise | None = None  # where devices add noise: then z is at least theirs
    # Of a sum that was unmasked and has the noise of devices: 0 where it is not known. None: there is no such sum, and
    # the noise of all its devices is drawn in one place.
    modulus: int | None = None

    def __post_init__(self) -> None:
        if self.experiment_noise_std is not None and not self.experiment:
            raise SottoError("noise_std is for experiments: a private round derives it from noise_multiplier")
        if self.correlated or self.matrix != INDEPENDENT:
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
        if self.experiment or changes or self.correlated or self.estimator.step(1.0) is None:
            raise SottoError(
                "federation.noise='devices' needs a private run with independent noise, one noise multiplier, "
                "estimator='fixed_denominator' and no adaptive clip norm; or use 'server'"
            )
        devices.check(self.noise_multiplier)

    @property
    def correlated(self) -> bool:
        """Is the noise of one round correlated with that of others?"""
        return self.participation is not None

    @cached_property
    def _run(self) -> CorrelatedGaussian:
        """The one event of a run with correlated noise."""
        assert self.participation is not None
        return CorrelatedGaussian(self.noise_multiplier, self.matrix, self.participation)

    @cached_property
    def run_sensitivity(self) -> float:
        """How far one user moves a run, over how far they move one round."""
        return self._run.sensitivity if self.correlated else 1.0

    def across_devices(self, modulus: int | None = 0) -> Self:
        """The same at a server that unmasked a sum with the noise of devices, where they add it; None: there is none.

        The sum is known up to multiples of `modulus`, and so is what is released.
        """
        return self if self.devices is None else replace(self, modulus=modulus)

    @property
    def against_server(self) -> list[tuple[Event, int]]:
        """What the server sees of one user, where devices add noise."""
        return [] if self.devices is None else self.devices.against_server

    def joining(self, rounds: int) -> Participation | None:
        """How often, and how close together, a device lets a user join; None where nothing bounds it."""
        found = self.sampler.participation(rounds)
        if found is not None or self.devices is None:
            return found
        return Participation(rounds, 1, self.devices.participations)

    def with_sampler(self, sampler: Sampling) -> Self:
        """The same noise with another sampler; where it is correlated, z follows from what that one lets a user do."""
        if self.participation is None:
            return replace(self, sampler=sampler)
        other = replace(self, sampler=sampler, participation=sampler.participation(self.participation.rounds))
        return replace(other, noise_multiplier=self.noise_multiplier * self.run_sensitivity / other.run_sensitivity)

    def _check_numbers(self) -> None:
        """Refuse, before anything is trained, what a proof in real numbers allows and float32 does not."""
        for _, factor in self.noise_schedule.points:
            z = self.noise_multiplier * factor
            if self.correlated and z * self.run_sensitivity > MOST_CORRELATED:
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

    def noise_std(self, round_number: int, clip_norms: Any) -> tuple[float, float | None]:
        """σ on every coordinate of what is released, and on each count of bits where there are any.

        Where devices added noise, it may be more: this is what is charged for.
        """
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
        if self.devices is not None and self.modulus is None:
            z = self.devices.multiplier(z, self.devices.survivors)
        return self._update_multiplier(z) * self.run_sensitivity * self.sensitivity(clip_norms), bits

    def drawn_std(self, round_number: int, clip_norms: Any) -> tuple[float, float | None]:
        """The part of σ that is drawn in one place: devices that add noise have drawn theirs."""
        if self.devices is None or self.modulus is None:
            return self.noise_std(round_number, clip_norms)
        return self.devices.multiplier(self.noise_multiplier, 0) * self.sensitivity(clip_norms), None

    @property
    def is_private(self) -> bool:
        """Does it promise anything? That needs noise, and a bound on what one user can do."""
        bound = self.sensitivity(self.clipping.clip_norms)
        return not self.experiment and self.noise_multiplier > 0 and math.isfinite(bound)

    def event(self, round_number: int) -> Event:
        """What a round charges: z, since update and bits are one Gaussian mechanism."""
        if not self.is_private:
            return NonPrivate()
        if self.correlated:
            return self._run if round_number == 1 else Covered(self.noise_multiplier, ADDED)
        z = self.noise_multiplier * self.noise_schedule(round_number)
        return self.sampler.event_of_round(z, round_number)

    def events(self, rounds: int) -> list[tuple[Event, int]]:
        """What the first rounds of a run charge, in order."""
        if self.correlated and self.is_private:
            if rounds > self._run.participation.rounds:
                raise SottoError(f"{rounds} rounds are more than the {self._run.participation.rounds} planned ones")
            return [(self._run, 1)] if rounds else []
        noise = [(self.noise_multiplier * factor, count) for factor, count in self.noise_schedule.stretches(rounds)]
        charges = self.sampler.events(noise)
        return charges if self.is_private else [(NonPrivate(), count) for _, count in charges]

    def _update_multiplier(self, z: float) -> float:
        if self.tracking is None:
            return z
        # The noise over what one update and its bits move: a person has `most` of both.
        most = self.sampler.most_updates
        return self.tracking.update_multiplier(z * most, len(self.clipping.clip_norms)) / most


class Kinds(NamedTuple):
    """The blocks of a mechanism by the name that a recipe uses: their numbers, or, in the library, what draws."""

    samplers: Registry[Any] = sampling.SAMPLERS
    clips: Registry[Any] = bounds.CLIPS
    estimators: Registry[Any] = bounds.ESTIMATORS


NUMBERS = Kinds()


def accountant_of(privacy: Privacy) -> str:
    """The accountant that a recipe names, or the default."""
    return DEFAULT_ACCOUNTANT if privacy.accountant == "auto" else privacy.accountant


def mechanism_of(
    recipe: Recipe, layers: Collection[str] = ("all",), kinds: Kinds = NUMBERS, made: Any = Mechanism
) -> Any:
    """The mechanism of a resolved recipe, for a model of these layers. A mapping gives each its number of arrays."""
    privacy, sampler = recipe.privacy, sampler_of(recipe, kinds)
    experiment = privacy.mode == "experiment"
    correlated = privacy.noise != Identity.kind and privacy.mode == "private"
    return made(
        sampler=sampler,
        clipping=clip_of(recipe, layers, kinds),
        estimator=estimator_of(privacy, kinds),
        noise_multiplier=0.0 if privacy.mode == "none" else privacy.noise_multiplier or 0.0,
        clip_schedule=build_schedule(privacy.clip_schedule),
        noise_schedule=build_schedule(privacy.noise_schedule),
        tracking=tracking_of(privacy),
        experiment=experiment,
        experiment_noise_std=privacy.noise_std if experiment else None,
        nominal_clip_norm=privacy.clip_norm,
        matrix=matrix_of(privacy) if correlated else Identity(),
        participation=sampler.participation(recipe.run.rounds) if correlated else None,
        devices=device_noise_of(recipe, sampler),
    )


def charges_of(recipe: Recipe, noise_multiplier: float = 1.0) -> Spent:
    """What a private run costs: at z = 1, what is scaled to find the noise for an ε.

    It depends on the noise alone, not on the clip or the model. Whatever the strategy matrix is, z is the noise over
    the sensitivity that the run has with it: it may be found later.
    """
    privacy, sampler = recipe.privacy, sampler_of(recipe)
    if privacy.noise != Identity.kind:
        participation = sampler.participation(recipe.run.rounds)
        assert participation is not None  # a rule refuses correlated noise of other samplers
        matrix = matrix_of(privacy) if privacy.noise_coefficients else Identity()
        return [(CorrelatedGaussian(noise_multiplier, matrix, participation), 1)]
    stretches = build_schedule(privacy.noise_schedule).stretches(recipe.run.rounds)
    return sampler.events([(noise_multiplier * factor, count) for factor, count in stretches])


def sampler_of(recipe: Recipe, kinds: Kinds = NUMBERS) -> Any:
    """The sampler, from what is declared: each gets what its constructor asks for."""
    privacy, silos = recipe.privacy, recipe.federation.max_silos
    most = -(-recipe.run.rounds // max(privacy.min_separation, 1))  # rounds that a user can join
    if silos > 1 and not kinds.samplers[privacy.sampling].takes("silos"):
        raise SottoError(
            f"privacy.sampling={privacy.sampling!r} has no accounting for one person in {silos} silos; use 'poisson'"
        )
    return kinds.samplers.build(
        privacy.sampling,
        user_rate=privacy.cohort / privacy.users,
        cohort=int(privacy.cohort) if privacy.cohort.is_integer() else privacy.cohort,
        users=privacy.users,
        seed=recipe.run.seed,
        silos=silos,
        min_separation=privacy.min_separation,
        most_participations=min(privacy.participations or most, most),
        example_rate=privacy.rate,
        examples_per_user=privacy.examples_per_user,
    )


def clip_of(recipe: Recipe, layers: Collection[str], kinds: Kinds = NUMBERS) -> Any:
    """The clip of a model of these layers. A mapping gives each its number of arrays."""
    privacy, silos = recipe.privacy, recipe.federation.max_silos
    # A person sends up to one update from each of their silos: together they have the norm S.
    return kinds.clips.build(
        privacy.clipping,
        clip_norm=privacy.clip_norm / silos,
        clip_norms=even_norms(privacy.clip_norm / silos, len(layers)),
        arrays=tuple(layers.values()) if isinstance(layers, Mapping) else (),
    )


def estimator_of(privacy: Privacy, kinds: Kinds = NUMBERS) -> Any:
    """The estimator, with the denominator that is declared."""
    rate, total = privacy.rate, privacy.declared_weight
    return kinds.estimators.build(privacy.estimator, expected_weight=rate * total, least_weight=rate * total)


def tracking_of(privacy: Privacy) -> QuantileTracking | None:
    """How the clip norm adapts, where it does."""
    if privacy.adaptive_quantile is None:
        return None
    bit_noise = privacy.adaptive_bit_noise or privacy.cohort / 20
    return QuantileTracking(privacy.adaptive_quantile, LEARNING_RATE, bit_noise, privacy.cohort)


def device_noise_of(recipe: Recipe, sampler: Sampling) -> DeviceNoise | None:
    """The noise of devices, where they add it."""
    federation = recipe.federation
    if federation.noise == "server":
        return None
    z = federation.server_noise_multiplier or recipe.privacy.noise_multiplier or 1.0
    most = how_often(sampler, recipe.run.rounds, federation.participations)
    return DeviceNoise(z, federation.survivors, federation.colluding, most)


def matrix_of(privacy: Privacy) -> StrategyMatrix:
    """The strategy matrix of a resolved recipe."""
    if privacy.noise == Blt.kind:
        return Blt(privacy.noise_coefficients, privacy.noise_decays)
    if privacy.noise == Banded.kind:
        return Banded(privacy.noise_coefficients)
    return Identity()


def settings_of(matrix: StrategyMatrix) -> dict[str, tuple[float, ...]]:
    """What a recipe keeps of a matrix that was found."""
    if isinstance(matrix, Blt):
        return {"noise_coefficients": matrix.scales, "noise_decays": matrix.decays}
    assert isinstance(matrix, Banded)
    return {"noise_coefficients": matrix.bands}
