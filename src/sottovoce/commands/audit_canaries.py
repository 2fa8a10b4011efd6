"""Audit a run by its canaries: how exposed their secrets are, and what can be told of who was in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import accounting
from sottovoce.accounting import NonPrivate, Spent
from sottovoce.audit.bounds import CONFIDENCE, best_one_run_bound, check_level
from sottovoce.audit.canaries import Registry, curve, expose
from sottovoce.audit.one_run import CanaryWatch, scores_of_model, toss
from sottovoce.audit.retrain import train_twin
from sottovoce.build.assembly import assemble
from sottovoce.commands.audit_rounds import refuse_own_code
from sottovoce.commands.evaluate import load_run
from sottovoce.commands.initial_model import find_start
from sottovoce.commands.insert_canaries import plan_canaries, read_registry, take_scores
from sottovoce.commands.stores import open_users
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import DamagedRun, SottoError
from sottovoce.models.contract import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.reporting.panels import COLOURS, Panel, Scale, Series, draw_panels
from sottovoce.reporting.panels import Point as Mark
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import read_ledger
from sottovoce.runs.payments import vocabulary_charges
from sottovoce.runs.record import json_number
from sottovoce.runs.secrets import Secrets

ITSELF = "the model itself: its canaries were planted when it was trained"
TWIN = (
    "a twin that was trained for this audit alone, by the same recipe on the same people, with canaries; nothing of it "
    "is kept, and to release anything of it would have to be charged as a second run"
)
NOTE = "lower bounds from attacks on made-up users; below the claim they prove nothing"
TWIN_PLANTS = ("audit.users=100", "audit.secrets=6")  # where the caller does not say

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Case:
    """A model with canaries in it, and what its owner knows of them."""

    of: str
    registry: Registry
    model: LanguageModel
    rounds: int
    spent: Spent
    present: np.ndarray | None = None  # None where the secrets were thrown away
    scores: np.ndarray | None = None


def audit_canaries(
    path: str | Path, beside: Sequence[str | Path] = (), *, settings: Sequence[str] = (), delta: float | None = None,
    confidence: float = CONFIDENCE, seed: int = 0, progress: Progress = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Rank the secrets that were planted in a run, and guess from scores which of its canary users were in.

    A run without canaries has a twin trained in memory, with those that `settings` name. Further runs with canaries
    are drawn `beside` it. What is found goes into the run's folder, for its owner alone.
    """
    run = RunFolder.open(path)
    recipe = Recipe.load(run.recipe_file)
    delta = recipe.privacy.delta if delta is None else delta
    check_level(delta, confidence)
    if recipe.audit.plants and settings:
        raise SottoError(f"{run.path} has canaries of its own: --set is for a twin of a run that has none")
    others = [_other(RunFolder.open(other)) for other in beside]
    _, vocabulary = load_run(run)
    if recipe.audit.plants:
        case = _itself(run)
    else:
        case = _twin(run, recipe.with_settings(settings or TWIN_PLANTS), seed, progress)
    exposures = expose(case.model, case.registry, vocabulary)
    claim = _epsilon(case.spent, delta, recipe.privacy.accountant)
    one_run = _one_run(case, vocabulary, delta, confidence)
    result = {
        "run": run.path.resolve().name,
        "weights": checkpoints.digest(run.load_weights()),
        "round": case.rounds,
        "of": case.of,
        "itself": recipe.audit.plants,
        "canaries": case.registry.summary(),
        "delta": delta,
        "confidence": confidence,
        "claimed": json_number(claim),
        "shown": one_run["shown"] if one_run else None,
        "contradicted": bool(one_run) and one_run["shown"] > claim,
        "one_run": one_run,
        "exposure": [
            {"text": one.text, "holders": one.holders, "bits": one.bits, "most": one.most, "rank": one.rank,
             "references": one.references, "whole_space": one.whole, "extracted": one.extracted}
            for one in exposures
        ],
        "curve": [asdict(point) for point in curve(exposures)],
        "beside": others,
        "note": NOTE,
    }  # fmt: skip
    run.save_audit("canaries", result, _figure(result))
    return result


def _itself(run: RunFolder) -> Case:
    ledger = read_ledger(run.ledger_file)
    registry = read_registry(run, ledger.lines[0])
    if registry is None:
        raise DamagedRun(f"the recipe of {run.path} plants canaries, and its ledger knows of none; start another run")
    rounds = run.read_statement()["rounds_done"]
    case = Case(ITSELF, registry, load_run(run)[0], rounds, ledger.spent)
    saved, _ = checkpoints.latest(run.checkpoints)
    if saved is None or saved.round != rounds or not run.secrets.exists():
        return case  # after a release nobody knows who was in
    present = toss(registry, Secrets.load_any(run.secrets))
    return replace(case, present=present, scores=take_scores(saved))


