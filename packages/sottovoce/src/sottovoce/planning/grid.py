"""A recipe before it is paid for: what ε, cohort and number of rounds would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.planning.plan import check_numbers, privacy_warnings
from sottovoce.planning.trained import Sizes, TrainedPart, compare_parts
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.accounting.matrices import Identity
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError, count_of, plain_number
from sottovoce_evidence.files import Facts
from sottovoce_evidence.mechanism import Mechanism, accountant_of, charges_of, mechanism_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.rules import correlated
from sottovoce_evidence.sampling import SAMPLERS

LONG = 20 * 60  # seconds: a plan then names a shorter run
EPSILONS = (1.0, 2.0, 4.0, 8.0)
COHORTS = (0.5, 1.0, 2.0)  # times the recipe's
FEWEST_ROUNDS = 10  # that a plan advises: a run of fewer was never measured
FEWER_ROUNDS = (0.25, 0.5)  # times the recipe's: for a small ε they are often better


@dataclass(frozen=True)
class Choice(Facts):
    """One ε with one cohort and one number of rounds. What is not known is None."""

    epsilon: float
    cohort: int
    rounds: int
    noise_multiplier: float
    noise_std: float | None  # of the first round; None where the clip norm adapts, or noise is correlated
    hours: float | None


@dataclass(frozen=True)
class Grid(Facts):
    """The choices around a recipe, and ε of the recipe itself under both relations."""

    users: int
    cohort: int
    rounds: int
    delta: float
    epsilon: float
    epsilon_replaced: float | None  # the moments accountant has none
    relation: str
    accountant: str
    users_per_second: float | None
    choices: list[Choice]
    warnings: list[str]
    noise_std: float | None = None  # σ of the first round of the recipe itself
    clip_norm: float | None = None  # S of that round
    trained: list[TrainedPart] | None = None  # where adapters are trained: all of the model, and they
    epsilon_server: float | None = None  # where devices add noise: against the server

    def __repr__(self) -> str:
        cost = f"ε = {accounting.rounded_up(self.epsilon)} at δ = {plain_number(self.delta)}"
        return (
            f"<Grid: {cost}, {self.cohort:,} of {self.users:,} users a round; {count_of(len(self.choices), 'choice')}>"
        )

    def is_own(self, choice: Choice) -> bool:
        """Is it what the recipe itself asks for?"""
        same = (choice.cohort, choice.rounds) == (self.cohort, self.rounds)
        return same and math.isclose(choice.epsilon, self.epsilon, rel_tol=1e-2)

    def training(self, sizes: Sizes) -> Grid:
        """The same, for a model of which a part is trained."""
        return replace(self, trained=compare_parts(sizes, self.noise_std, self.clip_norm))

    def at(self, users_per_second: float | None) -> Grid:
        """The same, with the hours that it takes at a measured rate."""
        hours = None if users_per_second is None else 1 / users_per_second / 3600
        choices = [replace(each, hours=hours and each.cohort * each.rounds * hours) for each in self.choices]
        return replace(self, users_per_second=users_per_second, choices=choices)


def plan_recipe(recipe: Recipe) -> Grid:
    """What a recipe would cost, and what else could be chosen: ε from 1 to 8, half or twice its cohort, fewer rounds.

    `Grid.at` adds hours, for a measured rate.

    Args:
        recipe: that of a private run; its store is not read.
    """
    _check(recipe)
    recipe = _of_size(recipe, recipe.privacy.cohort, recipe.run.rounds)
    privacy, accountant, epsilons = recipe.privacy, accountant_of(recipe.privacy), set(EPSILONS)
    shape = charges_of(recipe)
    relation = shape[0][0].relation
    accounting.check(accountant, [event for event, _ in shape])
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        epsilons.add(privacy.epsilon)
        recipe = _with_noise(recipe, privacy.epsilon)
    # Of one round: a strategy matrix is not searched for.
    mechanism = mechanism_of(recipe.replace(privacy={"noise": Identity.kind}))
    spent = charges_of(recipe, mechanism.noise_multiplier)
    epsilon = accounting.epsilon(spent, privacy.delta, accountant)
    replaced = server = None  # the moments accountant has none
    if accountant != "moments":
        replaced = accounting.epsilon(spent, privacy.delta, accountant, replaced=True)
    if mechanism.devices is not None:
        server = accounting.epsilon(mechanism.against_server, privacy.delta, accountant)
    planned, cohort = recipe.run.rounds, round(privacy.cohort)
    cohorts = sorted({min(privacy.places, max(1, round(privacy.cohort * times))) for times in COHORTS})
    fewer = sorted({max(1, round(planned * times)) for times in FEWER_ROUNDS} - {planned})
    sizes = [*((each, planned) for each in cohorts), *((cohort, each) for each in fewer)]
    return Grid(
        users=privacy.users,
        cohort=cohort,
        rounds=planned,
        delta=privacy.delta,
        epsilon=epsilon,
        epsilon_replaced=replaced,
        relation=relation,
        accountant=accounting.accountant_name(accountant),
        users_per_second=None,
        choices=[_choice(recipe, size, each) for size in sizes for each in sorted(epsilons)],
        warnings=privacy_warnings(privacy.users, privacy.delta, epsilon),
        noise_std=_noise_std(recipe),
        clip_norm=mechanism.sampler.most_updates * joint_norm(_clip_norms(mechanism)),
        epsilon_server=server,
    )


def is_long(seconds: float, rounds: int) -> bool:
    """Is a run so long that a quarter of its rounds should be considered?"""
    return seconds > LONG and round(rounds * FEWER_ROUNDS[0]) >= FEWEST_ROUNDS


def fewest_rounds(recipe: Recipe) -> Choice:
    """A quarter of the rounds of a recipe, with its cohort and its ε."""
    assert recipe.privacy.epsilon is not None
    size = round(recipe.privacy.cohort), round(recipe.run.rounds * FEWER_ROUNDS[0])
    return _choice(recipe, size, recipe.privacy.epsilon)


def _choice(recipe: Recipe, size: tuple[int, int], epsilon: float) -> Choice:
    cohort, rounds = size
    found = _with_noise(_of_size(recipe, cohort, rounds), epsilon)
    assert found.privacy.noise_multiplier is not None
    return Choice(epsilon, cohort, rounds, found.privacy.noise_multiplier, _noise_std(found), None)


def _of_size(recipe: Recipe, cohort: float, rounds: int) -> Recipe:
    """The same with another cohort and other rounds: with the separation that these allow."""
    privacy = recipe.privacy
    changes: dict[str, Any] = {"cohort": cohort}
    if recipe.run.algorithm == "els":
        changes["sampling"] = "examples"
    if privacy.min_separation:
        # A larger cohort leaves fewer users free, and fewer rounds have less room.
        changes["min_separation"] = max(1, min(privacy.min_separation, int(privacy.users // cohort), rounds))
    if privacy.participations:
        changes["participations"] = max(privacy.participations, math.ceil(rounds * cohort / privacy.users))
    return recipe.replace(privacy=changes, run={"rounds": rounds})


def _with_noise(recipe: Recipe, epsilon: float) -> Recipe:
    """The same with the noise for an ε."""
    privacy = recipe.privacy
    found = calibrate(charges_of(recipe), epsilon, privacy.delta, accountant_of(privacy))
    found = max(found, recipe.federation.server_noise_multiplier or 0.0)
    return recipe.replace(privacy={"noise_multiplier": found})


def _noise_std(recipe: Recipe) -> float | None:
    """σ of the first round, as a run has it."""
    if recipe.privacy.adaptive_quantile is not None or recipe.privacy.noise != Identity.kind:
        return None
    mechanism = mechanism_of(recipe)
    return mechanism.noise_std(1, _clip_norms(mechanism))[0]


def _clip_norms(mechanism: Mechanism) -> list[float]:
    """Of the first round."""
    return [norm * mechanism.clip_schedule(1) for norm in mechanism.clipping.clip_norms]


def _check(recipe: Recipe) -> None:
    privacy = recipe.privacy
    if privacy.mode != "private":
        raise SottoError(f"privacy.mode={privacy.mode!r} promises nothing, so there is no ε to plan; use 'private'")
    for name, value in (("privacy.users", privacy.users), ("privacy.cohort", privacy.cohort)):
        if not value:
            raise SottoError(
                f"{name} is not set, or 0, and a plan needs it > 0; set it in the recipe, or with --set {name}=NUMBER"
            )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        raise SottoError("the recipe has neither privacy.epsilon nor privacy.noise_multiplier; set one of them")
    if privacy.delta >= 1 / privacy.users:
        limit = f"1/users = {1 / privacy.users:.2g}, or one person's text may be released"
        raise SottoError(f"privacy.delta={plain_number(privacy.delta)} must be below {limit}; lower it")
    if recipe.run.algorithm == "els" and not privacy.examples_per_user:
        raise SottoError("privacy.examples_per_user is not set, and run.algorithm='els' needs it; set it in the recipe")
    check_numbers(privacy.places, max(1, round(privacy.cohort)), recipe.run.rounds)
    for sentence in correlated(privacy, SAMPLERS[privacy.sampling]):
        raise SottoError(sentence)
