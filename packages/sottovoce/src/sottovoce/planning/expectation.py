"""How accurate a private model will be, from runs that were measured (docs/results/small.md).

The formula was fitted to 72 runs from the base `english` on Reddit users and bloggers, docs/results/small.csv:

    top-1 = CLEAN + PROGRESS · ln(progress / 180) − cost,       progress = server rate · rounds · min(S, 5)
    cost  = NOISE · (server rate · σ / 0.01)^1.64 · (rounds / 40)^0.57 · (S / 3)^−0.33

The first line is training without noise. The second is what noise of σ on every coordinate takes away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce_evidence import bases
from sottovoce_evidence.files import Facts
from sottovoce_evidence.recipe import Recipe, describe

CLEAN, PROGRESS, MOST_PROGRESS = 16.553, 0.589, 5.0  # points; a longer update than S = 5 is no faster
NOISE, BY_NOISE, BY_ROUNDS, BY_CLIP = 0.365, 1.641, 0.566, -0.333
SPREAD, SPREAD_OF_COST = 0.25, 0.2  # points, and points for each point of cost
BASE = {"english": (0.136, 0.142)}  # top-1 of a base on the people of these runs: Reddit users, bloggers
MOST_COST = 7.0  # points: no run had more noise
DROWNED = "drowned"  # the verdict on a model that is no better than its base
# Settings that were varied, and from where to where. Other settings are those of the recipe `small`.
MEASURED = {
    "privacy.users": (2_000, 30_000),
    "privacy.cohort": (250, 5_000),
    "privacy.clip_norm": (2.0, 7.0),
    "run.rounds": (10, 200),
    "server.learning_rate": (1.0, 2.0),
    "local.learning_rate": (3.0, 6.0),
}
# Most runs had 3,900 users. Six with 27,000 ended 0.2 to 0.4 points below the formula.
FEWEST, MOST, FAR = 2_000, 8_000, 0.25
NEARLY = 1_500  # users: from here to the fewest that were measured, what these would end at is a bound
CHECKED = (
    "Top-1 is for English like Reddit comments and blogs, with 320 tokens a user or more.",
    "The base has 13.6 to 14.2 % there. Drowned: the model is no better than the base.",
    "18 fresh runs differed from it by 0.2 points (median) and at most 1.1, where noise took 6 points.",
)
# Settings that change no accuracy, or that a plan varies itself.
_FREE = {
    *("data.store", "model.initial", "run.seed", "run.evaluate_every", "run.evaluate_users", "run.checkpoint_every"),
    *("run.kernels", "run.block", "run.devices", "privacy.epsilon", "privacy.delta", "privacy.noise_multiplier"),
    *("privacy.accountant", "privacy.secrets", "privacy.randomness", "privacy.allow_large_delta"),
}


@dataclass(frozen=True)
class Expectation(Facts):
    """Top-1 on people like those of the measured runs, its range, and how much of it noise takes away."""

    top1: float
    low: float
    high: float
    cost: float  # a share, as top-1 is: 0.01 is a point
    verdict: str


def expect(recipe: Recipe, noise_std: float) -> Expectation:
    """What a recipe ends at with noise of this σ on every coordinate. Ask `not_measured` first."""
    rate, rounds, clip_norm = recipe.server.learning_rate, recipe.run.rounds, recipe.privacy.clip_norm
    progress = rate * rounds * min(clip_norm, MOST_PROGRESS)
    clean = CLEAN + PROGRESS * math.log(progress / 180)
    size = NOISE * (rounds / 40) ** BY_ROUNDS * (clip_norm / 3) ** BY_CLIP
    cost = min(clean, size * (rate * noise_std / 0.01) ** BY_NOISE)
    spread = SPREAD + SPREAD_OF_COST * cost + (0.0 if FEWEST <= recipe.privacy.users <= MOST else FAR)
    top1 = clean - cost
    low = max(0.0, top1 - spread) if cost <= MOST_COST else 0.0
    _, base = BASE[str(recipe.model.initial)]
    verdict = _verdict(cost) if top1 > 100 * base else DROWNED
    return Expectation(top1 / 100, low / 100, (top1 + spread) / 100, cost / 100, verdict)


def at_most(recipe: Recipe, noise_std: float) -> float | None:
    """The most that somewhat fewer users than were measured end at: the end of the range of the fewest, with this σ."""
    fewest = MEASURED["privacy.users"][0]
    enough = recipe.replace(privacy={"users": fewest})
    if not NEARLY <= recipe.privacy.users < fewest or not_measured(enough):
        return None
    return expect(enough, noise_std).high


def _verdict(cost: float) -> str:
    """What noise takes, in words."""
    if cost < 0.25:
        return "free"
    if cost < 0.75:
        return "costs half a point"
    points = round(cost)
    return "costs about a point" if points == 1 else f"costs about {points} points"


def not_measured(recipe: Recipe) -> list[str]:
    """Why no accuracy is known for a recipe: how it differs from the runs that were measured. Empty if one is known."""
    small, initial = Recipe.load("small"), recipe.model.initial
    base = bases.find(next(iter(BASE)))
    assert base is not None
    reasons, sizes = [], bases.read_base(base).model
    if initial not in BASE:
        start = "is not set" if initial is None else f"= {initial!r}"
        reasons.append(f"model.initial {start}: runs were measured from {' and '.join(map(repr, BASE))}")
    other_kind = recipe.model.kind != small.model.kind
    for key in describe():
        name = f"{key.section}.{key.name}"
        value, usual = (getattr(getattr(each, key.section), key.name) for each in (recipe, small))
        if name in MEASURED:
            low, high = MEASURED[name]
            if not low <= value <= high:
                reasons.append(f"{name} = {value:g} is outside {low:g} to {high:g}, which were measured")
        elif key.section == "model" and key.name != "kind" and other_kind:
            continue  # sizes of a kind that was not measured say nothing more
        elif name not in _FREE and value != usual and (value is None or value != sizes.get(key.name)):
            reasons.append(f"{name} = {value!r} was not measured")
    return reasons
