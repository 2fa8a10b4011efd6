"""From a recipe to the blocks of its mechanism that need no jax: a plan and a reviewer build them too."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import CLIPS, Clip, PerLayerClip
from sottovoce.privacy.device_noise import DeviceNoise, how_often
from sottovoce.privacy.estimators import ESTIMATORS, Estimator
from sottovoce.privacy.sampling import SAMPLERS, Sampler, build_sampler
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, Participation, StrategyMatrix
from sottovoce_evidence.recipe import Privacy, Recipe


def sampler_of(recipe: Recipe) -> Sampler:
    """The sampler, from what is declared."""
    privacy, hardened = recipe.privacy, recipe.privacy.randomness == "hardened"
    if SAMPLERS[privacy.sampling].takes("examples_per_user"):
        return SAMPLERS.build(
            privacy.sampling,
            example_rate=privacy.rate,
            examples_per_user=privacy.examples_per_user,
            hardened=hardened,
        )
    participation = None
    if privacy.min_separation:
        most = privacy.participations or recipe.run.rounds
        participation = Participation(recipe.run.rounds, privacy.min_separation, most)
    return build_sampler(
        privacy.sampling,
        cohort=privacy.cohort,
        users=privacy.users,
        seed=recipe.run.seed,
        hardened=hardened,
        participation=participation,
        silos=recipe.federation.max_silos,
    )


def clip_of(recipe: Recipe, layers: Collection[str]) -> Clip:
    """The clip of a model of these layers. A mapping gives each its number of arrays."""
    privacy, silos = recipe.privacy, recipe.federation.max_silos
    # A person sends up to one update from each of their silos: together they have the norm S.
    layer_norms = privacy.layer_clip_norms or PerLayerClip.even(privacy.clip_norm, len(layers)).clip_norms
    return CLIPS.build(
        privacy.clipping,
        clip_norm=privacy.clip_norm / silos,
        clip_norms=tuple(norm / silos for norm in layer_norms),
        arrays=tuple(layers.values()) if isinstance(layers, Mapping) else (),
        weight_aware=privacy.clip_weighted,
    )


def estimator_of(privacy: Privacy) -> Estimator:
    """The estimator, with the denominator that is declared."""
    rate, total = privacy.rate, privacy.declared_weight
    return ESTIMATORS.build(
        privacy.estimator, expected_weight=rate * total, least_weight=rate * (privacy.min_weight or total)
    )


def tracking_of(privacy: Privacy) -> QuantileTracking | None:
    """How the clip norm adapts, where it does."""
    if privacy.adaptive_quantile is None:
        return None
    bit_noise = privacy.adaptive_bit_noise or privacy.cohort / 20
    return QuantileTracking(privacy.adaptive_quantile, privacy.adaptive_rate, bit_noise, privacy.cohort)


def device_noise_of(recipe: Recipe, sampler: Sampler) -> DeviceNoise | None:
    """The noise of devices, where they add it."""
    federation = recipe.federation
    if federation.noise == "server":
        return None
    z = federation.server_noise_multiplier or recipe.privacy.noise_multiplier or 1.0
    most = how_often(sampler, recipe.run.rounds, federation.participations)
    return DeviceNoise(z, federation.survivors, federation.colluding, most)


def matrix_of(privacy: Privacy) -> StrategyMatrix:
    """The strategy matrix of a resolved recipe."""
    if privacy.noise == Blt.kind:
        return Blt(privacy.noise_coefficients, privacy.noise_decays)
    if privacy.noise == Banded.kind:
        return Banded(privacy.noise_coefficients)
    return Identity()


def settings_of(matrix: StrategyMatrix) -> dict[str, tuple[float, ...]]:
    """What a recipe keeps of a matrix that was found."""
    if isinstance(matrix, Blt):
        return {"noise_coefficients": matrix.scales, "noise_decays": matrix.decays}
    assert isinstance(matrix, Banded)
    return {"noise_coefficients": matrix.bands}
