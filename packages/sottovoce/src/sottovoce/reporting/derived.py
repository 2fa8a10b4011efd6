"""What a statement must say: its figures, derived again from the recipe of the run.

It is built from the blocks that the mechanism of the run is built from, and needs no jax. The facts are made by the
code that writes a statement, and compared field by field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sottovoce.build.blocks import (
    clip_of,
    device_noise_of,
    estimator_of,
    matrix_of,
    sampler_of,
    tracking_of,
)
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import CLIPS, Clip, PerLayerClip, joint_norm
from sottovoce.privacy.device_noise import STEPS, DeviceNoise
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.registry import Registry
from sottovoce.privacy.sampling import SAMPLERS, Sampler
from sottovoce.privacy.schedule import Schedule, build_schedule
from sottovoce.reporting.statement import MechanismFacts, Statement, declared_facts, mechanism_facts
from sottovoce.runs.folder import RECIPE
from sottovoce_evidence.accounting import Spent, total_of
from sottovoce_evidence.accounting.events import BestOfRuns, CorrelatedGaussian, Event, ThresholdedHistogram
from sottovoce_evidence.accounting.matrices import Identity
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.files import Json
from sottovoce_evidence.recipe import Recipe

if TYPE_CHECKING:
    from sottovoce.privacy.mechanism import Mechanism

ROUNDING = 1e-6  # norms are rounded to float32


@dataclass(frozen=True)
class Derived:
    """The mechanism that a recipe describes. It answers what a statement asks of `Mechanism`, and can add no noise."""

    recipe: Recipe
    stated: MechanismFacts
    parts: int = 1  # of an update that are clipped apart, where the recipe does not say it
    across_devices: bool = False

    @cached_property
    def sampler(self) -> Sampler:
        return sampler_of(self.recipe)

    @cached_property
    def tracking(self) -> QuantileTracking | None:
        return tracking_of(self.recipe.privacy)

    @cached_property
    def devices(self) -> DeviceNoise | None:
        found = device_noise_of(self.recipe, self.sampler)
        return found and replace(found, simulated=not self.across_devices)

    @property
    def noise_multiplier(self) -> float:
        return self.recipe.privacy.noise_multiplier or 0.0

    @cached_property
    def noise_schedule(self) -> Schedule:
        return build_schedule(self.recipe.privacy.noise_schedule)

    @cached_property
    def clip_schedule(self) -> Schedule:
        return build_schedule(self.recipe.privacy.clip_schedule, self.recipe.privacy.clip_path)

    @cached_property
    def clipping(self) -> Clip:
        """The clip. Of one that is not known here, the promise is taken: all parts together stay within S."""
        if self.recipe.privacy.clipping in CLIPS:
            return clip_of(self.recipe, ["part"] * self.parts)
        return PerLayerClip.even(self.recipe.privacy.clip_norm / self.recipe.federation.max_silos, self.parts)

    def start(self) -> None:
        return None

    def clip_norms(self, round_number: int, tracked: object = None) -> np.ndarray:
        factor = 1.0 if self.tracking else self.clip_schedule(round_number)
        return np.asarray(self.clipping.clip_norms, np.float32) * np.float32(factor)

    def sensitivity(self, clip_norms: np.ndarray) -> float:
        if self.recipe.privacy.estimator not in ESTIMATORS:  # nothing but the statement tells it
            return self.stated.sensitivity
        bound = joint_norm(clip_norms) if self.clipping.bounded else math.inf
        return self.sampler.most_updates * estimator_of(self.recipe.privacy).sensitivity(bound)

    def noise_std(self, round_number: int, clip_norms: np.ndarray) -> tuple[float, float | None]:
        z, most, sensitivity = self.noise_multiplier, self.sampler.most_updates, self.sensitivity(clip_norms)
        z *= self.noise_schedule(round_number)
        if self.devices is not None and self.devices.simulated:
            return self.devices.drawn_at_once(z, STEPS) / STEPS * sensitivity, None
        if self.tracking is not None:
            own = self.tracking.update_multiplier(z * most, len(clip_norms)) / most
            return own * sensitivity, self.tracking.bit_noise
        event = self.event(round_number)
        over_run = event.sensitivity if isinstance(event, CorrelatedGaussian) else 1.0
        return z * over_run * sensitivity, None

    def event(self, round_number: int) -> Event:
        """What a round charges that is the first; rounds with correlated noise are charged together."""
        return next(iter(self.events(round_number)))[0]

    def events(self, rounds: int) -> Spent:
        """What the first rounds of a run charge."""
        privacy = self.recipe.privacy
        if privacy.noise != Identity.kind:
            participation = self.sampler.participation(self.recipe.run.rounds)
            if participation is None:
                raise SottoError(f"privacy.sampling={privacy.sampling!r} has no accounting for correlated noise")
            return [(CorrelatedGaussian(self.noise_multiplier, matrix_of(privacy), participation), 1)]
        noise = [(self.noise_multiplier * factor, count) for factor, count in self.noise_schedule.stretches(rounds)]
        charges = self.sampler.events(noise)
        return charges if self.devices is None else self.devices.charged(charges)


def derive(statement: Statement, recipe: Recipe) -> Derived:
    """The mechanism of a recipe, where the model has as many clipped parts as the statement says."""
    adaptive = statement.mechanism.adaptive
    parts = 1 if adaptive is None else min(max(adaptive.bits, 1), 10**4)
    return Derived(recipe, statement.mechanism, parts, statement.federation is not None)


@dataclass(frozen=True)
class OwnBlock:
    """A block of a recipe that is not of this package, but of somebody's own code."""

    setting: str  # where the recipe names it
    name: str
    kind: type | None  # what is registered under its name, here and now
    bounds: str | None  # what nothing shows without its code; None: without it no charge can be accounted for

    @property
    def shown(self) -> str:
        return f"{self.setting}={shown(self.name)!r}"


