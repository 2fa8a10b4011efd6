"""From a recipe to its Mechanism: check it, find the noise for an ε, build the sampler, the clip and the estimator."""

from __future__ import annotations

from collections.abc import Collection

from sottovoce.build import rules
from sottovoce.privacy.clipping import CLIPS
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.kinds import KINDS
from sottovoce.privacy.matrix_search import check_noise, find_matrix
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.accounting.matrices import Identity
from sottovoce_evidence.mechanism import (
    accountant_of,
    charges_of,
    mechanism_of,
    sampler_of,
    settings_of,
)
from sottovoce_evidence.recipe import Recipe


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
    if privacy.mode != "private":
        return recipe
    accountant = accountant_of(privacy)
    sampler = sampler_of(recipe)
    accounting.check(accountant, [sampler.event(1.0)])
    # Kept, so that a run ends with the accountant it began with, even if a later version has another default.
    recipe = recipe.replace(privacy={"accountant": accountant})
    participation = None if privacy.noise == Identity.kind else sampler.participation(recipe.run.rounds)
    if participation is not None and not privacy.noise_coefficients:
        # Kept too: a run goes on with the matrix that it began with, whatever a later search finds.
        found = find_matrix(privacy.noise, participation, privacy.noise_bands, privacy.noise_buffers)
        recipe = recipe.replace(privacy=settings_of(found))
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        shape = charges_of(recipe)
        found = calibrate(shape, privacy.epsilon, privacy.delta, accountant, before=before)
        # The noise of devices is part of it: more of that than ε asks for makes it smaller.
        found = max(found, recipe.federation.server_noise_multiplier or 0.0)
        recipe = recipe.replace(privacy={"noise_multiplier": found})
    if recipe.federation.noise == "devices" and recipe.federation.server_noise_multiplier is None:
        recipe = recipe.replace(federation={"server_noise_multiplier": recipe.privacy.noise_multiplier})
    return recipe


def build_mechanism(recipe: Recipe, layers: Collection[str]) -> Mechanism:
    """The mechanism of a resolved recipe, for a model of these layers. A mapping gives each its number of arrays."""
    return mechanism_of(recipe, layers, KINDS, Mechanism)
