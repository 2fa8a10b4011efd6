"""The claims of Schultz 2019, at the printed η and at the one chosen here.

Settings are compared by the best cross-entropy of their rounds, as in the paper's Table 1; less is better.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

from sottovoce.papers.engine.claims import (
    FAILS,
    HOLDS,
    OPEN,
    Claims,
    Estimate,
    Evidence,
    Finding,
    Metric,
    algorithm_of,
    all_of,
)
from sottovoce.papers.engine.results import Outcome, value_at
from sottovoce.papers.engine.trial import Trial
from sottovoce.papers.schultz2019.tables import table_2_rows
from sottovoce.papers.schultz2019.trials import (
    PRINTED,
    TABLE_2_ROUNDS,
    TUNED,
    all_settings,
    both,
    clipped,
    noised,
    setting,
)

DIVERGED = 700.0  # nats: a mean loss from here on has no perplexity


def _loss(outcome: Outcome, at: int | None) -> float:
    best = outcome.best("loss")
    if best is None or (at is not None and outcome.has_diverged(outcome.first + at)):
        return DIVERGED
    return best[1] if at is None else value_at(outcome.measured("loss"), outcome.first + at)


def _kind(outcome: Outcome) -> str:
    """Noise that destroys a model spreads its losses over whole nats, and η changes how far a run comes."""
    if outcome.algorithm == "central":
        return algorithm_of(outcome)
    rate, sigma = outcome.recipe["local"]["learning_rate"], outcome.recipe["privacy"]["noise_std"]
    return f"η = {rate:g}" + (f" with σ = {sigma:g}" if sigma else "")


METRIC = Metric("Best cross-entropy of a run in nats, less is better", _loss, _kind)


def _name(trial: Trial) -> str:
    return trial.label.removeprefix("DP-FedAvg, ")


CLAIMS = Claims()
BY_RATE = Claims()  # each checked at the printed η and at the one chosen here


@CLAIMS.add("accounting", "The printed ε of Table 2 are for 20 rounds", "Table 2")
def _accounting(evidence: Evidence) -> Finding:
    """the tool the paper names gives every printed digit"""
    rows = table_2_rows()
    same = [
        sum(f"{row[column]:.2f}" == f"{row['printed']:.2f}" for row in rows)
        for column in ("tool_of_2019", "tool_of_2019_2000_rounds")
    ]
    text = f"{same[0]} of {len(rows)} for {TABLE_2_ROUNDS} rounds, {same[1]} for 2,000"
    return Finding(text, HOLDS if same[0] == len(rows) else FAILS)


@BY_RATE.add("federated", "Federated training is no worse than central training", "section 4.4")
def _federated(evidence: Evidence, rate: float) -> Finding:
    """FedAvg and DP-FedAvg, neither private, reach at most central training's loss"""
    central, federated = setting("Central", rate=rate), [setting(way, rate=rate) for way in ("FedAvg", "DP-FedAvg")]
    gaps = [evidence.minus(trial, central) for trial in federated]
    text = f"FedAvg {gaps[0]}, DP-FedAvg {gaps[1]}, against central training"
    return Finding(text, all_of([gap.at_most(0.0) for gap in gaps]))


@BY_RATE.add("all but one", "All but one model are better than central training", "section 4.4, Table 1")
def _all_but_one(evidence: Evidence, rate: float) -> Finding:
    """10 of 11 have a lower loss"""
    central, others = setting("Central", rate=rate), [t for t in all_settings(rate) if not t.is_central]
    gaps = {_name(trial): evidence.minus(trial, central) for trial in others}
    better = [name for name, gap in gaps.items() if gap.at_most(0.0) == HOLDS]
    unsure = [name for name, gap in gaps.items() if gap.at_most(0.0) == OPEN]
    best = min(gaps, key=lambda name: gaps[name].value)
    text = (
        f"{len(better)} of {len(gaps)} are better than central training, {len(unsure)} cannot be told; the best, "
        f"{best}: {gaps[best]}"
    )
    wanted = len(gaps) - 1
    return Finding(text, HOLDS if len(better) >= wanted else OPEN if len(better) + len(unsure) >= wanted else FAILS)


@BY_RATE.add("random cohorts", "A random number of clients does slightly worse than a fixed one", "section 5, Figure 2")
def _random_cohorts(evidence: Evidence, rate: float) -> Finding:
    """DP-FedAvg without privacy has a loss at least FedAvg's"""
    fixed, random = setting("FedAvg", rate=rate), setting("DP-FedAvg", rate=rate)
    gap = evidence.minus(random, fixed)
    return Finding(f"random cohorts cost {gap}", gap.at_least(0.0))


def _best_private(evidence: Evidence, rate: float) -> tuple[Trial, Estimate]:
    plain, private = setting("DP-FedAvg", rate=rate), both(rate)
    return min(((trial, evidence.minus(trial, plain)) for trial in private), key=lambda pair: pair[1].value)


@BY_RATE.add("comparable", "The private model is as good as the one that is not", "section 4.4")
def _comparable(evidence: Evidence, rate: float) -> Finding:
    """the best of three clipped and noised models is at most 0.05 above DP-FedAvg"""
    trial, gap = _best_private(evidence, rate)
    return Finding(f"the best, {_name(trial)}: {gap} against none of it", gap.at_most(0.05))


@BY_RATE.add("regularises", "The parts that give privacy act as regularisation", "sections 5 and 6")
def _regularises(evidence: Evidence, rate: float) -> Finding:
    """the best of three clipped and noised models is better than DP-FedAvg"""
    trial, gap = _best_private(evidence, rate)
    return Finding(f"the best, {_name(trial)}: {gap} against none of it", gap.below(0.0))


