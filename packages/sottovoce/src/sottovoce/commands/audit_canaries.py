"""Audit a run by its canaries: how exposed their secrets are, and whether their membership can be guessed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sottovoce.audit.bounds import CONFIDENCE, best_one_run_bound, check_level
from sottovoce.audit.canaries import curve, expose
from sottovoce.audit.one_run import CanaryScorer, draw_membership, scores_of_model, scores_of_weights
from sottovoce.audit.registry import Registry
from sottovoce.audit.results import CanariesResult, Guesses, OneRunResult, OtherCurve
from sottovoce.audit.trade_off import curve_bound
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.commands.initial_model import find_start
from sottovoce.commands.insert_canaries import choose_canaries, read_registry, saved_canary_scores
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.retrain import Progress, no_progress, open_for_retraining, refuse_own_code
from sottovoce.commands.stores import with_public_text
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer, last_typed
from sottovoce.models.contract import LanguageModel
from sottovoce.reporting.draw.audits import draw_exposure
from sottovoce.reporting.statement import read_statement
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import read_ledger
from sottovoce.runs.secrets import Salt, Secrets
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import NonPrivate, Spent
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.mechanism import accountant_of
from sottovoce_evidence.recipe import Recipe

ITSELF = "the model itself: its canaries were inserted when it was trained"
COPY = (
    "a copy that was trained for this audit alone, by the same recipe on the same people; nothing of it is kept, and "
    "to release anything of it would have to be charged as a second run"
)
NOTE = "lower bounds from attacks on made-up users; below the claim they prove nothing"
DEFAULT_CANARIES = ("audit.users=100", "audit.secrets=6")  # of a copy, where the caller does not say


@dataclass(frozen=True)
class AuditedModel:
    """A model with canaries in it, and what its owner knows of them."""

    of: str
    registry: Registry
    model: LanguageModel
    rounds: int
    spent: Spent
    present: np.ndarray | None = None  # None where the secrets were erased
    scores: np.ndarray | None = None
    training: Training | None = None  # None where what it started from is not known any more


@dataclass(frozen=True)
class Training:
    """What is public of how a model was trained."""

    assembly: Assembly
    start: LanguageModel


@dataclass(frozen=True)
class Claim:
    """What is put to the test, and how surely."""

    spent: Spent
    delta: float
    accountant: str
    confidence: float

    @property
    def epsilon(self) -> float:
        """ε of the rounds alone: canaries have no part in a private vocabulary."""
        if any(isinstance(event, NonPrivate) for event, _ in self.spent):
            return math.inf
        return accounting.epsilon(self.spent, self.delta, self.accountant)


def audit_canaries(
    path: str | Path,
    others: Sequence[str | Path] = (),
    *,
    settings: Sequence[str] = (),
    delta: float | None = None,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    progress: Progress = no_progress,
) -> CanariesResult:
    """Rank the secrets that were inserted into a run, and guess from scores which of its canary users were in.

    For a run without canaries, a copy of it is trained in memory, with those that `settings` name. The figure shows
    `others`, runs with canaries, too. The result goes into the run's folder, for its owner alone.

    Args:
        path: the run's folder.
        others: runs with canaries to draw in the same figure.
        settings: of the canaries of a copy, as `section.key=value`.
        delta: at which ε is compared; the run's by default.
        confidence: of the bounds.
        seed: of the copy.
        progress: is called after every round of the copy.
    """
    run = RunFolder.open(path)
    recipe = Recipe.of(run)
    delta = recipe.privacy.delta if delta is None else delta
    check_level(delta, confidence)
    if recipe.audit.plants and settings:
        raise SottoError(f"{run.path} has canaries of its own: --set is for a copy of a run that has none")
    curves = tuple(_other_curve(RunFolder.open(other)) for other in others)
    folder = ModelFolder.open(run.path)
    vocabulary, _ = folder.tokenizer, folder.weights  # a damaged file is found before a copy is trained
    if recipe.audit.plants:
        audited = _open_model(run)
    else:
        audited = _train_copy(run, recipe.with_settings(settings or DEFAULT_CANARIES), seed, progress)
    exposures = expose(audited.model, audited.registry, vocabulary)
    claim = Claim(audited.spent, delta, accountant_of(recipe.privacy), confidence)
    one_run = _one_run(audited, vocabulary, claim)
    result = CanariesResult(
        run=run.path.resolve().name,
        weights=checkpoints.digest(run.load_weights()),
        round=audited.rounds,
        of=audited.of,
        itself=recipe.audit.plants,
        canaries=audited.registry.summary(),
        delta=delta,
        confidence=confidence,
        claimed=claim.epsilon,
        shown=one_run.shown if one_run else math.nan,
        contradicted=one_run is not None and (one_run.shown > claim.epsilon or one_run.noise < 1),
        one_run=one_run,
        exposure=tuple(exposures),
        curve=curve(exposures),
        beside=curves,
        note=NOTE,
    )
    run.save_audit("canaries", result.to_json(), draw_exposure(result))
    return result


def _open_model(run: RunFolder) -> AuditedModel:
    """The model of a run that has canaries."""
    ledger = read_ledger(run.ledger_file)
    registry = read_registry(run, ledger.lines[0])
    if registry is None:
        raise DamagedRun(f"the recipe of {run.path} has canaries, and its ledger knows of none; start another run")
    rounds = read_statement(run).rounds_done
    audited = AuditedModel(ITSELF, registry, ModelFolder.open(run.path).model, rounds, ledger.spent)
    saved = checkpoints.newest(run.checkpoints)
    if saved is None or saved.round != rounds or not run.secrets.exists():
        return audited  # after a release the coins are erased
    present = draw_membership(registry, Salt.load(run.secrets))
    return replace(audited, present=present, scores=saved_canary_scores(saved), training=_training_of(run))


def _training_of(run: RunFolder) -> Training | None:
    """The algorithm of a run and the model it started from, if that is still there. No user's text is read."""
    recipe, vocabulary = Recipe.of(run), ModelFolder.open(run.path).tokenizer
    capacity = recipe.local.batch * recipe.local.unroll
    try:
        store = with_public_text(recipe, Store.from_users([[last_typed(vocabulary)]], vocabulary, capacity))
        assembly = assemble(recipe.replace(run={"devices": 1}), store)
        refuse_own_code(run, assembly)
        return Training(assembly, find_start(assembly.recipe, store, assembly.model, again=True).model)
    except SottoError:  # a base that was moved, or code that only Python knows
        return None


