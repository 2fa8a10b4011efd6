"""Audit a run by tails: how far apart are models that were trained with and without a user?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from sottovoce.audit.results import Proved, TailPair, TailsResult
from sottovoce.audit.retrain import choose_users, train_without
from sottovoce.audit.tails import LEVEL, Tail, check_delta, check_texts, fit_tail
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.retrain import Progress, no_progress, open_for_retraining
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel
from sottovoce.models.generate import LENGTH, log_ratios
from sottovoce.reporting.draw.audits import draw_tail
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import SECTIONS, Recipe

NOTE = "an estimate from sampled texts, not a guarantee"
_SHARED = (
    "both models of a pair have the same initial weights, cohorts and noise, and differ by the text of one user who "
    "took part; shared noise hides nothing"
)
_APART = (
    "the runs of a pair drew their own cohorts and their own noise: they differ by more than the influence of a user"
)

Pair = tuple[str, LanguageModel, LanguageModel]  # a name, the model of all users, the model without one


@dataclass(frozen=True)
class PairTail:
    """One direction of a pair: the tail of c(s) over texts that one of its two models wrote."""

    pair: str
    texts_of: str  # "with" or "without"
    tail: Tail
    log_ratios: np.ndarray

    def summary(self, delta: float) -> TailPair:
        tail, names = self.tail, ("texts", "k", "alpha", "constant", "statistic", "p_value", "rejected")
        figures = {name: getattr(tail, name) for name in names}
        return TailPair(self.pair, self.texts_of, **figures, log_start=tail.start, epsilon=tail.epsilon(delta))


def audit_tails(
    path: str | Path,
    without: Sequence[str | Path] = (),
    *,
    leave_out: int = 0,
    texts: int = 30_000,
    delta: float | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> TailsResult:
    """Estimate ε from the tails of c(s), and write the result into the run's folder, for its owner alone.

    Compares the run with runs `without` a user each, or trains the recipe again, with all users and without each of
    `leave_out` users.

    Args:
        path: the run's folder.
        without: runs of the same recipe, each trained without one user.
        leave_out: how many users are left out, one at a time, where runs are trained here.
        texts: how many texts c(s) is computed on.
        delta: at which ε is estimated; the run's by default.
        seed: of texts and of runs that are trained here.
        progress: is called with the steps done, and all of them.
    """
    run = RunFolder.open(path)
    statement = read_statement(run)
    delta = statement.delta if delta is None else delta
    check_texts(texts)
    check_delta(delta, texts)
    if bool(without) == bool(leave_out):
        raise SottoError("name runs that were trained without a user, or train them with --leave-out 5: one of the two")
    found = fit_tails(run, without, leave_out=leave_out, texts=texts, seed=seed, progress=progress)
    result = TailsResult(
        run=run.path.resolve().name,
        round=statement.rounds_done,
        epsilon=max(one.tail.epsilon(delta) for one in found),
        delta=delta,
        note=NOTE,
        proved=Proved(statement.private, statement.epsilon, statement.delta),
        about=_SHARED if leave_out else _APART,
        words=LENGTH,
        level=LEVEL,
        rejected=sum(one.tail.rejected for one in found),
        pairs=tuple(one.summary(delta) for one in found),
    )
    run.save_audit("tails", result.to_json(), _figure(found, delta))
    return result


def fit_tails(
    run: RunFolder,
    without: Sequence[str | Path] = (),
    *,
    leave_out: int = 0,
    texts: int,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[PairTail]:
    """Both tails of every pair: of the run and others, or of its recipe trained with and without some users."""
    secrets = Secrets.seeded(seed, "audit by tails")
    pairs = _leave_out(run, leave_out, secrets, progress) if leave_out else _compare(run, without, progress)
    key, specials = local_key(secrets.lasting_key("texts")), ModelFolder.open(run.path).tokenizer.specials
    found: list[PairTail] = []
    for number, (name, everyone, fewer) in enumerate(pairs):
        for way, (texts_of, writer, other) in enumerate((("with", everyone, fewer), ("without", fewer, everyone))):
            ratios = log_ratios(writer, other, specials, texts, jax.random.fold_in(key, 2 * number + way))
            found.append(PairTail(name, texts_of, fit_tail(ratios), ratios))
    return found


def _leave_out(run: RunFolder, count: int, secrets: Secrets, progress: Progress) -> Iterator[Pair]:
    training = open_for_retraining(run, Recipe.of(run), models=count + 1, progress=progress)
    models = train_without(training, choose_users(training, count, secrets), secrets)
    everyone = next(models)
    for number, fewer in enumerate(models, 1):
        yield f"one user out, {number}", everyone, fewer


def _compare(run: RunFolder, without: Sequence[str | Path], progress: Progress) -> Iterator[Pair]:
    others = [RunFolder.open(other) for other in without]
    for other in others:
        _refuse_no_pair(run, other)
    everyone = ModelFolder.open(run.path).model
    for number, other in enumerate(others, 1):
        yield other.path.resolve().name, everyone, ModelFolder.open(other.path).model
        progress(number, len(others))


def _refuse_no_pair(run: RunFolder, other: RunFolder) -> None:
    """Another learning rate or seed would pass for the influence of a user."""
    if other.path.resolve() == run.path.resolve():
        raise SottoError(f"{other.path} is the run itself; name a run that was trained without one of its users")
    if ModelFolder.open(run.path).tokenizer.fingerprint != ModelFolder.open(other.path).tokenizer.fingerprint:
        both = f"{run.path} and {other.path}"
        raise SottoError(f"{both} have different vocabularies; prepare both stores with one --vocabulary")
    recipes = [Recipe.of(folder).to_dict() for folder in (run, other)]
    for section in SECTIONS:
        for key in sorted({key for recipe in recipes for key in recipe[section]} - {"store"}):
            here, there = (recipe[section].get(key) for recipe in recipes)
            if here != there:
                values = f"{section}.{key} is {here} in {run.path} and {there} in {other.path}"
                raise SottoError(f"{values}; a pair differs by one user's text alone: train both by one recipe")


def _figure(found: Sequence[PairTail], delta: float) -> bytes | None:
    """Figure 3 of the paper for the tail of the largest ε; None where all models are the same."""
    drawn = [one for one in found if math.isfinite(one.tail.alpha)]
    largest = max(drawn, key=lambda one: one.tail.epsilon(delta), default=None)
    return None if largest is None else draw_tail(largest.log_ratios, largest.tail)