def own_blocks(statement: Statement, recipe: Recipe) -> Iterator[OwnBlock]:
    """The blocks of a recipe of which this package knows no bound."""
    privacy, facts = recipe.privacy, statement.mechanism
    blocks: list[tuple[Registry[Any], str, str | None]] = [
        (SAMPLERS, privacy.sampling, None),
        (CLIPS, privacy.clipping, f"it keeps every update within the clip norm {shown(facts.clip_norm)}"),
        (
            ESTIMATORS,
            privacy.estimator,
            f"one user moves it by no more than the sensitivity {shown(facts.sensitivity)}",
        ),
    ]
    for registry, name, bounds in blocks:
        if not registry.is_shipped(name):
            yield OwnBlock(registry.setting, name, registry.get(name), bounds)


def fact_faults(statement: Statement, recipe: Recipe) -> Iterator[str]:
    """Facts that do not follow from the recipe of a release."""
    if recipe.privacy.mode != "private" or statement.mechanism.mode != "private":
        yield f"the mode of {RECIPE} is {recipe.privacy.mode!r}, which gives no guarantee"
        return
    derived = derive(statement, recipe)
    if not math.isfinite(derived.sensitivity(derived.clip_norms(1))):
        yield f"by {RECIPE} nothing bounds what one user can do to the model"
    mechanism = cast("Mechanism", derived)  # it answers the same questions
    expected = {
        **_flat("declared", declared_facts(recipe, mechanism).to_json()),
        **_flat("mechanism", mechanism_facts(recipe, mechanism).to_json()),
        **_settings(statement, recipe, derived),
    }
    stated = {
        **_flat("declared", statement.declared.to_json()),
        **_flat("mechanism", statement.mechanism.to_json()),
        **{name: _stated(statement, name) for name in _settings(statement, recipe, derived)},
    }
    expected["accountant"] = "rdp" if statement.chosen else recipe.privacy.accountant
    stated["accountant"] = statement.accountant.split(" ")[0].lower()
    for name in dict.fromkeys([*expected, *stated]):
        found, wanted = stated.get(name), expected.get(name)
        if not alike(found, wanted):
            yield f"{name} is {shown(found)}, and by {RECIPE} it is {shown(wanted)}"


def record_faults(statement: Statement, recipe: Recipe, lines: Sequence[Json]) -> Iterator[str]:
    """Rounds of a record with another clip norm or noise than a recipe gives them.

    A clip norm that adapts follows from noised counts, and the noise from it. Of blocks of own code nothing is known.
    """
    if any(own_blocks(statement, recipe)):
        return
    derived = derive(statement, recipe)
    # A server whose devices add noise adds less of it itself.
    both = [derived, replace(derived, across_devices=False)]
    first, per_clip = derived.clip_norms(1), dict[float, list[float]]()
    for line in lines:
        number, clip_norm, noise_std = line["round"], line.get("clip_norm"), line.get("noise_std")
        planned, factor = joint_norm(derived.clip_norms(number)), derived.noise_schedule(number)
        if clip_norm is not None and derived.tracking is None and not alike(clip_norm, planned):
            yield f"round {number} of the record has clip norm {shown(clip_norm)}, and by {RECIPE} it is {planned:.7g}"
            return
        if factor not in per_clip:
            per_clip[factor] = [one.noise_std(number, first)[0] / joint_norm(first) for one in both]
        norm = planned if clip_norm is None else clip_norm
        if noise_std is not None and not any(alike(noise_std, each * norm) for each in per_clip[factor]):
            wanted = f"and by {RECIPE} it is {per_clip[factor][0] * norm:.7g}"
            yield f"round {number} of the record has noise of standard deviation {shown(noise_std)}, {wanted}"
            return