def _clipped_share(run: Outcome) -> float:
    """Of the updates around the early mark."""
    return run.clipped_share[0][1] if run.clipped_share else 0.0


@BY_RATE.add("slower", "The tighter the clip, the slower the convergence", "section 5, Figures 3 and 6")
def _slower(evidence: Evidence, rate: float) -> Finding:
    """early in training, S = 5 is behind S = 10 and that behind S = 20"""
    trials = clipped(rate)
    early = evidence.size.marks[0]
    gaps = [evidence.minus(tight, loose, early) for tight, loose in pairwise(trials)]
    cut = ", ".join(f"{evidence.mean(trial, _clipped_share).value:.0%}" for trial in trials)
    text = f"at round {early}: S = 5 against 10 {gaps[0]}, 10 against 20 {gaps[1]}; clipped {cut} of the updates"
    return Finding(text, all_of([gap.at_least(0.0) for gap in gaps]))


def _worse_later(run: Outcome) -> float:
    """How far a run ends above its best."""
    return _loss(run, run.rounds) - _loss(run, None)


@BY_RATE.add("loose clip", "Clipping at S = 20 overfits", "section 5, Figure 3")
def _loose_overfits(evidence: Evidence, rate: float) -> Finding:
    """it ends at least 0.05 above its best"""
    trial = setting("DP-FedAvg", 20.0, None, rate)
    rise = evidence.mean(trial, _worse_later)
    return Finding(f"it ends {rise:.2f} above its best", rise.at_least(0.05))


def _best_round(run: Outcome) -> float:
    """A run that diverged at once was best before it began."""
    best = run.best("loss")
    return 0 if best is None else best[0]


@BY_RATE.add("noise", "More noise converges sooner and ends worse", "section 5, Figures 3 and 5")
def _noise_hurts(evidence: Evidence, rate: float) -> Finding:
    """noise for S = 20 is at least 0.1 behind S = 5 and has its best round earlier"""
    trials = noised(rate)
    gap = evidence.minus(trials[-1], trials[0])
    quiet, *_, loud = [evidence.mean(trial, _best_round) for trial in trials]
    text = f"noise for S = 20 costs {gap} against S = 5; best in round {loud:.1f} against {quiet:.1f}"
    return Finding(text, all_of([gap.at_least(0.1), (loud - quiet).below(0.0)]))


@BY_RATE.add("noise helps", "Noise aids generalisation", "section 5")
def _noise_is_free(evidence: Evidence, rate: float) -> Finding:
    """noise for S = 5 has a loss at most DP-FedAvg's"""
    plain, quiet = setting("DP-FedAvg", rate=rate), noised(rate)[0]
    gap = evidence.minus(quiet, plain)
    return Finding(f"noise for S = 5 costs {gap}", gap.at_most(0.0))


@BY_RATE.add("parts", "At S = 10 clipping alone does best of the private parts", "section 5, Figure 7")
def _parts(evidence: Evidence, rate: float) -> Finding:
    """noise alone and both together have a loss at least that of clipping alone"""
    clip, *others = [setting("DP-FedAvg", c, n, rate) for c, n in ((10.0, None), (None, 10.0), (10.0, 10.0))]
    gaps = [evidence.minus(trial, clip) for trial in others]
    text = f"noise alone {gaps[0]}, both {gaps[1]}, against clipping alone"
    return Finding(text, all_of([gap.at_least(0.0) for gap in gaps]))


@BY_RATE.add("best of all", "Clipping at S = 10 is the best of all twelve", "Table 1")
def _best_of_all(evidence: Evidence, rate: float) -> Finding:
    """no other has a lower loss"""
    trials = all_settings(rate)
    wanted = setting("DP-FedAvg", 10.0, None, rate)
    gaps = [(evidence.minus(trial, wanted), _name(trial)) for trial in trials if trial.name != wanted.name]
    least, name = min(gaps, key=lambda pair: pair[0].value)
    return Finding(f"the best other, {name}: {least}", all_of([gap.at_least(0.0) for gap, _ in gaps]))


@BY_RATE.add("central stops", "Central training fits in its first round and hardly improves", "section 5, Figure 2")
def _central_stops(evidence: Evidence, rate: float) -> Finding:
    """it gains at most 0.1 after round 1"""
    trial = setting("Central", rate=rate)
    gain = evidence.mean(trial, lambda run: _loss(run, 1) - _loss(run, None))
    return Finding(f"from round 1 on it gains {gain:.2f}", gain.at_most(0.1))


def _on_clients(run: Outcome) -> float:
    """The clients' loss in the last round; not a number where it was not finite."""
    curve = run.measured("local loss")
    return curve[-1][1] if curve and curve[-1][0] == run.first + run.rounds else math.nan


@BY_RATE.add("clients", "Clients have a lower loss before averaging than the averaged model after it", "section 5")
def _clients(evidence: Evidence, rate: float) -> Finding:
    """on their own text while they train, against held-out users"""
    trial = setting("FedAvg", rate=rate)
    clients, averaged = evidence.mean(trial, _on_clients), evidence.mean(trial, lambda run: _loss(run, run.rounds))
    gap = evidence.mean(trial, lambda run: _on_clients(run) - _loss(run, run.rounds))  # of a seed: they vary together
    text = (
        f"{clients:.2f} on the clients, {averaged:.2f} on held-out users after averaging, last round of FedAvg: "
        f"{gap:+.3f}"
    )
    return Finding(text, gap.below(0.0))


for rate in (PRINTED, TUNED):
    for each in BY_RATE:
        name, text = f"{each.name}, η = {rate:g}", f"{each.text}; at η = {rate:g}"
        CLAIMS.append(replace(each, name=name, text=text, check=partial(each.check, rate=rate)))
