"""Before paying: what a training would cost in privacy, noise, devices and hours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from sottovoce.data.census import few_users
from sottovoce.planning.trained import BYTES_PER_PARAMETER, Sizes, TrainedPart, compare_parts
from sottovoce.privacy.matrix_search import check_noise, find_matrix
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.accounting.composition import MOST_ROUNDS
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.accounting.gaussian import zcdp_epsilon
from sottovoce_evidence.accounting.matrices import Identity, Participation
from sottovoce_evidence.errors import SettingError, SottoError, count_of, plain_number
from sottovoce_evidence.files import Facts, Json
from sottovoce_evidence.mechanism import charges_of, estimator_of, sampler_of, settings_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.rules import correlated, separation
from sottovoce_evidence.sampling import SAMPLERS, Sampling

CURVE_POINTS = 50
BUFFERS = 4  # of a BLT, by default
BYTES_PER_NUMBER = 8  # of the noise that is kept
MOST_CORRELATED = 100_000  # rounds: with more, a matrix takes minutes to find
WELL_BELOW = 0.1  # δ times users: a larger one is warned of, from 1 on it is refused


@dataclass(frozen=True)
class Plan(Facts):
    """A training that has not been run: its ε is a projection. What was not asked for is None."""

    epsilon: float
    delta: float
    noise_multiplier: float
    user_rate: float
    users: int
    cohort: int
    rounds: int
    accountant: str
    sampling: str
    relation: str
    epsilons: list[dict[str, float]]  # at every δ that was asked for, `delta` first
    epsilon_replaced: float | None  # when one user is replaced, which compares plans of any sampling
    curve: list[dict[str, float]]
    device_rounds_expected: float  # in which one device takes part, on average
    device_rounds_most: int  # at most: what is charged where users come in turn
    user_updates: int  # computed by all users together; where examples are sampled: gradients of examples
    noise_over_clip: float  # noise of one round over S; where it is correlated: before it is correlated
    prefix_error: float  # root mean square error of the sums over rounds 1 to t, over S
    noise: str = Identity.kind
    min_separation: int | None = None  # of the rounds of one user
    participations: int | None = None  # rounds that one user joins at most, where that is bounded
    sensitivity: float | None = None  # of one user over the run, in units of S, where noise is correlated
    rho: float | None = None  # of zero-concentrated differential privacy, one user added or removed
    epsilon_zcdp: float | None = None  # by ρ alone, which is not tight
    strategy: Json | None = None  # the strategy matrix
    bands: int | None = None
    buffers: int | None = None
    noise_bytes: int | None = None  # of noise that the server keeps from round to round
    noise_std: float | None = None  # σ on each coordinate of the average update, with the fixed denominator qW
    signal_to_noise: float | None = None  # an average update as long as the clip norm, over the length of the noise
    bytes_per_device: int | None = None  # that a device sends in a round it takes part in
    trained: list[TrainedPart] | None = None  # all of the model, and the part that is trained
    hours: float | None = None
    examples_per_user: int | None = None  # at most, where examples are sampled: `cohort` counts them
    example_rate: float | None = None
    examples: float | None = None  # with text, in a round on average: the rate times the declared number of examples
    charges: list[Json] = field(default_factory=list)  # the events of one run, and how often each is charged
    warnings: list[str] = field(default_factory=list)

    @property
    def spent(self) -> accounting.Spent:
        """What one run is charged."""
        return [(accounting.Event.from_json(one["event"]), one["count"]) for one in self.charges]

    def __repr__(self) -> str:
        size = f"{self.cohort:,} of {self.users:,} users a round, {count_of(self.rounds, 'round')}"
        cost = f"ε = {accounting.rounded_up(self.epsilon)} at δ = {plain_number(self.delta)}"
        return f"<Plan: {cost}, noise multiplier {self.noise_multiplier:g}, {size}>"

    @property
    def joining(self) -> Participation | None:
        """Which rounds one user may join, where that is bounded."""
        if self.min_separation is None or self.participations is None:
            return None
        return Participation(self.rounds, self.min_separation, self.participations)

    def to_json(self) -> Json:
        return {**super().to_json(), "accountant_name": accounting.accountant_name(self.accountant)}


def make_plan(
    *,
    users: int,
    cohort: int,
    rounds: int,
    delta: float,
    more_deltas: Sequence[float] = (),
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    accountant: str | None = None,
    sampling: str = "poisson",
    min_separation: int | None = None,
    participations: int | None = None,
    noise: str = Identity.kind,
    bands: int | None = None,
    buffers: int | None = None,
    clip_norm: float | None = None,
    parameters: int | None = None,
    trained_parameters: int | None = None,
    users_per_second: float | None = None,
    total_weight: float | None = None,
    examples_per_user: int | None = None,
) -> Plan:
    """The plan for a noise multiplier, or for the smallest one that keeps ε within a budget: give one of the two.

    The budget holds at `delta`; the plan also has ε at each of `more_deltas`.

    Args:
        users: how many there are, as it is declared.
        cohort: users a round, on average.
        rounds: of the whole training.
        delta: the chance that the guarantee fails; well below 1/users.
        more_deltas: others to show ε at.
        noise_multiplier: z, the noise over the sensitivity: of one round, or of the run where noise is correlated.
        epsilon: the budget to choose the noise multiplier for.
        accountant: "pld", "rdp" or "moments"; by default the tightest for this sampling.
        sampling: "poisson", "fixed", "in_turn" or "min_separation".
        min_separation: rounds from one that a user joins to the next at least, for "min_separation".
        participations: rounds that a user joins at most, for "min_separation"; by default as many as fit.
        noise: "independent", or correlated by "banded" or "blt".
        bands: of "banded"; by default the separation, and not more than 64.
        buffers: of "blt", at most; 4 by default.
        clip_norm: S; with it, the plan has σ.
        parameters: of the model; with them, what a device sends.
        trained_parameters: of an adapter beside them, where they are frozen.
        users_per_second: the rate of a machine; with it, hours.
        total_weight: W, for σ; the number of users by default, or of all their examples.
        examples_per_user: G: plan to sample examples ("els"), at most so many of a user; `cohort` counts them.
    """
    if (noise_multiplier is None) == (epsilon is None):
        given = "both are given" if epsilon is not None else "neither is given"
        text = "give either {noise_multiplier.name} or {epsilon.name}, the budget it is chosen for; {}"
        raise SettingError(text, given, noise_multiplier=noise_multiplier, epsilon=epsilon)
    places = users * (1 if examples_per_user is None else examples_per_user)
    if examples_per_user is not None and examples_per_user < 1:
        raise SettingError("{examples_per_user} must be 1 or more", examples_per_user=examples_per_user)
    check_numbers(places, cohort, rounds)
    for name, value in (
        ("clip_norm", clip_norm),
        ("parameters", parameters),
        ("trained_parameters", trained_parameters),
        ("users_per_second", users_per_second),
        ("total_weight", total_weight),
    ):
        if value is not None and not 0 < value < 1e300:  # a whole number may be too large to be any other
            text = f"{{{name}}} must be a positive number; leave it out if it is not known"
            raise SettingError(text, **{name: value})

    accountant = accountant or accounting.DEFAULT_ACCOUNTANT
    if examples_per_user is not None:
        if sampling != "poisson":
            raise SettingError("{sampling!r} draws users; examples are drawn by 'poisson'", sampling=sampling)
        sampling = "examples"
    recipe = Recipe().replace(
        privacy={
            "users": users,
            "cohort": cohort,
            "sampling": sampling,
            "min_separation": min_separation or 0,
            "participations": participations or 0,
            "noise": noise,
            "noise_bands": bands or 0,
            "noise_buffers": buffers or BUFFERS,
            "clip_norm": clip_norm or 1.0,
            "total_weight": total_weight or 0.0,
            "examples_per_user": examples_per_user or 0,
        },
        run={"rounds": rounds},
    )
    recipe = _with_matrix(recipe)
    sampler = sampler_of(recipe)
    joining = sampler.participation(rounds)
    shape = charges_of(recipe)
    relation = shape[0][0].relation
    accounting.check(accountant, [event for event, _ in shape])
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate(shape, epsilon, delta, accountant)
    spent = charges_of(recipe, noise_multiplier)
    event = spent[0][0]
    run = event if isinstance(event, CorrelatedGaussian) else None
    scale = noise_multiplier * (run.sensitivity if run else 1.0)
    prefix_error = scale * (run.matrix if run else Identity()).prefix_error(rounds)
    curve = accounting.epsilon_curve(spent, delta, accountant)
    total = curve(curve.known_rounds[-1])
    others = accounting.epsilons(spent, more_deltas, accountant)
    replaced = None  # the moments accountant has none
    if accountant != "moments":
        replaced = accounting.epsilon(spent, delta, accountant, replaced=True)
    std = signal = parts = None
    if trained_parameters is not None and parameters is None:
        text = "{trained_parameters} of how many? Give {parameters.name} too, of the whole model"
        raise SettingError(text, trained_parameters=trained_parameters, parameters=parameters)
    whole, parameters = parameters, parameters if trained_parameters is None else trained_parameters
    if clip_norm is not None:
        unit = estimator_of(recipe.privacy).sensitivity(clip_norm)
        std = scale * unit
        if parameters is not None:
            # Correlated noise counts as independent noise that has the same error of prefix sums.
            alike = prefix_error / Identity().prefix_error(rounds) * unit
            signal = clip_norm / (alike * math.sqrt(parameters)) if alike else math.inf
    if whole is not None and trained_parameters is not None:
        parts = compare_parts(Sizes(whole, trained_parameters, whole), std, clip_norm)
    return Plan(
        epsilon=total,
        delta=delta,
        noise_multiplier=noise_multiplier,
        user_rate=cohort / users if examples_per_user is None else sampler.user_rate,
        users=users,
        cohort=cohort,
        rounds=rounds,
        accountant=accountant,
        sampling=sampling,
        relation=relation,
        epsilons=[{"delta": delta, "epsilon": total}]
        + [{"delta": at, "epsilon": value} for at, value in zip(more_deltas, others, strict=True)],
        epsilon_replaced=replaced,
        curve=[{"round": t, "epsilon": value} for t, value in _thin(_by_round(curve, sampler, rounds))],
        device_rounds_expected=rounds * (cohort / users if examples_per_user is None else sampler.user_rate),
        device_rounds_most=sampler.participations(rounds),
        user_updates=rounds * cohort,
        noise_over_clip=scale,
        prefix_error=prefix_error,
        noise=noise,
        min_separation=None if joining is None else joining.min_separation,
        participations=None if joining is None else joining.most,
        bands=bands,
        buffers=buffers,
        **({} if run is None else figures_of(run, delta, parameters)),
        noise_std=std,
        signal_to_noise=signal,
        bytes_per_device=None if parameters is None else BYTES_PER_PARAMETER * parameters,
        trained=parts,
        hours=None if users_per_second is None else rounds * cohort / users_per_second / 3600,
        examples_per_user=examples_per_user,
        example_rate=None if examples_per_user is None else cohort / places,
        examples=None if examples_per_user is None else cohort / places * (total_weight or places),
        charges=[{"event": each.to_json(), "count": count} for each, count in spent],
        warnings=privacy_warnings(users, delta, total, signal),
    )


def _with_matrix(recipe: Recipe) -> Recipe:
    """The recipe of a plan, once its rules hold, with the strategy matrix that is found for it."""
    privacy, rounds = recipe.privacy, recipe.run.rounds
    check_noise(privacy.noise)
    sampler = SAMPLERS[privacy.sampling]
    for sentence in chain(separation(privacy, rounds, sampler), correlated(privacy, sampler)):
        raise SottoError(sentence)
    if privacy.noise == Identity.kind:
        return recipe
    if rounds > MOST_CORRELATED:
        raise SettingError(f"{{rounds}} must be at most {MOST_CORRELATED} with correlated noise", rounds=rounds)
    joining = sampler_of(recipe).participation(rounds)
    found = find_matrix(privacy.noise, joining, privacy.noise_bands, privacy.noise_buffers)
    return recipe.replace(privacy=settings_of(found))


def figures_of(run: CorrelatedGaussian, delta: float, parameters: int | None) -> Json:
    """What a plan says of a run whose noise is correlated, by the names of its fields."""
    matrix, rounds = run.matrix, run.participation.rounds
    return {
        "sensitivity": run.sensitivity,
        "rho": run.rho,
        "epsilon_zcdp": zcdp_epsilon(run.rho, delta) if run.noise_multiplier else math.inf,
        # The matrix's own numbers, and the first column of C.
        "strategy": {**matrix.to_json(), "coefficients": matrix.coefficients(rounds).tolist()},
        "noise_bytes": None if parameters is None else BYTES_PER_NUMBER * parameters * matrix.buffers(rounds),
    }


def _by_round(curve: accounting.Curve, sampler: Sampling, rounds: int) -> list[tuple[int, float]]:
    """ε by round, from ε by charge: it rises in the rounds that are charged."""
    points = [(sampler.round_of_charge(charge), value) for charge, value in curve.points]
    last, total = points[-1]
    return points if last == rounds else [*points, (rounds, total)]


def cohort_for(noise_std: float, clip_norm: float, noise_multiplier: float = 1.0) -> int:
    """The users a round at which the noise on the average update is `noise_std`: σ = z · S / cohort.

    The paper's way to plan: find a σ that costs nothing with a small cohort, then the cohort that gives it at z = 1.
    """
    for name, value in {"noise_std": noise_std, "clip_norm": clip_norm, "noise_multiplier": noise_multiplier}.items():
        if not (math.isfinite(value) and value > 0):
            text = f"{{{name}}} must be a positive number: a cohort follows from σ = z · S / cohort"
            raise SettingError(text, **{name: value})
    # Not one user too many for 15 / 0.003, which is 5,000 and a little in binary.
    return math.ceil(noise_multiplier * clip_norm / noise_std - 1e-6)


def check_numbers(users: int, cohort: int, rounds: int) -> None:
    for name, value in {"users": users, "cohort": cohort, "rounds": rounds}.items():
        if not 1 <= value <= MOST_ROUNDS or value != int(value):
            shown = value if abs(value) <= MOST_ROUNDS else "so large a number"
            raise SettingError(f"{{{name}}} must be a whole number from 1 to {MOST_ROUNDS:g}", **{name: shown})
    if cohort > users:
        text = "{cohort} must be at most {users}, as many of them join a round; lower the cohort, or declare more users"
        raise SettingError(text, cohort=cohort, users=users)


def privacy_warnings(users: int, delta: float, epsilon: float, signal: float | None = None) -> list[str]:
    """What is wrong with a plan that can be computed all the same; `users` are declared."""
    found = few_users(users)
    small = plain_number(10.0 ** math.floor(math.log10(WELL_BELOW / users)))
    if delta >= 1 / users:
        found.append(
            f"delta={plain_number(delta)} is not below 1/users = {1 / users:.2g}: it would allow giving away a whole "
            f"user; take {small} or less"
        )
    elif delta * users > WELL_BELOW * (1 + 1e-9):
        found.append(
            f"delta={plain_number(delta)} is below 1/users = {1 / users:.2g}, but not well below it: δ bounds the "
            f"chance that the guarantee fails; take {small} or less"
        )
    if epsilon > 20:
        shown = accounting.rounded_up(epsilon)
        found.append(f"epsilon={shown} promises next to nothing: more users, or more noise, would help")
    if signal is not None and signal < 0.1:
        noise = f"the noise is {1 / signal:.0f} times as long as an average update"
        found.append(f"{noise}: expect little learning; a larger cohort (of more users) helps in proportion")
    return found


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """About `CURVE_POINTS` of them, even on a logarithmic axis, the first and the last among them."""
    if len(points) <= CURVE_POINTS:
        return points
    last, kept = points[-1], []
    for index in range(CURVE_POINTS):
        wanted = last[0] ** (index / (CURVE_POINTS - 1))
        kept.append(next(point for point in points if point[0] >= wanted - 1e-6 or point is last))
    return list(dict.fromkeys(kept))