def _settings(statement: Statement, recipe: Recipe, derived: Derived) -> dict[str, Any]:
    """Facts of a statement that stand outside `declared` and `mechanism`."""
    privacy, sampler, rounds = recipe.privacy, derived.sampler, statement.rounds_planned
    participation = sampler.participation(rounds)
    settings = {
        "unit": "user",
        "relation": derived.event(1).relation,
        "sampling": privacy.sampling,
        "delta": privacy.delta,
        "secrets": privacy.secrets,
        "turns": None if sampler.amplifies else sampler.participations(rounds),
        "min_separation": None if participation is None else participation.min_separation,
        "sampling_generator": sampler.generator,
    }
    if statement.federation is not None:
        names = ("aggregation", "survivors", "colluding", "noise")
        settings |= {f"federation.{name}": getattr(recipe.federation, name) for name in names}
    return settings


def _stated(statement: Statement, name: str) -> Any:
    section, dot, key = name.partition(".")
    return getattr(getattr(statement, section), key) if dot else getattr(statement, name)


def charge_faults(statement: Statement, spent: Spent, derived: Derived) -> Iterator[str]:
    """Rounds that a ledger does not charge, and charges that are for no round of this run, nor for its vocabulary.

    A round that is done again, and one of a copy of the run, costs what a planned round costs: nothing else can stand
    for it, and no earlier charge covers it.
    """
    planned = derived.events(statement.rounds_planned)
    spent = own_charges(statement, spent)
    if statement.chosen is not None:
        yield from _choice_faults(spent, planned)
        # Each of the runs has to be what the statement describes.
        spent = [charge for event, _ in spent if isinstance(event, BestOfRuns) for charge in event.run]
    for event, _ in spent:
        if not any(_same(event, one) for one, _ in planned):
            yield f"it charges what is no round of this run: {event.kind}, {shown(event.to_json())}"
    more = bool(statement.charged_again or statement.charged_elsewhere)  # then a budget may forbid the last rounds
    due = derived.events(max(statement.rounds_done, 1)) if more else planned
    for event, count in due:
        charged = sum(number for one, number in spent if _same(one, event))
        if charged < count:
            rounds = f"{count_of(charged, 'round')} of noise multiplier {event.noise_multiplier:g}"
            yield f"it charges {rounds}, fewer than the {count} that were planned or done"


def _choice_faults(spent: Spent, planned: Spent) -> Iterator[str]:
    """Of the best of several runs, one charge is for all of them, and nothing else is charged."""
    charged = [(event, count) for event, count in spent if isinstance(event, BestOfRuns)]
    if len(spent) != 1 or [count for _, count in charged] != [1]:
        yield "the model was chosen among runs, and its charges are not one for the choice"
    for event, _ in charged:
        due = zip(event.run, planned, strict=False)
        if len(event.run) != len(planned) or not all(_same(one, other) and a == b for (one, a), (other, b) in due):
            yield "a run of the choice is not charged what its planned rounds cost"


def has_room(statement: Statement, recipe: Recipe, derived: Derived) -> Spent | None:
    """Where fewer rounds are planned than the recipe has: the charges with one round more, which pass its budget."""
    if statement.rounds_planned >= recipe.run.rounds:
        return None
    return [*charged_before(statement, statement.charged), *derived.events(statement.rounds_planned + 1)]


def with_one_more(statement: Statement, spent: Spent, derived: Derived) -> Spent | None:
    """Where not all planned rounds are charged: the charges with one round more, of the least noise."""
    planned = derived.events(statement.rounds_planned)
    own = own_charges(statement, spent)
    total = {event: sum(count for one, count in own if _same(one, event)) for event, _ in planned}
    if all(total[event] >= count for event, count in planned):
        return None
    return [*spent, (min(total, key=lambda event: event.noise_multiplier), 1)]


def charged_before(statement: Statement, spent: Spent) -> Spent:
    """Of these charges, those of before the first round: for the vocabulary, and for the runs that it starts from."""
    words = [(event, count) for event, count in spent if isinstance(event, ThresholdedHistogram)]
    return [*words, *(statement.start.charged if statement.start else ())]


def own_charges(statement: Statement, spent: Spent) -> Spent:
    """The others: those of the run itself."""
    return list((total_of(spent) - total_of(charged_before(statement, spent))).items())


def _same(one: Event, other: Event) -> bool:
    return type(one) is type(other) and alike(one.to_json(), other.to_json())


def _flat(section: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in facts.items()}


def alike(one: Any, other: Any) -> bool:
    """Equal, but for the rounding of numbers."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=ROUNDING)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    return one == other


def shown(value: Any) -> str:
    """A value of a file, for one line."""
    text = "not stated" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
