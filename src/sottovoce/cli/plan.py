"""`sotto plan`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.cli.options import Json, Paths, option
from sottovoce.errors import SottoError
from sottovoce.files import Json as JsonObject

if TYPE_CHECKING:
    from sottovoce.planning.plan import Plan


Accountant = Literal["pld", "rdp", "moments"]
Sampling = Literal["poisson", "fixed", "in_turn"]


@Parameter(name="*")
@dataclass(frozen=True)
class Training:
    """A training that is planned."""

    users: Annotated[float | None, option("K: the population.")] = None
    cohort: Annotated[float | None, option("Expected users in a round; q = cohort / users.")] = None
    rounds: Annotated[float | None, option("T: rounds of training.")] = None
    noise_multiplier: Annotated[float | None, option("z: the noise over the sensitivity.")] = None
    noise_std: Annotated[float | None, option("σ: finds the cohort, from z (default: 1) and the clip norm.")] = None
    epsilon: Annotated[float | None, option("ε to solve the noise for.")] = None
    sampling: Annotated[Sampling | None, option("How cohorts are drawn; poisson by default.")] = None
    clip_norm: Annotated[float | None, option("S: then also the noise on every coordinate.")] = None
    total_weight: Annotated[float | None, option("W: the declared sum of the users' weights.")] = None
    parameters: Annotated[int | None, option("Size of the model: then also signal-to-noise and bytes sent.")] = None
    users_per_second: Annotated[float | None, option("A measured rate: then also hours.")] = None

    def with_cohort(self) -> Training:
        """The cohort that --noise-std asks for, filled in."""
        if self.noise_std is None:
            return self
        from sottovoce.planning.projection import cohort_for

        clip_norm = self.clip_norm
        if clip_norm is None or not (self.cohort is self.epsilon is self.total_weight is None):
            others = "--cohort, --epsilon and --total-weight"
            raise SottoError(f"--noise-std finds the cohort: it goes with --clip-norm, and without {others}")
        z = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        return replace(self, noise_multiplier=z, cohort=cohort_for(self.noise_std, clip_norm, z), noise_std=None)


NOTHING = Training()


def plan(
    *,
    delta: Annotated[list[float], Parameter(consume_multiple=True, negative=()), option("δ: one or more, < 1/users.")],
    training: Training = NOTHING,
    accountant: Annotated[Accountant | None, option("pld (default) is tight, rdp fast, moments the papers'.")] = None,
    ledger: Annotated[Paths, option("Ledgers of runs, stores or releases, or their folders: ε of all of them.")] = None,
    json: Json = False,
) -> None:
    """Compute what a private training costs before paying for it, or what ledgers add up to.

    Give the noise to learn ε, or ε to learn the noise. Give ledgers to learn the ε of what was released already.
    """
    if ledger is not None:
        given = [f"--{name.replace('_', '-')}" for name, value in asdict(training).items() if value is not None]
        if given:
            raise SottoError(f"--ledger is about what was released, {', '.join(given)} about a plan; leave one out")
        _print_totals(ledger, delta, accountant, json)
        return
    values: JsonObject = asdict(training.with_cohort())
    del values["noise_std"]
    size = {name: values.pop(name) for name in ("users", "cohort", "rounds")}
    if missing := [f"--{name}" for name, value in size.items() if value is None]:
        raise SottoError(f"a plan needs {', '.join(missing)} too; or give --ledger, for what was released")

    from sottovoce.planning.plan import make_plan

    values["sampling"] = training.sampling or "poisson"
    values |= {name: whole(name, value) for name, value in size.items()}
    made = make_plan(**values, delta=delta[0], more_deltas=delta[1:], accountant=accountant)
    if json:
        print_json(made.to_json())
    else:
        _print_plan(made)


def _print_plan(made: Plan) -> None:
    from sottovoce.privacy.sampling import SAMPLERS

    takes_part = f"{made.device_rounds_expected:.3g} rounds on average"
    if not SAMPLERS[made.sampling].amplifies:
        takes_part = f"at most {made.device_rounds_most:,} rounds, and pays for as many"
    rows = {
        **_epsilon_rows(made.epsilons, made.relation, made.epsilon_replaced),
        "noise multiplier z": shown_epsilon(made.noise_multiplier, 6),
        "users in a round": f"{made.cohort:,} of {made.users:,} (q = {made.user_rate:.3g})",
        "rounds": f"{made.rounds:,}",
        "one user takes part in": takes_part,
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


def _print_totals(paths: list[Path], deltas: list[float], accountant: str | None, json: bool) -> None:
    from sottovoce.planning.ledger_totals import judge_ledgers

    judged = judge_ledgers(paths, deltas, accountant).to_json()
    if json:
        print_json(judged)
        return
    for figures in judged["ledgers"] if len(judged["ledgers"]) == 1 else [*judged["ledgers"], judged["total"]]:
        title = f"Ledger of a {figures['kind']}: {figures['path']}" if "path" in figures else "All together"
        rows = _epsilon_rows(figures["epsilons"], figures["relation"], figures["epsilon_replaced"])
        rows |= {
            "relation": (figures["relation"] or "none").replace("-", " "),
            "releases": f"{figures['releases']:,}",
            "accountant": judged["accountant_name"],
        }
        for number, entry in enumerate(figures["events"], 1):
            event = dict(entry["event"])
            kind = f"{entry['count']:,} × {event.pop('kind')}"
            facts = (f"{name} {f'{fact:.4g}' if isinstance(fact, float) else fact}" for name, fact in event.items())
            rows[f"event {number}"] = ", ".join([kind, *facts])
        print_table(title, rows)
        for note in figures.get("notes", ()):
            print(f"note: {note}")


def _epsilon_rows(points: list[JsonObject], relation: str | None, replaced: float | None) -> dict[str, str]:
    """A row for each δ, and one for replacing a user under an ε for adding or removing a user."""
    from sottovoce.accounting.events import ADDED

    shown = {f"δ = {point['delta']:g}": shown_epsilon(point["epsilon"]) for point in points}
    first, epsilon = next(iter(shown.items()))
    rows = {f"ε at {at}": text for at, text in shown.items()} if len(points) > 1 else {"ε": f"{epsilon} at {first}"}
    if relation == ADDED and replaced is not None:
        rows["ε when a user is replaced"] = f"{shown_epsilon(replaced)} at {first}"
    return rows


def whole(name: str, value: float) -> int:
    """1e6 is a whole number; 1.5 is none, and is not rounded in silence."""
    if not math.isfinite(value) or value != int(value):
        raise SottoError(f"--{name} {value:g} must be a whole number")
    return int(value)
