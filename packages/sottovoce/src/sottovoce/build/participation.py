"""The rules of how often a user joins and of noise that is correlated over rounds: for plans too, which know no jax."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sottovoce_evidence.recipe import Privacy
from sottovoce_evidence.sampling import Sampling


def separation(privacy: Privacy, rounds: int, sampler: type[Sampling]) -> Iterator[str]:
    """How often, and how close together, one user joins."""
    b, k, cohort, users = privacy.min_separation, privacy.participations, privacy.cohort, privacy.users
    if not sampler.takes("min_separation"):
        for key, value in (("min_separation", b), ("participations", k)):
            if value:
                yield f"privacy.{key}={value} is for privacy.sampling='min_separation', not {privacy.sampling!r}"
        return
    most = f"at most users / cohort = {int(users // cohort)}"
    if b < 1:
        yield f"privacy.min_separation is not set: the fewest rounds from one that a user joins to the next, {most}"
    if b * cohort > users:
        needs = f"{b} cohorts of {cohort:g} different users, and {users} are declared"
        yield f"privacy.min_separation={b} needs {needs}; use {most}"
    if b > rounds:
        yield f"privacy.min_separation={b} is more than run.rounds={rounds}, so that nobody joins twice; use {rounds}"
    if k and k * users < rounds * cohort:
        cohorts = f"{rounds} cohorts of {cohort:g} are {rounds * cohort:g} user updates, and {users} users"
        least = math.ceil(rounds * cohort / users)
        yield f"privacy.participations={k}: {cohorts} give {k * users} at most; use {least} or more, or fewer rounds"


def correlated(privacy: Privacy, sampler: type[Sampling]) -> Iterator[str]:
    """Noise that is correlated over rounds."""
    noise, plain = privacy.noise, Privacy()
    own = {"noise_bands": ("banded",), "noise_buffers": ("blt",), "noise_decays": ("blt",)}
    for key, kinds in {**own, "noise_coefficients": ("banded", "blt")}.items():
        if getattr(privacy, key) != getattr(plain, key) and noise not in kinds:
            yield f"privacy.{key} has no meaning with privacy.noise={noise!r}; it is for {' and '.join(kinds)}"
    if noise == "blt" and len(privacy.noise_decays) != len(privacy.noise_coefficients):
        yield "privacy.noise_decays must be as many as privacy.noise_coefficients, or both empty: then they are found"
    if noise == "independent":
        return
    if privacy.mode == "experiment":
        yield f"privacy.noise={noise!r} is for private runs; an experiment has independent noise"
    if sampler.amplifies:
        needs = "needs to know how often and how close together a user joins: use 'in_turn' or 'min_separation'"
        yield f"privacy.noise={noise!r} {needs} as privacy.sampling, not {privacy.sampling!r}"
    for key in ("noise_schedule", "clip_schedule", "adaptive_quantile"):
        if getattr(privacy, key) not in ((), None):
            yield f"privacy.{key} changes rounds, and privacy.noise={noise!r} is one release of all rounds; remove one"
