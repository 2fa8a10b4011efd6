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
from sottovoce.commands.evaluate import load_run, load_vocabulary
from sottovoce.commands.retrain import Progress, no_progress, open_for_retraining
from sottovoce.errors import SottoError
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel
from sottovoce.models.generate import LENGTH, log_ratios
from sottovoce.recipe import SECTIONS, Recipe
from sottovoce.reporting.draw.audits import draw_tail
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets

NOTE = "an estimate from sampled texts, not a guarantee"
_SHARED = (
    "every pair was trained from the recipe with the same initial weights, cohorts and noise, and differs by the text "
    "of one user who took part; noise that is shared hides nothing"
)
_APART = (
    "the runs of a pair drew their own cohorts and their own noise, which sets them apart too: this is not the "
    "influence of a user alone"
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
        tail = self.tail
        return TailPair(
            pair=self.pair,
            texts_of=self.texts_of,
            texts=tail.texts,
            k=tail.k,
            log_start=tail.start,
            alpha=tail.alpha,
            constant=tail.constant,
            statistic=tail.statistic,
            p_value=tail.p_value,
            rejected=tail.rejected,
            epsilon=tail.epsilon(delta),
        )


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
    """
    run = RunFolder.open(path)
    statement = read_statement(run)
    delta = statement.delta if delta is None else delta
    check_texts(texts)
    check_delta(delta, texts)
    if bool(without) == bool(leave_out):
        raise SottoError(
            "a pair is a model with a user and one without: name runs that were trained without one (sotto audit tails "
            "RUN WITHOUT), or have them trained (sotto audit tails RUN --leave-out 5), one of the two"
        )
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
    key, specials = local_key(secrets.keys(1, "texts").sampling), load_vocabulary(run).specials
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
    everyone, _ = load_run(run)
    for number, other in enumerate(others, 1):
        yield other.path.resolve().name, everyone, load_run(other)[0]
        progress(number, len(others))


def _refuse_no_pair(run: RunFolder, other: RunFolder) -> None:
    """Another learning rate or seed would pass for the influence of a user."""
    if other.path.resolve() == run.path.resolve():
        raise SottoError(f"{other.path} is the run itself; name a run that was trained without one of its users")
    if load_vocabulary(run).fingerprint != load_vocabulary(other).fingerprint:
        raise SottoError(
            f"{run.path} and {other.path} have different vocabularies, and no text the same meaning in both; prepare "
            f"both stores with the same words (sotto prepare --vocabulary)"
        )
    mine, theirs = (Recipe.of(folder).to_dict() for folder in (run, other))
    for section in SECTIONS:
        some, others = mine.get(section, {}), theirs.get(section, {})
        for key in sorted({*some, *others} - {"store"}):
            here, there = some.get(key), others.get(key)
            if here != there:
                raise SottoError(
                    f"{section}.{key} is {here} in {run.path} and {there} in {other.path}; a pair differs by one "
                    f"user's text alone: train both by one recipe"
                )


def _figure(found: Sequence[PairTail], delta: float) -> bytes | None:
    """Figure 3 of the paper for the tail of the largest ε; None where all models are the same."""
    drawn = [one for one in found if math.isfinite(one.tail.alpha)]
    if not drawn:
        return None
    largest = max(drawn, key=lambda one: one.tail.epsilon(delta))
    return draw_tail(largest.log_ratios, largest.tail)
