"""Audit a run: how far apart are models that were trained with and without a user, and do its rounds keep their ε?"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce import accounting
from sottovoce.audit.bounds import check_level, check_trials, noise_at_most, trials_bound, trials_mu, would_notice
from sottovoce.audit.retrain import choose_users, twins
from sottovoce.audit.rounds import set_stage
from sottovoce.audit.tails import LEVEL, Tail, check_delta, check_texts, fit_tail
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.build.mechanism import build_mechanism
from sottovoce.commands.evaluate import load_run, load_vocabulary
from sottovoce.commands.initial_model import find_start
from sottovoce.commands.stores import open_users, with_public_text
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel, layer_names, split
from sottovoce.models.generate import LENGTH, log_ratios
from sottovoce.recipe import SECTIONS, Recipe
from sottovoce.reporting.audit_figures import draw_tail
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import first_line
from sottovoce.runs.payments import vocabulary_charges
from sottovoce.runs.secrets import Secrets

# What contradicts a claim stops a release, and a test that is exact uses up the errors that it may make.
SURE = 0.999
SHOWN = "noise and guesses of rounds of made-up users; what agrees with the claim does not prove it"
NOTE = "an estimate from sampled texts, not a guarantee"
_SHARED = (
    "every pair was trained from the recipe with the same initial weights, cohorts and noise, and differs by the text "
    "of one user who took part; noise that is shared hides nothing"
)
_APART = (
    "the runs of a pair drew their own cohorts and their own noise, which sets them apart too: this is not the "
    "influence of a user alone"
)

Progress = Callable[[int, int], None]  # so many steps of so many are done
Pair = tuple[str, LanguageModel, LanguageModel]  # a name, the model of everybody, the model without a user


@dataclass(frozen=True)
class PairTail:
    """One direction of a pair: the tail of c(s) over texts that one of its two models wrote."""

    pair: str
    texts_of: str  # "with" or "without"
    tail: Tail
    log_ratios: np.ndarray

    def to_json(self, delta: float) -> dict[str, Any]:
        tail = self.tail
        return {
            "pair": self.pair,
            "texts_of": self.texts_of,
            "texts": tail.texts,
            "k": tail.k,
            "log_start": tail.start,
            "alpha": _number(tail.alpha),
            "constant": _number(tail.constant),
            "statistic": _number(tail.statistic),
            "p_value": _number(tail.p_value),
            "rejected": tail.rejected,
            "epsilon": tail.epsilon(delta),
        }


def audit_tails(
    path: str | Path, without: Sequence[str | Path] = (), *, leave_out: int = 0, texts: int = 30_000,
    delta: float | None = None, seed: int = 0, progress: Progress = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Estimate ε from the tails of c(s), and write what was found into the run's folder, for its owner alone.

    Compares the run with runs `without` a user each, or trains the recipe again, with everybody and without each of
    `leave_out` users.
    """
    run = RunFolder.open(path)
    statement = run.read_statement()
    delta = statement["delta"] if delta is None else delta
    check_texts(texts)
    check_delta(delta, texts)
    if bool(without) == bool(leave_out):
        raise SottoError(
            "a pair is a model with a user and one without: name runs that were trained without one (sotto audit tails "
            "RUN WITHOUT), or have them trained (sotto audit tails RUN --leave-out 5), one of the two"
        )
    rounds = statement["rounds_done"]
    found = fit_tails(run, without, leave_out=leave_out, texts=texts, seed=seed, progress=progress)
    result = {
        "run": run.path.resolve().name,
        "round": rounds,
        "epsilon": max(one.tail.epsilon(delta) for one in found),
        "delta": delta,
        "note": NOTE,
        "proved": {name: statement[name] for name in ("private", "epsilon", "delta")},
        "about": _SHARED if leave_out else _APART,
        "words": LENGTH,
        "level": LEVEL,
        "rejected": sum(one.tail.rejected for one in found),
        "pairs": [one.to_json(delta) for one in found],
    }
    run.save_audit("tails", result, _figure(found, delta))
    return result


