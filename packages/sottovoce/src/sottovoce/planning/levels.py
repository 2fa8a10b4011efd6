"""Examples sampled or users sampled (ELS and ULS of Charles et al. 2024): which has less noise for the same work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts
from sottovoce_evidence.sampling import Poisson

if TYPE_CHECKING:
    from sottovoce.planning.plan import Plan

EXAMPLES, USERS, DEPENDS = "examples", "users", "depends on the text"


@dataclass(frozen=True)
class Level(Facts):
    """One way to spend the same number of gradients of examples a round, at the same ε for a user.

    Noise is the standard deviation on a coordinate of the mean gradient, in units of S_e, the clip norm of an example.
    A user's mean of m gradients of norm S_e needs a clip norm S_u from S_e/√m, if they are orthogonal, to S_e, if they
    are all the same.
    """

    sampled: str  # "examples" or "users"
    examples: int  # m: of each that is drawn
    cohort: float  # drawn a round, on average
    rate: float
    noise_multiplier: float | None = None
    noise_alike: float | None = None  # S_u = S_e: the gradients of a user are all the same
    noise_unrelated: float | None = None  # S_u = S_e/√m: they are orthogonal
    break_even: float | None = None  # users have less noise where S_u/S_e is below it; None for examples themselves
    missing: str = ""  # why there is no noise

    @property
    def less_noise(self) -> str:
        """Which of the two has less noise: users drawn like this, or examples."""
        if self.break_even is None:
            return EXAMPLES
        if self.break_even >= 1:
            return USERS
        return EXAMPLES if self.break_even <= 1 / math.sqrt(self.examples) else DEPENDS


def compare_levels(plan: Plan) -> list[Level]:
    """The plan, which samples examples, and plans that sample users for the same number of gradients a round.

    Every user is taken to have as many examples as users have on average: the declared number of examples over the
    declared users. Users who are drawn give one example each, about the root of what they have, or all.

    Args:
        plan: one with examples_per_user.
    """
    if plan.examples_per_user is None or plan.example_rate is None or plan.examples is None:
        raise SottoError("plans that sample examples are compared: give examples_per_user")
    if not plan.noise_multiplier:
        raise SottoError("without noise there is no ε to compare at; give epsilon, or a noise multiplier above 0")
    gradients, held = plan.examples, max(1, round(plan.examples / plan.example_rate / plan.users))
    own = plan.noise_multiplier / gradients
    found = [Level(EXAMPLES, 1, gradients, plan.example_rate, plan.noise_multiplier, own, own)]
    for each in sorted({1, round(math.sqrt(held)), held}):
        cohort = gradients / each
        rate = cohort / plan.users
        if rate > 1:
            missing = f"with {each} of their examples each, {cohort:,.0f} users a round are needed, of {plan.users:,}"
            found.append(Level(USERS, each, cohort, rate, missing=missing))
            continue
        try:
            z = calibrate(Poisson(rate).events([(1.0, plan.rounds)]), plan.epsilon, plan.delta)
        except SottoError as error:
            found.append(Level(USERS, each, cohort, rate, missing=str(error)))
            continue
        noise = z / cohort
        found.append(Level(USERS, each, cohort, rate, z, noise, noise / math.sqrt(each), own / noise))
    return found


def verdict(levels: list[Level]) -> str:
    """Which has less noise, in a sentence."""
    users = [each for each in levels if each.break_even is not None]
    if not users:
        return "There is no plan that samples users for as many gradients."
    best = [each for each in users if each.less_noise == USERS]
    if best:
        chosen = max(best, key=lambda each: each.break_even or 0.0)
        least = min(users, key=lambda each: each.noise_unrelated or math.inf)
        more = ""
        if least is not chosen:
            more = f" If their examples have little in common, {least.examples} of each have less still."
        return f"Less noise, whatever the text: users, {_each(chosen)}.{more}"
    if all(each.less_noise == EXAMPLES for each in users):
        return "Less noise, whatever the text: examples."
    chosen = max(users, key=lambda each: (each.break_even or 0.0) * math.sqrt(each.examples))
    return (
        f"It depends on the text: users, {_each(chosen)}, have less noise if the mean gradient of a user's examples "
        f"is shorter than {chosen.break_even:.2g} of that of one example."
    )


def _each(level: Level) -> str:
    return "one example each" if level.examples == 1 else f"{level.examples} examples each"
