"""The paper's way to plan: find a σ that costs nothing with a small cohort, then the cohort that gives it at z = 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce_evidence.accounting import ACCOUNTANTS, epsilon
from sottovoce_evidence.errors import SettingError
from sottovoce_evidence.sampling import Poisson


@dataclass(frozen=True)
class Projection:
    """A training that was not run: its ε, by accountant, is projected."""

    noise_std: float
    clip_norm: float
    noise_multiplier: float
    cohort: int
    users: int
    rounds: int
    delta: float
    epsilons: dict[str, float]


def cohort_for(noise_std: float, clip_norm: float, noise_multiplier: float = 1.0) -> int:
    """The users a round at which the noise on the average update is `noise_std`: σ = z · S / cohort."""
    for name, value in {"noise_std": noise_std, "clip_norm": clip_norm, "noise_multiplier": noise_multiplier}.items():
        if not (math.isfinite(value) and value > 0):
            text = f"{{{name}}} must be a positive number: a cohort follows from σ = z · S / cohort"
            raise SettingError(text, **{name: value})
    # Not one user too many for 15 / 0.003, which is 5,000 and a little in binary.
    return math.ceil(noise_multiplier * clip_norm / noise_std - 1e-6)


def project(
    *,
    noise_std: float,
    clip_norm: float,
    users: int,
    rounds: int,
    delta: float,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> Projection:
    """ε of training with the cohort that turns a measured σ into z = 1 (McMahan et al. 2018, Table 2)."""
    noise_multiplier = 1.0
    cohort = cohort_for(noise_std, clip_norm, noise_multiplier)
    if cohort > users:
        raise SettingError(
            f"{{noise_std:g}} at {{clip_norm:g}} needs {cohort:,} users a round, more than the "
            f"{users:,} there are; a larger {{noise_std.name}}, a smaller {{clip_norm.name}} or more users would do",
            noise_std=noise_std,
            clip_norm=clip_norm,
        )
    spent = Poisson(cohort / users).events([(noise_multiplier, rounds)])
    found = {accountant: epsilon(spent, delta, accountant) for accountant in accountants}
    return Projection(noise_std, clip_norm, noise_multiplier, cohort, users, rounds, delta, found)
