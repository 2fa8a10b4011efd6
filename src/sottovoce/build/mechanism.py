"""From a recipe to its Mechanism: check it, find the noise for an ε, build the sampler, the clip and the estimator."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sottovoce import accounting
from sottovoce.accounting.matrices import Banded, Blt, Identity, Participation, StrategyMatrix, Tree
from sottovoce.build import rules
from sottovoce.build.rules import accountant_of
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import CLIPS, PerLayerClip, joint_norm
from sottovoce.privacy.device_noise import DeviceNoise, how_often
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.matrix_search import check_noise, find_matrix
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import SAMPLERS, Sampler, build_sampler
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
    if recipe.run.algorithm == "els" and recipe.privacy.sampling == "poisson":
        recipe = recipe.replace(privacy={"sampling": "examples"})  # of examples, each by a coin: it says what is drawn
    privacy = recipe.privacy
    # Unknown names are refused first.
    _ = SAMPLERS[privacy.sampling], CLIPS[privacy.clipping], ESTIMATORS[privacy.estimator]
    check_noise(privacy.noise)
    rules.check(rules.recipe_rules(recipe, processes, before))
    if privacy.layer_clip_norms:
        # One meaning of S everywhere: the bound on the whole update.
        recipe = recipe.replace(privacy={"clip_norm": joint_norm(privacy.layer_clip_norms)})
    if privacy.mode != "private":
        return recipe
    accountant = accountant_of(privacy)
    sampler = sampler_of(recipe)
    accounting.check(accountant, sampler.relation)
    devices = device_noise_of(recipe, sampler)
    if devices is None:
        accounting.check_events(accountant, [sampler.event(1.0)])
    # Kept, so that a run ends with the accountant it began with, even if a later version has another default.
    recipe = recipe.replace(privacy={"accountant": accountant})
    participation = None if privacy.noise == Identity.kind else sampler.participation(recipe.run.rounds)
    if participation is not None and privacy.noise != Tree.kind and not privacy.noise_coefficients:
        # Kept too: a run goes on with the matrix that it began with, whatever a later search finds.
        found = find_matrix(privacy.noise, participation, privacy.noise_bands, privacy.noise_buffers)
        recipe = recipe.replace(privacy=settings_of(found))
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        # At z = 1: what a run costs depends on the noise alone, not on the clip or the model.
        shape = sampler.events(build_schedule(privacy.noise_schedule).stretches(recipe.run.rounds))
        if devices is not None:
            shape = devices.charged(shape)
        if participation is not None:
            shape = [(accounting.CorrelatedGaussian(1.0, matrix_of(recipe.privacy), participation), 1)]
        found = accounting.calibrate(shape, privacy.epsilon, privacy.delta, accountant, before=before)
        # The noise of devices is part of it: more of that than ε asks for makes it smaller.
        found = max(found, recipe.federation.server_noise_multiplier or 0.0)
        recipe = recipe.replace(privacy={"noise_multiplier": found})
    if devices is not None and recipe.federation.server_noise_multiplier is None:
        recipe = recipe.replace(federation={"server_noise_multiplier": recipe.privacy.noise_multiplier})
    return recipe


def build_mechanism(recipe: Recipe, layers: Collection[str]) -> Mechanism:
    """The mechanism of a resolved recipe, for a model of these layers. A mapping gives each its number of arrays."""
    privacy, silos = recipe.privacy, recipe.federation.max_silos
    experiment = privacy.mode == "experiment"
    # A person sends up to one update from each of their silos: together they have the norm S.
    layer_norms = privacy.layer_clip_norms or PerLayerClip.even(privacy.clip_norm, len(layers)).clip_norms
    rate, total = privacy.rate, privacy.declared_weight
    sampler = sampler_of(recipe)
    correlated = privacy.noise != Identity.kind and privacy.mode == "private"
    return Mechanism(
        sampler=sampler,
        clipping=CLIPS.build(
            privacy.clipping,
            clip_norm=privacy.clip_norm / silos,
            clip_norms=tuple(norm / silos for norm in layer_norms),
            arrays=tuple(layers.values()) if isinstance(layers, Mapping) else (),
            weight_aware=privacy.clip_weighted,
        ),
        estimator=ESTIMATORS.build(
            privacy.estimator, expected_weight=rate * total, least_weight=rate * (privacy.min_weight or total)
        ),
        noise_multiplier=0.0 if privacy.mode == "none" else privacy.noise_multiplier or 0.0,
        clip_schedule=build_schedule(privacy.clip_schedule, privacy.clip_path),
        noise_schedule=build_schedule(privacy.noise_schedule),
        tracking=_build_tracking(privacy),
        experiment=experiment,
        experiment_noise_std=privacy.noise_std if experiment else None,
        nominal_clip_norm=privacy.clip_norm,
        matrix=matrix_of(privacy) if correlated else Identity(),
        participation=sampler.participation(recipe.run.rounds) if correlated else None,
        devices=device_noise_of(recipe, sampler),
    )


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
    return Tree() if privacy.noise == Tree.kind else Identity()


def settings_of(matrix: StrategyMatrix) -> dict[str, tuple[float, ...]]:
    """What a recipe keeps of a matrix that was found."""
    if isinstance(matrix, Blt):
        return {"noise_coefficients": matrix.scales, "noise_decays": matrix.decays}
    assert isinstance(matrix, Banded)
    return {"noise_coefficients": matrix.bands}


def _build_tracking(privacy: Privacy) -> QuantileTracking | None:
    if privacy.adaptive_quantile is None:
        return None
    bit_noise = privacy.adaptive_bit_noise or privacy.cohort / 20
    return QuantileTracking(privacy.adaptive_quantile, privacy.adaptive_rate, bit_noise, privacy.cohort)


def sampler_of(recipe: Recipe) -> Sampler:
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
