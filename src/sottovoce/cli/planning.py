"""`sotto plan`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.errors import SottoError


def plan(
    *,
    users: float,
    cohort: float,
    rounds: float,
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    accountant: Literal["pld", "rdp", "moments"] | None = None,
    sampling: Literal["poisson", "fixed"] = "poisson",
    clip_norm: float | None = None,
    parameters: int | None = None,
    users_per_second: float | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Say what a private training costs, before paying for it.

    Give the noise to learn ε, or ε to learn the noise.

    Parameters
    ----------
    users
        K: the population.
    cohort
        Expected users in a round; q = cohort / users.
    rounds
        T: rounds of training.
    delta
        δ; below 1/users.
    noise_multiplier
        z: the noise over the sensitivity.
    epsilon
        ε to solve the noise for.
    accountant
        pld is tight, rdp quick, moments the papers' own. Default: pld, or rdp for fixed-size cohorts.
    sampling
        Poisson (each user independently) or fixed-size cohorts.
    clip_norm
        S: then also the noise on every coordinate.
    parameters
        Size of the model: then also signal-to-noise and bytes a device sends.
    users_per_second
        A measured rate (`sotto train` prints it): then also hours.
    json
        One JSON object.
    """
    from sottovoce.planning.plan import make_plan

    users, cohort, rounds = whole("users", users), whole("cohort", cohort), whole("rounds", rounds)
    made = make_plan(
        users=users, cohort=cohort, rounds=rounds, delta=delta, noise_multiplier=noise_multiplier, epsilon=epsilon,
        accountant=accountant, sampling=sampling, clip_norm=clip_norm, parameters=parameters,
        users_per_second=users_per_second,
    )  # fmt: skip
    if json:
        print_json(made.to_json())
        return
    rows = {
        "ε": f"{shown_epsilon(made.epsilon)} at δ = {made.delta:g}",
        "noise multiplier z": f"{made.noise_multiplier:g}",
        "users in a round": f"{made.cohort:,} of {made.users:,} (q = {made.user_rate:.3g})",
        "rounds": f"{made.rounds:,}",
        "one user takes part in": f"{made.device_rounds_expected:.3g} rounds on average",
        "sampling, relation": f"{made.sampling}, {made.relation.replace('-', ' ')}",
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


def whole(name: str, value: float) -> int:
    """1e6 is a whole number; 1.5 is none, and is not rounded in silence."""
    if not math.isfinite(value) or value != int(value):
        raise SottoError(f"--{name} {value:g} must be a whole number")
    return int(value)
