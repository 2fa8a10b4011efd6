"""`sotto plan`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.cli.options import Json, Paths
from sottovoce.errors import SottoError
from sottovoce.files import Json as JsonObject

if TYPE_CHECKING:
    from sottovoce.planning.plan import Plan


@Parameter(name="*")
@dataclass(frozen=True)
class Training:
    """A training that is planned.

    Parameters
    ----------
    users
        K: the population.
    cohort
        Expected users in a round; q = cohort / users.
    rounds
        T: rounds of training.
    noise_multiplier
        z: the noise over the sensitivity.
    noise_std
        σ instead of a cohort: the noise that training was seen to stand. With z (1 if not given) and the clip norm, the
        cohort that gives it is found.
    epsilon
        ε to solve the noise for.
    sampling
        Poisson (each user independently, the default), fixed-size cohorts, or in_turn: one of users/cohort groups a
        round, charged for the rounds a user joins, without amplification.
    clip_norm
        S: then also the noise on every coordinate.
    total_weight
        W: the declared sum of the users' weights; the population where all weigh 1.
    parameters
        Size of the model: then also signal-to-noise and bytes a device sends.
    users_per_second
        A measured rate (`sotto train` prints it): then also hours.
    """

    users: float | None = None
    cohort: float | None = None
    rounds: float | None = None
    noise_multiplier: float | None = None
    noise_std: float | None = None
    epsilon: float | None = None
    sampling: Literal["poisson", "fixed", "in_turn"] | None = None
    clip_norm: float | None = None
    total_weight: float | None = None
    parameters: int | None = None
    users_per_second: float | None = None

    def with_cohort(self) -> Training:
        """The cohort that --noise-std asks for, filled in."""
        if self.noise_std is None:
            return self
        from sottovoce.planning.projection import cohort_for

        clip_norm = self.clip_norm
        if clip_norm is None or not (self.cohort is self.epsilon is self.total_weight is None):
            raise SottoError(
                "--noise-std gives the cohort, of users who weigh 1: it goes with --clip-norm, without --cohort, "
                "--epsilon and --total-weight"
            )
        z = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        return replace(self, noise_multiplier=z, cohort=cohort_for(self.noise_std, clip_norm, z), noise_std=None)


NOTHING = Training()


def plan(
    *,
    delta: Annotated[list[float], Parameter(consume_multiple=True, negative=())],
    training: Training = NOTHING,
    accountant: Literal["pld", "rdp", "moments"] | None = None,
    ledger: Paths = None,
    json: Json = False,
) -> None:
    """Say what a private training costs, before paying for it; or what ledgers add up to.

    Give the noise to learn ε, or ε to learn the noise. Give ledgers to learn the ε of what was released already.

    Parameters
    ----------
    delta
        δ, one or more; below 1/users. A budget holds at the first.
    accountant
        pld is tight, rdp quick, moments the papers' own. Default: pld.
    ledger
        ledger.jsonl of runs, stores or releases, or their folders: ε of all they hold, apart and together. Nothing else
        of a plan.
    """
    given = {name.replace("_", "-"): value for name, value in asdict(training).items() if value is not None}
    if ledger is not None:
        if given:
            raise SottoError(
                f"--ledger is about what was released, and {', '.join(f'--{name}' for name in given)} about a plan: "
                f"leave one of the two out"
            )
        _print_totals(ledger, delta, accountant, json)
        return
    training = training.with_cohort()
    size = {name: getattr(training, name) for name in ("users", "cohort", "rounds")}
    if missing := [f"--{name}" for name, value in size.items() if value is None]:
        raise SottoError(f"a plan needs {', '.join(missing)} too; or give --ledger, to judge what was released")

    from sottovoce.planning.plan import make_plan

    others = ("noise_multiplier", "epsilon", "clip_norm", "total_weight", "parameters", "users_per_second")
    made = make_plan(
        **{name: whole(name, value) for name, value in size.items()},
        **{name: getattr(training, name) for name in others},
        delta=delta[0],
        more_deltas=delta[1:],
        accountant=accountant,
        sampling=training.sampling or "poisson",
    )
    if json:
        print_json(made.to_json())
    else:
        _print_plan(made)


def _print_plan(made: Plan) -> None:
    rows = {
        **_epsilons(made.epsilons),
        **_replaced(made.relation, made.epsilon_replaced, made.delta),
        "noise multiplier z": shown_epsilon(made.noise_multiplier, 6),
        "users in a round": f"{made.cohort:,} of {made.users:,} (q = {made.user_rate:.3g})",
        "rounds": f"{made.rounds:,}",
        "one user takes part in": _takes_part(made),
        "sampling, relation": f"{made.sampling.replace('_', ' ')}, {made.relation.replace('-', ' ')}",
        "accountant": made.accountant,
        "user updates in all": f"{made.user_updates:,.0f}",
    }
    optional = {
        "noise on a coordinate": (made.noise_std, "{:.4g}"),
        "signal to noise": (made.signal_to_noise, "{:.3g}"),
        "a device sends": (made.bytes_per_device, "{:,} bytes a round"),
        "time": (made.hours, "{:.3g} hours"),
    }
    rows |= {name: form.format(value) for name, (value, form) in optional.items() if value is not None}
    print_table("Plan", rows)
    steps = [point for index, point in enumerate(made.curve) if index % 7 == 0 or index == len(made.curve) - 1]
    print_table("ε by round", {f"{point['round']:,}": shown_epsilon(point["epsilon"]) for point in steps})
    for warning in made.warnings:
        print(f"warning: {warning}")


def _takes_part(made: Plan) -> str:
    from sottovoce.privacy.sampling import sampler_named

    if not sampler_named(made.sampling).amplifies:
        most = made.device_rounds_most
        return f"{most:,} round{'s' if most > 1 else ''} at most, and pays for as many"
    return f"{made.device_rounds_expected:.3g} rounds on average"


def _print_totals(paths: list[Path], deltas: list[float], accountant: str | None, json: bool) -> None:
    from sottovoce.planning.ledger_totals import judge_ledgers

    judged = judge_ledgers(paths, deltas, accountant).to_json()
    if json:
        print_json(judged)
        return
    for figures in judged["ledgers"] if len(judged["ledgers"]) == 1 else [*judged["ledgers"], judged["total"]]:
        title = f"Ledger of a {figures['kind']}: {figures['path']}" if "path" in figures else "All together"
        rows = _epsilons(figures["epsilons"]) | _replaced(figures["relation"], figures["epsilon_replaced"], deltas[0])
        rows |= {
            "relation": (figures["relation"] or "none").replace("-", " "),
            "releases": f"{figures['releases']:,}",
            "accountant": judged["accountant_name"],
        }
        for number, entry in enumerate(figures["events"], 1):
            kind, *facts = (
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in entry["event"].items()
            )
            rows[f"event {number}"] = f"{entry['count']:,} × {', '.join([kind.removeprefix('kind '), *facts])}"
        print_table(title, rows)
        for note in figures.get("notes", ()):
            print(f"note: {note}")


def _epsilons(points: list[JsonObject]) -> dict[str, str]:
    """A row for each δ: one alone is called ε, the budget of several holds at the first."""
    shown = [shown_epsilon(point["epsilon"]) for point in points]
    if len(points) == 1:
        return {"ε": f"{shown[0]} at δ = {points[0]['delta']:g}"}
    return {f"ε at δ = {point['delta']:g}": text for point, text in zip(points, shown, strict=True)}


def _replaced(relation: str | None, epsilon: float | None, delta: float) -> dict[str, str]:
    """A second row, under an ε for adding or removing a user."""
    from sottovoce.accounting.events import ADDED

    shown = relation == ADDED and epsilon is not None
    return {"ε when a user is replaced": f"{shown_epsilon(epsilon)} at δ = {delta:g}"} if shown else {}


def whole(name: str, value: float) -> int:
    """1e6 is a whole number; 1.5 is none, and is not rounded in silence."""
    if not math.isfinite(value) or value != int(value):
        raise SottoError(f"--{name} {value:g} must be a whole number")
    return int(value)
