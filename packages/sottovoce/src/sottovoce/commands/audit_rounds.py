"""Audit the rounds of a run: is their noise what is claimed?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from sottovoce.audit.bounds import check_level, check_trials, noise_at_most, trials_bound, trials_mu, would_notice
from sottovoce.audit.results import RoundsResult
from sottovoce.audit.rounds import RoundAudit
from sottovoce.build.assembly import assemble
from sottovoce.build.mechanism import build_mechanism
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.retrain import Progress, count_steps, no_progress, refuse_own_code
from sottovoce.commands.stores import with_public_text
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import last_typed
from sottovoce.models.contract import split
from sottovoce.models.lora import clip_parts
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

# A contradicted claim stops a release, and an exact test errs as often as its confidence allows.
CONFIDENCE = 0.999
NOTE = "noise and guesses of rounds of made-up users; what agrees with the claim does not prove it"


def audit_rounds(
    path: str | Path,
    *,
    rounds: int = 1000,
    delta: float | None = None,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    progress: Progress = no_progress,
) -> RoundsResult:
    """Play single rounds of a private run with and without a canary, and compare what shows with what is charged.

    The clip, weights, denominator and noise are the recipe's, the model is the run's, and all users are made up. The
    claim that is tested is that of one round for a user who surely takes part, in the round that has the least noise:
    that it is a Gaussian of multiplier z, and the ε that follows.

    Args:
        path: the run's folder.
        rounds: how many are played, with and without the canary.
        delta: at which ε is compared; the run's by default.
        confidence: of the bounds.
        seed: of what is drawn.
        progress: is called with the rounds played, and all of them.
    """
    run = RunFolder.open(path)
    recipe = Recipe.of(run)
    if recipe.privacy.mode != "private":
        raise SottoError(f"{run.path} claims nothing (privacy.mode={recipe.privacy.mode!r}); audit a private run")
    if recipe.run.algorithm == "els":
        raise SottoError(
            f"{run.path} samples examples (run.algorithm='els'), and this audit plays rounds of whole users; use "
            f"`sotto audit membership`"
        )
    if recipe.privacy.noise != "independent":
        noise = f"{run.path} has privacy.noise={recipe.privacy.noise!r}"
        raise SottoError(
            f"{noise}: its rounds are one release, and this audit plays each round alone; use "
            f"`sotto audit membership`, or audit a run with independent noise"
        )
    delta = recipe.privacy.delta if delta is None else delta
    check_trials(rounds, "rounds")
    check_level(delta, confidence)
    audit, accountant = _prepare(run, recipe)
    number, z = audit.start.round + 1, audit.multiplier
    scores, present, noise = audit.play(rounds, Secrets.seeded(seed, "audit of rounds"), count_steps(progress, rounds))
    each = 1 - (1 - confidence) / 3  # of three bounds, which hold together at the confidence
    bound, mu = trials_bound(scores, present, delta, each), trials_mu(scores, present, each)
    multiplier = min(noise_at_most(noise, each) / audit.largest_shift, 1 / mu if mu else math.inf)
    claim = accounting.epsilon([(audit.event(), 1)], delta, accountant)
    # More than z asks for where counts of bits are noised too.
    added, _ = audit.algorithm.mechanism.noise_std(number, audit.clip_norms)
    result = RoundsResult(
        run=run.path.resolve().name,
        weights=digest(run.load_weights()),
        rounds=rounds,
        round=number,
        claimed=claim,
        shown=bound.epsilon,
        delta=delta,
        confidence=confidence,
        contradicted=bound.epsilon > claim or multiplier < z,
        claimed_multiplier=z,
        shown_multiplier=multiplier,
        would_notice=would_notice(rounds, each) * min(1.0, z * audit.largest_shift / added if added else 1.0),
        most=bound.most,
        judged=bound.trials,
        correct=bound.correct,
        reach=audit.relative_norm,
        relation=getattr(audit.event(), "relation", None),
        note=NOTE,
    )
    run.save_audit("rounds", result.to_json(), None)
    return result


def _prepare(run: RunFolder, recipe: Recipe) -> tuple[RoundAudit, str]:
    """The audit of the round that has the least noise, and the run's accountant."""
    audited = ModelFolder.open(run.path)
    model, vocabulary = audited.model, audited.tokenizer
    # Sampling is replaced: here all users join. The store has room for one local step; the audit makes its own users.
    capacity = recipe.local.batch * recipe.local.unroll
    store = with_public_text(recipe, Store.from_users([[last_typed(vocabulary)]], vocabulary, capacity))
    assembly = assemble(recipe.replace(privacy={"sampling": "poisson"}, run={"devices": 1}), store)
    refuse_own_code(run, assembly)
    mechanism = build_mechanism(recipe, clip_parts(split(model)[0]))
    number = min(range(1, recipe.run.rounds + 1), key=mechanism.noise_schedule)
    algorithm = replace(assembly.algorithm, mechanism=mechanism)
    made = (algorithm, assembly.sum_updates, model, vocabulary)
    return RoundAudit.prepare(*made, round_number=number, public=store.public), assembly.accountant
