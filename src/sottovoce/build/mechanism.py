"""What a recipe promises: refuse what has no valid meaning, find the noise for an ε, build the Mechanism."""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce import accounting
from sottovoce.errors import SottoError
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import PerLayerClip, build_clip, clip_named, joint_norm, takes_layer_norms
from sottovoce.privacy.estimators import build_estimator, estimator_named
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Sampler, build_sampler
from sottovoce.privacy.schedule import build_schedule
from sottovoce.recipe import Privacy, Recipe, Server


def resolve(recipe: Recipe, before: accounting.Spent = ()) -> Recipe:
    """Refuse what has no valid meaning; find the noise for an ε that was asked for, `before` counted in."""
    if recipe.run.algorithm == "central":
        recipe = _resolve_central(recipe)
    _check_transfer(recipe)
    privacy = recipe.privacy
    if privacy.users < 1:
        raise SottoError("privacy.users is not set: declare the population, a public constant (it gives q and W)")
    if privacy.cohort <= 0:
        raise SottoError("privacy.cohort is not set: it is the expected number of users in a round")
    _sampler_of(recipe)
    clip_named(privacy.clipping)
    estimator_named(privacy.estimator)
    _check_schedules(recipe)
    if privacy.layer_clip_norms:
        # One meaning of S everywhere: the bound on the whole update.
        recipe = recipe.replace(privacy={"clip_norm": joint_norm(privacy.layer_clip_norms)})
    if privacy.mode == "none":
        return recipe
    if privacy.mode == "experiment":
        if privacy.epsilon is not None:
            raise SottoError("privacy.epsilon has no meaning in experiment mode: its ε is infinite; remove it")
        if privacy.noise_std is None and privacy.noise_multiplier is None:
            raise SottoError("experiment mode needs privacy.noise_std or privacy.noise_multiplier (0 is allowed)")
        if privacy.noise_std is not None and privacy.noise_multiplier is not None:
            raise SottoError("privacy.noise_std and privacy.noise_multiplier are both given; keep one")
        return recipe
    return _resolve_private(recipe, before)


def _resolve_central(recipe: Recipe) -> Recipe:
    if recipe.privacy.mode == "private":
        raise SottoError(
            "run.algorithm='central' has no user-level guarantee: it trains on pooled text, where nobody's part is "
            "bounded; use fedavg or fedsgd for a private run, or say privacy.mode = 'none'"
        )
    if recipe.privacy.mode == "experiment":
        raise SottoError(
            "run.algorithm='central' has no clip and no noise to experiment with; say privacy.mode = 'none'"
        )
    # No clip is what is done, whatever the default says: record and statement are to show it.
    return recipe.replace(privacy={"clipping": "none"})


def _check_transfer(recipe: Recipe) -> None:
    """Refuse transfer learning where something is promised, and settings of it where there is none."""
    server = recipe.server
    if server.update == "average":
        for name in ("text", "tokens", "epochs", "cycles"):
            if getattr(server, name) != getattr(Server(), name):
                raise SottoError(
                    f"server.{name} has no meaning with server.update='average'; say 'transfer', or remove it"
                )
        return
    if recipe.run.algorithm == "central":
        raise SottoError(
            "server.update='transfer' learns from models that users return, and central training has none; use fedavg"
        )
    if recipe.privacy.mode == "private":
        raise SottoError(
            "server.update='transfer' has no user-level guarantee: the server trains on what the users' models "
            "predict, and how far one of them can move that is not bounded; use 'average' for a private run, or say "
            "privacy.mode = 'none'"
        )
    if recipe.privacy.mode == "experiment":
        raise SottoError(
            "server.update='transfer' releases no average to add noise to; say privacy.mode = 'none' (updates are "
            "clipped as privacy.clipping says), or use 'average'"
        )
    if recipe.privacy.adaptive_quantile is not None:
        raise SottoError("privacy.adaptive_quantile follows averaged updates; with server.update='transfer' remove it")


def _resolve_private(recipe: Recipe, before: accounting.Spent) -> Recipe:
    privacy = recipe.privacy
    if privacy.noise_std is not None:
        raise SottoError("privacy.noise_std is for experiment mode; a private run derives it from noise_multiplier")
    if not estimator_named(privacy.estimator).bounded:
        raise SottoError(
            f"privacy.estimator={privacy.estimator!r} has no bounded sensitivity: use fixed_denominator or "
            f"clipped_denominator (the true average is for mode 'none')"
        )
    if not clip_named(privacy.clipping).bounded:
        raise SottoError(
            f"privacy.clipping={privacy.clipping!r} bounds no user's update; use flat or per_layer, or mode 'none'"
        )
    if privacy.noise_multiplier is None and privacy.epsilon is None:
        raise SottoError("a private run needs privacy.noise_multiplier or privacy.epsilon")
    if privacy.noise_multiplier == 0:
        raise SottoError('privacy.noise_multiplier=0 must be above 0 in a private run; without noise use mode = "none"')
    if privacy.delta >= 1 / privacy.users and not privacy.allow_large_delta:
        raise SottoError(
            f"privacy.delta={privacy.delta:g} must be below 1/users = {1 / privacy.users:.2g}, or the guarantee allows "
            f"giving one person away; lower it, or say --allow-large-delta"
        )
    if privacy.weight_cap > 1 and privacy.total_weight == 0:
        raise SottoError(
            f"privacy.weight_cap={privacy.weight_cap:g} gives users unequal weights: declare privacy.total_weight (W), "
            f"a public constant"
        )
    accountant = accountant_of(privacy)
    sampler = _sampler_of(recipe)
    accounting.check(accountant, sampler.relation)
    # Kept, so that a run is judged to its end by the one it began with, whatever the default of a later version is.
    recipe = recipe.replace(privacy={"accountant": accountant})
    if before:
        _check_room(before, privacy, accountant)
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        # At z = 1: what a run costs depends on the noise alone, not on the clip or the model.
        shape = sampler.events(build_schedule(privacy.noise_schedule).stretches(recipe.run.rounds))
        found = accounting.calibrate(shape, privacy.epsilon, privacy.delta, accountant, before=before)
        recipe = recipe.replace(privacy={"noise_multiplier": found})
    return recipe


