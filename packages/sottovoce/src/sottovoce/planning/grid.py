"""A recipe before it is paid for: what ε, cohort and number of rounds would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sottovoce.planning.plan import check_numbers, noise_std, privacy_warnings
from sottovoce.planning.trained import Sizes, TrainedPart, compare_parts
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import CorrelatedGaussian
from sottovoce_evidence.accounting.matrices import Identity, Participation
from sottovoce_evidence.device_noise import STEPS, DeviceNoise, how_often
from sottovoce_evidence.errors import SottoError, count_of, plain_number
from sottovoce_evidence.files import Facts
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.sampling import Examples, Sampling, build_sampler
from sottovoce_evidence.schedule import build_schedule

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


@dataclass(frozen=True)
class _Costs:
    """ε and noise of a recipe with other cohorts and other noise."""

    recipe: Recipe

    @property
    def accountant(self) -> str:
        chosen = self.recipe.privacy.accountant
        return accounting.DEFAULT_ACCOUNTANT if chosen == "auto" else chosen

    def device_noise(self, cohort: float, noise_multiplier: float = 1.0) -> DeviceNoise | None:
        """The noise that devices add, if they do."""
        declared = self.recipe.federation
        if declared.noise == "server":
            return None
        z = declared.server_noise_multiplier or noise_multiplier
        most = how_often(self.sampler(cohort), self.recipe.run.rounds, declared.participations)
        return DeviceNoise(z, declared.survivors, declared.colluding, most)

    def epsilon_server(self, cohort: float, noise_multiplier: float) -> float | None:
        """ε against the server, where devices add noise."""
        devices = self.device_noise(cohort, noise_multiplier)
        if devices is None:
            return None
        return accounting.epsilon(devices.against_server, self.recipe.privacy.delta, self.accountant)

    def sampler(self, cohort: float) -> Sampling:
        privacy, rounds = self.recipe.privacy, self.recipe.run.rounds
        if self.recipe.run.algorithm == "els":
            return Examples(cohort / privacy.places, privacy.examples_per_user)
        participation = None
        if privacy.min_separation:
            # A larger cohort leaves fewer users free, and fewer rounds have less room.
            fits = max(1, min(privacy.min_separation, int(privacy.users // cohort), rounds))
            most = max(privacy.participations, math.ceil(rounds * cohort / privacy.users))
            participation = Participation(rounds, fits, most if privacy.participations else rounds)
        silos = self.recipe.federation.max_silos
        return build_sampler(
            privacy.sampling, cohort=cohort, users=privacy.users, participation=participation, silos=silos
        )

    @property
    def relation(self) -> str:
        return self.events(self.recipe.privacy.cohort)[0][0].relation

    @property
    def correlated(self) -> bool:
        return self.recipe.privacy.noise != Identity.kind

    def events(self, cohort: float, noise_multiplier: float = 1.0) -> accounting.Spent:
        if self.correlated:
            joining = self.sampler(cohort).participation(self.recipe.run.rounds)
            if joining is None:
                raise SottoError(
                    f"privacy.noise={self.recipe.privacy.noise!r} needs privacy.sampling 'in_turn' or 'min_separation'"
                )
            # Whatever the strategy matrix is: z is the noise over the sensitivity that the run has with it.
            return [(CorrelatedGaussian(noise_multiplier, Identity(), joining), 1)]
        factors = build_schedule(self.recipe.privacy.noise_schedule).stretches(self.recipe.run.rounds)
        spent = self.sampler(cohort).events([(noise_multiplier * factor, count) for factor, count in factors])
        devices = self.device_noise(cohort, noise_multiplier)
        return spent if devices is None else devices.charged(spent)

    def noise_multiplier(self, cohort: float, epsilon: float) -> float:
        return accounting.calibrate(self.events(cohort), epsilon, self.recipe.privacy.delta, self.accountant)

    def epsilon(self, cohort: float, noise_multiplier: float, replaced: bool = False) -> float:
        spent = self.events(cohort, noise_multiplier)
        return accounting.epsilon(spent, self.recipe.privacy.delta, self.accountant, replaced=replaced)

    def noise_std(self, cohort: float, noise_multiplier: float) -> float | None:
        """σ of the first round, as a run has it."""
        privacy = self.recipe.privacy
        if privacy.adaptive_quantile is not None or self.correlated:
            return None
        first = noise_multiplier * build_schedule(privacy.noise_schedule)(1)
        if devices := self.device_noise(cohort, first):
            first = devices.drawn_at_once(first, STEPS) / STEPS
        return noise_std(replace(privacy, clip_norm=self.clip_norm), cohort, first)

    @property
    def clip_norm(self) -> float:
        """S of the first round."""
        privacy = self.recipe.privacy
        whole = math.hypot(*privacy.layer_clip_norms) if privacy.layer_clip_norms else privacy.clip_norm
        return whole * build_schedule(privacy.clip_schedule, privacy.clip_path)(1)


def plan_recipe(recipe: Recipe) -> Grid:
    """What a recipe would cost, and what else could be chosen: ε from 1 to 8, half or twice its cohort, fewer rounds.

    `Grid.at` adds hours, for a measured rate.

    Args:
        recipe: that of a private run; its store is not read.
    """
    _check(recipe)
    privacy, costs = recipe.privacy, _Costs(recipe)
    z, epsilons = privacy.noise_multiplier, set(EPSILONS)
    if z is None:
        assert privacy.epsilon is not None
        epsilons.add(privacy.epsilon)
        z = costs.noise_multiplier(privacy.cohort, privacy.epsilon)
    epsilon = costs.epsilon(privacy.cohort, z)
    planned, cohort = recipe.run.rounds, round(privacy.cohort)
    cohorts = sorted({min(privacy.places, max(1, round(privacy.cohort * times))) for times in COHORTS})
    fewer = sorted({max(1, round(planned * times)) for times in FEWER_ROUNDS} - {planned})
    noise_std = costs.noise_std(privacy.cohort, z)
    sizes = [*((each, planned) for each in cohorts), *((cohort, each) for each in fewer)]
    return Grid(
        users=privacy.users,
        cohort=round(privacy.cohort),
        rounds=recipe.run.rounds,
        delta=privacy.delta,
        epsilon=epsilon,
        epsilon_replaced=None if costs.accountant == "moments" else costs.epsilon(privacy.cohort, z, replaced=True),
        relation=costs.relation,
        accountant=accounting.accountant_name(costs.accountant),
        users_per_second=None,
        choices=[_choice(recipe, size, each) for size in sizes for each in sorted(epsilons)],
        warnings=privacy_warnings(privacy.users, privacy.delta, epsilon),
        noise_std=noise_std,
        clip_norm=costs.clip_norm,
        epsilon_server=costs.epsilon_server(privacy.cohort, z),
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
    recipe = recipe.replace(privacy={"cohort": cohort}, run={"rounds": rounds})
    costs = _Costs(recipe)
    z = costs.noise_multiplier(cohort, epsilon)
    std = costs.noise_std(cohort, z)
    return Choice(epsilon, cohort, rounds, z, std, None)


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
    if privacy.delta >= 1 / privacy.users and not privacy.allow_large_delta:
        limit = f"1/users = {1 / privacy.users:.2g}, or one person's text may be released"
        raise SottoError(f"privacy.delta={plain_number(privacy.delta)} must be below {limit}; lower it")
    if recipe.run.algorithm == "els" and not privacy.examples_per_user:
        raise SottoError("privacy.examples_per_user is not set, and run.algorithm='els' needs it; set it in the recipe")
    check_numbers(privacy.places, max(1, round(privacy.cohort)), recipe.run.rounds)
    costs = _Costs(recipe)
    accounting.check(costs.accountant, costs.relation)
    accounting.check_events(costs.accountant, [event for event, _ in costs.events(privacy.cohort)])
