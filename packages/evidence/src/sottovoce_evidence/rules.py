"""The rules of a recipe whose breach voids its guarantee: each is a condition and the sentence of the refusal.

What a sampler or the mechanism itself refuses is no rule here: a run and a statement are both made with them.

The library checks them before anything is trained, with rules of its own for models, text and devices. Who verifies a
release checks them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sottovoce_evidence import accounting
from sottovoce_evidence.errors import plain_number
from sottovoce_evidence.mechanism import NUMBERS, Kinds, accountant_of
from sottovoce_evidence.recipe import Privacy, Recipe
from sottovoce_evidence.sampling import Sampling

MOST_PLACES = 2**32  # of examples: what an example draws for itself is keyed by its number, of 32 bits


def guarantee_rules(recipe: Recipe, before: accounting.Spent = (), kinds: Kinds = NUMBERS) -> Iterator[str]:
    """All of them. `before` was charged to the same people before the first round."""
    if recipe.run.algorithm == "els" and recipe.privacy.sampling != "examples":  # as a run of it keeps its recipe
        yield f"run.algorithm='els' draws examples, and privacy.sampling={recipe.privacy.sampling!r} draws users"
    yield from method(recipe)
    yield from examples(recipe)
    yield from clip(recipe.privacy, kinds)
    sampler = kinds.samplers[recipe.privacy.sampling]
    yield from separation(recipe.privacy, recipe.run.rounds, sampler)
    yield from correlated(recipe.privacy, sampler)
    yield from private(recipe.privacy, before, kinds)
    yield from federation(recipe, kinds)


def method(recipe: Recipe) -> Iterator[str]:
    mode, central = recipe.privacy.mode, recipe.run.algorithm == "central"
    if central and mode == "private":
        yield "run.algorithm='central' has no user-level guarantee: it pools text; use fedavg, or privacy.mode='none'"
    if central and mode == "experiment":
        yield "run.algorithm='central' has no clip and no noise to experiment with; use privacy.mode='none'"


def examples(recipe: Recipe) -> Iterator[str]:
    """Example-level sampling."""
    privacy, local, most = recipe.privacy, recipe.local, recipe.privacy.examples_per_user
    if recipe.run.algorithm != "els":
        if most:
            yield f"privacy.examples_per_user={most} is for run.algorithm='els', not {recipe.run.algorithm!r}"
        if privacy.sampling == "examples":
            yield "privacy.sampling='examples' is that of run.algorithm='els'; set that, or sample users: 'poisson'"
        return
    if privacy.sampling not in ("poisson", "examples"):
        yield f"run.algorithm='els' draws examples by Poisson sampling, not {privacy.sampling!r}; remove the key"
    if not local.tokens:
        yield "local.tokens is not set: with run.algorithm='els' it is the length of an example"
    if privacy.places > MOST_PLACES:
        numbers = f"privacy.users={privacy.users} times privacy.examples_per_user={most}"
        yield f"{numbers} must be at most {MOST_PLACES:,}: examples are numbered with 32 bits"


def clip(privacy: Privacy, kinds: Kinds) -> Iterator[str]:
    if privacy.adaptive_quantile is not None and not kinds.clips[privacy.clipping].bounded:
        yield "an adaptive clip norm needs a clip: flat or per_layer"


def separation(privacy: Privacy, rounds: int, sampler: type[Sampling]) -> Iterator[str]:
    """How often, and how close together, one user joins."""
    b, k, cohort, users = privacy.min_separation, privacy.participations, privacy.cohort, privacy.users
    if not sampler.takes("min_separation"):
        for key, value in (("min_separation", b), ("participations", k)):
            if value:
                yield f"privacy.{key}={value} is for privacy.sampling='min_separation', not {privacy.sampling!r}"
        return
    if b > rounds:
        yield f"privacy.min_separation={b} is more than run.rounds={rounds}, so that nobody joins twice; use {rounds}"
    if k and k * users < rounds * cohort:
        cohorts = f"{rounds} cohorts of {cohort:g} are {rounds * cohort:g} user updates, and {users} users"
        least = math.ceil(rounds * cohort / users)
        yield f"privacy.participations={k}: {cohorts} give {k * users} at most; use {least} or more, or fewer rounds"


def correlated(privacy: Privacy, sampler: type[Sampling]) -> Iterator[str]:
    """Noise that is correlated over rounds."""
    if (noise := privacy.noise) == "independent":
        return
    if privacy.mode == "experiment":
        yield f"privacy.noise={noise!r} is for private runs; an experiment has independent noise"
    if sampler.amplifies:
        needs = "needs to know how often and how close together a user joins: use 'in_turn' or 'min_separation'"
        yield f"privacy.noise={noise!r} {needs} as privacy.sampling, not {privacy.sampling!r}"
    for key in ("noise_schedule", "clip_schedule", "adaptive_quantile"):
        if getattr(privacy, key) not in ((), None):
            yield f"privacy.{key} changes rounds, and privacy.noise={noise!r} is one release of all rounds; remove one"


def private(privacy: Privacy, before: accounting.Spent, kinds: Kinds) -> Iterator[str]:
    epsilon, delta = privacy.epsilon, privacy.delta
    if privacy.noise_std is not None:
        yield "privacy.noise_std is for experiment mode; a private run derives it from noise_multiplier"
    if not kinds.estimators[privacy.estimator].bounded:
        yield f"privacy.estimator={privacy.estimator!r} has no bounded sensitivity; use fixed_denominator"
    if not kinds.clips[privacy.clipping].bounded:
        yield f"privacy.clipping={privacy.clipping!r} bounds no user's update; use flat or per_layer, or mode 'none'"
    if privacy.noise_multiplier is None and epsilon is None:
        yield "a private run needs privacy.noise_multiplier or privacy.epsilon"
    if privacy.noise_multiplier == 0:
        yield "privacy.noise_multiplier=0 must be above 0 in a private run; without noise use mode 'none'"
    if delta >= 1 / privacy.users:
        limit = f"1/users = {1 / privacy.users:.2g}, or one person's text may be released"
        yield f"privacy.delta={plain_number(delta)} must be below {limit}; lower it"
    if privacy.weight_cap > 1 and privacy.total_weight == 0:
        yield f"privacy.weight_cap={privacy.weight_cap:g} gives users unequal weights: declare privacy.total_weight (W)"
    # Computed without a budget too: the accountant refuses a δ that a vocabulary uses up.
    spent = accounting.epsilon(before, delta, accountant_of(privacy)) if before else 0.0
    if spent >= (epsilon or math.inf):
        cost = f"{accounting.rounded_up(spent, 4)} at delta={plain_number(delta)}"
        used_up = f"privacy.epsilon={epsilon or math.inf:g} is used up before the first round"
        yield f"{used_up}: the store's vocabulary and the runs that it starts from cost {cost}; raise it, or do without"


def federation(recipe: Recipe, kinds: Kinds) -> Iterator[str]:
    """How the answers of devices are added up."""
    federation, least = recipe.federation, recipe.federation.colluding + 2
    yield from _device_noise(recipe, kinds)
    if not federation.masked:
        if federation.colluding:
            yield f"federation.colluding={federation.colluding} is for masked sums; set federation.survivors"
        return
    if federation.survivors < least:
        why = "a sum over one honest device is that of the device"
        yield f"federation.survivors={federation.survivors} must be {least} or more, federation.colluding + 2: {why}"
    if not kinds.clips[recipe.privacy.clipping].bounded:
        grid = "masks hide whole numbers within a bound, and without a clip there is none"
        yield f"privacy.clipping={recipe.privacy.clipping!r}: {grid}; use flat or per_layer, or no federation.survivors"


def _device_noise(recipe: Recipe, kinds: Kinds) -> Iterator[str]:
    """Noise that devices add."""
    federation, privacy, said = recipe.federation, recipe.privacy, "federation.noise='devices'"
    if federation.noise == "server":
        for key in ("server_noise_multiplier", "participations"):
            if value := getattr(federation, key):
                yield f"federation.{key}={value:g} is for {said}; set that, or remove it"
        return
    if not federation.masked:
        yield f"{said} hides a device in a sum that is masked; set federation.survivors, or noise='server'"
    if privacy.sampling == "fixed" or recipe.run.algorithm == "els":
        yield f"{said} needs users who join by themselves; use privacy.sampling='poisson' or 'min_separation'"
    if federation.participations and not kinds.samplers[privacy.sampling].independent:
        own = f"privacy.sampling={privacy.sampling!r} bounds how often a user joins"
        yield f"federation.participations={federation.participations} is for 'poisson': {own}; remove it"