def _check_room(before: accounting.Spent, privacy: Privacy, accountant: str) -> None:
    """Refuse a budget that the vocabulary alone uses up. (A δ that it uses up is refused by the accountant.)"""
    words = accounting.epsilon(before, privacy.delta, accountant)
    if privacy.epsilon is not None and words >= privacy.epsilon:
        raise SottoError(
            f"privacy.epsilon={privacy.epsilon:g} is used up by the store's vocabulary, which cost "
            f"{accounting.rounded_up(words, 4)} at delta={privacy.delta:g}; raise it, or train on a store "
            f"with a cheaper or a public vocabulary"
        )


def _check_schedules(recipe: Recipe) -> None:
    """Refuse schedules that contradict the rest of the recipe."""
    privacy = recipe.privacy
    schedules = {"clip_schedule": privacy.clip_schedule, "noise_schedule": privacy.noise_schedule}
    for name, points in schedules.items():
        try:
            last = build_schedule(points).last_change
        except SottoError as error:
            raise SottoError(f"privacy.{name}: {error}") from None
        if points and last > recipe.run.rounds:
            raise SottoError(
                f"privacy.{name} changes at round {last}, and run.rounds={recipe.run.rounds}: what would be planned "
                f"is not what is done; end the schedule before, or train longer"
            )
    if privacy.clip_schedule and privacy.adaptive_quantile is not None:
        raise SottoError("privacy.clip_schedule and privacy.adaptive_quantile both move the clip norm; keep one")
    if privacy.clip_schedule and not clip_named(privacy.clipping).bounded and privacy.mode != "experiment":
        raise SottoError("privacy.clip_schedule has nothing to change: privacy.clipping='none'; remove one of them")
    if privacy.clip_path != "steps" and len(privacy.clip_schedule) < 2:
        raise SottoError(f"privacy.clip_path={privacy.clip_path!r} needs a clip_schedule of two pairs or more")
    if privacy.noise_schedule and privacy.mode == "none":
        raise SottoError("privacy.noise_schedule has no meaning in mode 'none', which adds no noise; remove it")
    if privacy.layer_clip_norms and not takes_layer_norms(clip_named(privacy.clipping)):
        raise SottoError(
            f"privacy.layer_clip_norms are for privacy.clipping='per_layer', not {privacy.clipping!r}; change one"
        )


def accountant_of(privacy: Privacy) -> str:
    if privacy.accountant == "auto":
        return accounting.DEFAULT_ACCOUNTANT
    return privacy.accountant


def build_mechanism(recipe: Recipe, layers: Sequence[str]) -> Mechanism:
    """What is private about a recipe, for a model of these layers."""
    privacy = recipe.privacy
    if privacy.layer_clip_norms and len(privacy.layer_clip_norms) != len(layers):
        raise SottoError(
            f"privacy.layer_clip_norms has {len(privacy.layer_clip_norms)} norms, and the model {len(layers)} layers: "
            f"{', '.join(layers)}"
        )
    experiment = privacy.mode == "experiment"
    if experiment and privacy.noise_multiplier and not estimator_named(privacy.estimator).bounded:
        raise SottoError("privacy.noise_multiplier needs an estimator of bounded sensitivity; give noise_std instead")
    layer_norms = privacy.layer_clip_norms or PerLayerClip.even(privacy.clip_norm, len(layers)).clip_norms
    rate, total = privacy.cohort / privacy.users, privacy.total_weight or float(privacy.users)
    return Mechanism(
        sampler=_sampler_of(recipe),
        clipping=build_clip(privacy.clipping, privacy.clip_norm, layer_norms, privacy.clip_weighted),
        estimator=build_estimator(privacy.estimator, rate * total, rate * (privacy.min_weight or total)),
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


def _sampler_of(recipe: Recipe) -> Sampler:
    privacy = recipe.privacy
    return build_sampler(
        privacy.sampling,
        cohort=privacy.cohort,
        users=privacy.users,
        seed=recipe.run.seed,
        hardened=privacy.randomness == "hardened",
    )
