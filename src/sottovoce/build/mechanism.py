"""From a recipe to its Mechanism: check it, find the noise for an ε, build the sampler, the clip and the estimator."""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce import accounting
from sottovoce.build import rules
from sottovoce.build.rules import Case, Scope, accountant_of
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import Clipping, FlatClip, NoClip, PerLayerClip, joint_norm
from sottovoce.privacy.estimators import ClippedDenominator, Estimator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import FixedSize, InTurn, Poisson, Sampler
from sottovoce.privacy.schedule import build_schedule
from sottovoce.recipe import Privacy, Recipe


def resolve(recipe: Recipe, before: accounting.Spent = (), processes: int = 1) -> Recipe:
    """Refuse what has no valid meaning; find the noise for an ε that was asked for.

    Args:
        recipe: as written.
        before: what was spent on the store's vocabulary; it counts towards ε.
        processes: how many processes share out a cohort.

    Returns:
        The recipe with the noise multiplier, the accountant and the clip norm that are used.
    """
    if recipe.run.algorithm == "central":
        # Record and statement show what is done, and central training does not clip.
        recipe = recipe.replace(privacy={"clipping": "none"})
    rules.check(Scope.RECIPE, Case(recipe, processes, before))
    privacy = recipe.privacy
    if privacy.layer_clip_norms:
        # One meaning of S everywhere: the bound on the whole update.
        recipe = recipe.replace(privacy={"clip_norm": joint_norm(privacy.layer_clip_norms)})
    if privacy.mode != "private":
        return recipe
    accountant = accountant_of(privacy)
    accounting.check(accountant, "poisson" if privacy.sampling == "poisson" else "fixed")
    # Kept, so that a run ends with the accountant it began with, even if a later version has another default.
    recipe = recipe.replace(privacy={"accountant": accountant})
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        # A round's charge depends on z alone, so a plain clip may stand for the model's own.
        schedule = build_schedule(privacy.noise_schedule)
        shape = Mechanism(build_sampler(recipe), FlatClip(1.0), FixedDenominator(1.0), 1.0, noise_schedule=schedule)
        events = shape.events(recipe.run.rounds)
        found = accounting.calibrate(events, privacy.epsilon, privacy.delta, accountant, before=before)
        recipe = recipe.replace(privacy={"noise_multiplier": found})
    return recipe


def build_mechanism(recipe: Recipe, layers: Sequence[str]) -> Mechanism:
    """The mechanism of a resolved recipe, for a model of these layers."""
    privacy = recipe.privacy
    experiment = privacy.mode == "experiment"
    return Mechanism(
        sampler=build_sampler(recipe),
        clipping=_build_clipping(privacy, len(layers)),
        estimator=_build_estimator(privacy),
        noise_multiplier=0.0 if privacy.mode == "none" else privacy.noise_multiplier or 0.0,
        clip_schedule=build_schedule(privacy.clip_schedule, privacy.clip_path),
        noise_schedule=build_schedule(privacy.noise_schedule),
        tracking=_build_tracking(privacy),
        experiment=experiment,
        experiment_noise_std=privacy.noise_std if experiment else None,
        nominal_clip_norm=privacy.clip_norm,
    )


def _build_tracking(privacy: Privacy) -> QuantileTracking | None:
    if privacy.adaptive_quantile is None:
        return None
    bit_noise = privacy.adaptive_bit_noise or privacy.cohort / 20
    return QuantileTracking(privacy.adaptive_quantile, privacy.adaptive_rate, bit_noise, privacy.cohort)


def build_sampler(recipe: Recipe) -> Sampler:
    privacy = recipe.privacy
    hardened = privacy.randomness == "hardened"
    if privacy.sampling == "poisson":
        return Poisson(privacy.cohort / privacy.users, hardened=hardened)
    if privacy.sampling == "in_turn":
        return InTurn(int(privacy.cohort), privacy.users, recipe.run.seed)
    return FixedSize(int(privacy.cohort), privacy.users, hardened=hardened)


def _build_clipping(privacy: Privacy, layers: int) -> Clipping:
    if privacy.clipping == "flat":
        return FlatClip(privacy.clip_norm, privacy.clip_weighted)
    if privacy.clipping == "per_layer":
        if privacy.layer_clip_norms:
            return PerLayerClip(privacy.layer_clip_norms, privacy.clip_weighted)
        return PerLayerClip.even(privacy.clip_norm, layers, privacy.clip_weighted)
    return NoClip()


def _build_estimator(privacy: Privacy) -> Estimator:
    rate = privacy.cohort / privacy.users
    total = privacy.total_weight or float(privacy.users)
    if privacy.estimator == "fixed_denominator":
        return FixedDenominator(rate * total)
    if privacy.estimator == "clipped_denominator":
        return ClippedDenominator(rate * (privacy.min_weight or total))
    return TrueAverage()