def _twin(run: RunFolder, recipe: Recipe, seed: int, progress: Progress) -> Case:
    store, _ = open_users(recipe, run)
    registry = plan_canaries(recipe, store)
    if registry is None:
        raise SottoError("nothing is to be planted: --set audit.users=100 or --set audit.secrets=6")
    assembly = assemble(recipe, store, before=vocabulary_charges(store))
    refuse_own_code(run, assembly)
    rounds = run.read_statement()["rounds_done"]
    secrets = Secrets.seeded(seed, "audit by canaries")
    present = toss(registry, secrets)
    watch = CanaryWatch.of(assembly, store, registry, present)
    played = itertools.count(1)
    start = find_start(assembly.recipe, store, assembly.model).model
    model = train_twin(
        assembly, start, watch.planted, rounds, secrets, lambda: progress(next(played), rounds), watch
    )  # fmt: skip
    spent = assembly.algorithm.mechanism.events(rounds)
    return Case(TWIN, registry, model, rounds, spent, present, watch.scores)


def _other(run: RunFolder) -> dict[str, Any]:
    """The curve of another run with canaries, for which nothing is trained."""
    registry = read_registry(run, read_ledger(run.ledger_file).lines[0])
    if registry is None or not registry.secrets:
        raise SottoError(f"{run.path} has no secrets planted; a run to be drawn beside has audit.secrets in its recipe")
    model, vocabulary = load_run(run)
    points = curve(expose(model, registry, vocabulary))
    epsilon = run.read_statement()["epsilon_training"]
    return {"run": run.path.resolve().name, "epsilon": epsilon, "curve": [asdict(point) for point in points]}


def _one_run(case: Case, vocabulary: Vocabulary, delta: float, confidence: float) -> dict[str, Any] | None:
    """Two attacks, between which the chance of an error is shared out."""
    if case.present is None or case.scores is None or not case.registry.users:
        return None
    each = 1 - (1 - confidence) / 2
    scores = {"rounds": case.scores, "model": scores_of_model(case.model, case.registry, vocabulary)}
    bounds = {name: best_one_run_bound(score, case.present, delta, each) for name, score in scores.items()}
    return {
        "canaries": len(case.registry.users),
        "shown": max(bound.epsilon for bound in bounds.values()),
        **{
            name: {"shown": bound.epsilon, "correct": bound.correct, "guesses": bound.guesses, "most": bound.most}
            for name, bound in bounds.items()
        },
    }


def _epsilon(spent: Spent, delta: float, accountant: str) -> float:
    """Of the rounds alone: canaries have no part in a private vocabulary."""
    if any(isinstance(event, NonPrivate) for event, _ in spent):
        return math.inf
    return accounting.epsilon(spent, delta, accountant)


def _figure(result: dict[str, Any]) -> bytes | None:
    """Exposure against the users who held a secret and, with other runs, against ε."""
    if not result["curve"]:
        return None
    runs = [(result["claimed"], result["curve"]), *((other["epsilon"], other["curve"]) for other in result["beside"])]
    bits = Scale("exposure in bits", percent=False)
    places = sorted({point["holders"] for _, points in runs for point in points})
    by_holders = [
        Series(f"ε = {_shown(epsilon)}", [_mark(point["holders"], point) for point in points], colour)
        for (epsilon, points), colour in zip(runs, itertools.cycle(COLOURS))
    ]
    panels = [Panel("", by_holders, "users who held a secret", places, scale=bits)]
    finite = sorted(((epsilon, points) for epsilon, points in runs if not isinstance(epsilon, str)), key=itemgetter(0))
    if len(finite) > 1:
        lines = {
            holders: [_mark(epsilon, one) for epsilon, points in finite for one in points if one["holders"] == holders]
            for holders in places
        }
        by_epsilon = [
            Series(f"held by {holders}", marks, colour)
            for (holders, marks), colour in zip(lines.items(), itertools.cycle(COLOURS))
        ]
        shown = [float(f"{epsilon:.3g}") for epsilon, _ in finite]
        panels.append(Panel("", [line for line in by_epsilon if line.points], "ε", shown, scale=bits))
    return draw_panels(panels)


def _mark(x: float, point: dict[str, Any]) -> Mark:
    return Mark(x, point["median"], point["least"], point["largest"])


def _shown(epsilon: float | str) -> str:
    return "∞" if isinstance(epsilon, str) else accounting.rounded_up(epsilon)