def _train_copy(run: RunFolder, recipe: Recipe, seed: int, progress: Progress) -> AuditedModel:
    """A copy of a run that has no canaries, trained with some."""
    training = open_for_retraining(run, recipe, progress=progress)
    registry = choose_canaries(recipe, training.store)
    if registry is None:
        raise SottoError("no canaries are to be inserted: --set audit.users=100 or --set audit.secrets=6")
    secrets = Secrets.seeded(seed, "audit by canaries")
    present = draw_membership(registry, secrets)
    scorer = CanaryScorer.of(training.assembly, training.store, registry, present)
    model = replace(training, store=scorer.inserted).train(secrets, scorer)
    spent = training.assembly.algorithm.mechanism.events(training.rounds)
    made = Training(training.assembly, training.start)
    return AuditedModel(COPY, registry, model, training.rounds, spent, present, scorer.scores, made)


def _other_curve(run: RunFolder) -> OtherCurve:
    """The exposure curve of another run with canaries; nothing is trained for it."""
    registry = read_registry(run, read_ledger(run.ledger_file).lines[0])
    if registry is None or not registry.secrets:
        raise SottoError(f"{run.path} has no secrets inserted; name runs that have audit.secrets in their recipes")
    other = ModelFolder.open(run.path)
    epsilon = read_statement(run).epsilon_training
    points = curve(expose(other.model, registry, other.tokenizer))
    return OtherCurve(run.path.resolve().name, math.inf if epsilon is None else epsilon, points)


def _one_run(audited: AuditedModel, vocabulary: Tokenizer, claim: Claim) -> OneRunResult | None:
    """Two or three attacks and two bounds of each, which share the chance of an error."""
    if audited.present is None or audited.scores is None or not audited.registry.users:
        return None
    made, model, registry = audited.training, audited.model, audited.registry
    scores = [audited.scores, scores_of_model(model, registry, vocabulary, made.start if made else None)]
    if made is not None:
        scores.append(scores_of_weights(made.assembly, made.start, model, registry, vocabulary))
    each = replace(claim, confidence=1 - (1 - claim.confidence) / (2 * len(scores)))
    found = [_guesses(some, audited.present, each) for some in scores]
    rounds, of_model, weights = found if len(found) == 3 else (*found, None)
    return OneRunResult(len(registry.users), max(one.shown for one in found), rounds, of_model, weights)


def _guesses(scores: np.ndarray, present: np.ndarray, claim: Claim) -> Guesses:
    bound = best_one_run_bound(scores, present, claim.delta, claim.confidence)
    found = Guesses(bound.epsilon, bound.correct, bound.guesses, bound.most, noise=math.nan, by_curve=math.nan)
    if not math.isfinite(claim.epsilon):
        return found  # there is no curve to refute
    curve = curve_bound(scores, present, claim.spent, claim.delta, claim.accountant, claim.confidence)
    return replace(found, noise=curve.noise, by_curve=curve.epsilon)