def fit_tails(
    run: RunFolder, without: Sequence[str | Path] = (), *, leave_out: int = 0, texts: int, seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[PairTail]:  # fmt: skip
    """Both tails of every pair: of the run and others, or of its recipe trained with and without some users."""
    secrets = Secrets.seeded(seed, "audit by tails")
    rounds = run.read_statement()["rounds_done"]
    pairs = _leave_out(run, leave_out, rounds, secrets, progress) if leave_out else _compare(run, without, progress)
    key, specials = local_key(secrets.keys(1, "texts").sampling), load_vocabulary(run).specials
    found: list[PairTail] = []
    for number, (name, everybody, fewer) in enumerate(pairs):
        for way, (texts_of, writer, other) in enumerate((("with", everybody, fewer), ("without", fewer, everybody))):
            ratios = log_ratios(writer, other, specials, texts, jax.random.fold_in(key, 2 * number + way))
            found.append(PairTail(name, texts_of, fit_tail(ratios), ratios))
    return found


def audit_rounds(
    path: str | Path, *, rounds: int = 1000, delta: float | None = None, confidence: float = SURE, seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Play single rounds of a private run with and without a canary, and compare what shows with what is charged.

    The clip, weights, denominator and noise are the recipe's, the model is the run's, and all users are made up. What
    is put to the test is one round for somebody who surely takes part, the round that has the least noise: that it is a
    Gaussian of multiplier z, and the ε that follows.
    """
    run = RunFolder.open(path)
    recipe = Recipe.of(run)
    if recipe.privacy.mode != "private":
        raise SottoError(f"{run.path} claims nothing (privacy.mode={recipe.privacy.mode!r}); audit a private run")
    delta = recipe.privacy.delta if delta is None else delta
    check_trials(rounds, "rounds")
    check_level(delta, confidence)
    model, vocabulary = load_run(run)
    # Of the recipe, what a round does to whoever is in it. How a cohort is drawn is replaced: here everybody joins.
    store = with_public_text(recipe, Store.from_users([[vocabulary.size - 1]], vocabulary, _longest(recipe)))
    assembly = assemble(recipe.replace(privacy={"sampling": "poisson"}, run={"devices": 1}), store)
    refuse_own_code(run, assembly)
    mechanism = build_mechanism(recipe, layer_names(split(model)[0]))
    number = min(range(1, recipe.run.rounds + 1), key=mechanism.noise_schedule)
    stage = set_stage(
        dataclasses.replace(assembly.algorithm, mechanism=mechanism), assembly.sum_updates, model, vocabulary,
        round_number=number, public=store.public,
    )  # fmt: skip
    played = itertools.count(1)
    secrets = Secrets.seeded(seed, "audit of rounds")
    scores, present, noise = stage.play(rounds, secrets, lambda: progress(next(played), rounds))
    each = 1 - (1 - confidence) / 3  # of three bounds, which hold together at the confidence
    bound = trials_bound(scores, present, delta, each)
    multiplier = min(noise_at_most(noise, each) / stage.loudest, _inverse(trials_mu(scores, present, each)))
    claim = accounting.epsilon([(stage.event(), 1)], delta, assembly.accountant)
    z = stage.multiplier
    added, _ = mechanism.noise_std(number, stage.clip_norms)  # more than z asks for where counts of bits are noised too
    noticed = would_notice(rounds, each) * min(1.0, z * stage.loudest / added if added else 1.0)
    result = {
        "run": run.path.resolve().name,
        "weights": digest(run.load_weights()),
        "rounds": rounds,
        "round": number,
        "claimed": _number(claim),
        "shown": bound.epsilon,
        "delta": delta,
        "confidence": confidence,
        "contradicted": bound.epsilon > claim or multiplier < z,
        "claimed_multiplier": z,
        "shown_multiplier": multiplier,
        "would_notice": noticed,
        "most": bound.most,
        "judged": bound.trials,
        "correct": bound.correct,
        "reach": stage.reach,
        "relation": getattr(stage.event(), "relation", None),
        "note": SHOWN,
    }
    run.save_audit("rounds", result, None)
    return result


def _longest(recipe: Recipe) -> int:
    """Room for one local step at least: how long the users of a stage are is up to the stage."""
    return recipe.local.batch * recipe.local.unroll


def _compare(run: RunFolder, without: Sequence[str | Path], progress: Progress) -> Iterator[Pair]:
    others = [RunFolder.open(other) for other in without]
    for other in others:
        _refuse_no_pair(run, other)
    everybody, _ = load_run(run)
    for number, other in enumerate(others, 1):
        yield other.path.resolve().name, everybody, load_run(other)[0]
        progress(number, len(others))


def _refuse_no_pair(run: RunFolder, other: RunFolder) -> None:
    """Another learning rate or seed would pass for the influence of a user."""
    if other.path.resolve() == run.path.resolve():
        raise SottoError(f"{other.path} is the run itself; name a run that was trained without one of its users")
    if load_run(run)[1].fingerprint != load_run(other)[1].fingerprint:
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


def _leave_out(run: RunFolder, count: int, rounds: int, secrets: Secrets, progress: Progress) -> Iterator[Pair]:
    recipe = Recipe.of(run)
    store, _ = open_users(recipe, run)
    assembly = assemble(recipe, store, before=vocabulary_charges(store))
    refuse_own_code(run, assembly)
    start = find_start(assembly.recipe, store, assembly.model)
    rows = choose_users(assembly, store, count, rounds, secrets)
    played = itertools.count(1)
    models = twins(
        assembly, start.model, store, rows, rounds, secrets, lambda: progress(next(played), (count + 1) * rounds)
    )
    everybody = next(models)
    for number, fewer in enumerate(models, 1):
        yield f"one user out, {number}", everybody, fewer


def refuse_own_code(run: RunFolder, assembly: Assembly) -> None:
    """A twin cannot be trained of a model or an objective that no recipe describes."""
    code = first_line(run.ledger_file).get("code")
    if code != assembly.code:
        raise SottoError(f"{run.path} was trained with {code}, which only Python knows; compare two runs of it instead")


def _figure(found: Sequence[PairTail], delta: float) -> bytes | None:
    """Figure 3 of the paper for the tail of the largest ε; nothing where all models are the same."""
    drawn = [one for one in found if math.isfinite(one.tail.alpha)]
    if not drawn:
        return None
    largest = max(drawn, key=lambda one: one.tail.epsilon(delta))
    return draw_tail(largest.log_ratios, largest.tail)


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf


def _number(value: float) -> float | str | None:
    return value if math.isfinite(value) else None if math.isnan(value) else "infinity"
