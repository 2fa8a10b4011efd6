"""The claims of Popov et al. 2018.

Settings are compared by the logarithm of their average perplexity over both texts; less is better. The pre-trained
model is given: margins are of the seeds that start from it.
"""

from __future__ import annotations

import math

from sottovoce.papers.engine.claims import (
    FAILS,
    HOLDS,
    NO_SPREAD,
    NOT_RUN,
    OPEN,
    Claims,
    Estimate,
    Evidence,
    Finding,
    Metric,
    all_of,
)
from sottovoce.papers.engine.results import Figure, Outcome, value_at
from sottovoce.papers.engine.trial import Trial
from sottovoce.papers.popov2018.measures import USERS
from sottovoce.papers.popov2018.tables import by_gigabytes, by_seed, pairs_of, tails_by_seed
from sottovoce.papers.popov2018.trials import (
    PTB_AVERAGED,
    PTB_GIGABYTES,
    SHARES,
    TABLE_4,
    distillation,
    forgetful,
    node,
    one_round,
    pretrained,
    rehearsed,
)

DIVERGED = 700.0  # nats


def _read(outcome: Outcome, at: int | None) -> float:
    perplexity = outcome.facts.get("average_perplexity", outcome.evaluation.perplexity)
    return DIVERGED if perplexity in (None, math.inf) else math.log(perplexity)


def _kind(outcome: Outcome) -> str:
    """A node reads one long text, devices many short ones, and transfer learning takes few steps on the server."""
    return KINDS.get(outcome.name.partition("-")[0], "pre-training")


KINDS = {
    "node": "one node",
    "averaging": "averaging",
    "transfer": "transfer learning",
    "ptb": "the Penn Treebank",
}
METRIC = Metric(
    "ln of the average perplexity of both texts at the end of a run, less is better; the initial model is one for all "
    "seeds, and adds nothing to a margin",
    _read,
    _kind,
    decimals=3,
)


def _measure(text: str, measure: str) -> Figure:
    """Infinite where a run diverged."""

    def value(outcome: Outcome) -> float:
        found = outcome.facts[text][measure]
        return math.inf if found is None else found

    return value


def _times(evidence: Evidence, one: Trial, other: Trial, text: str) -> Estimate:
    """How many times another's perplexity on a text one setting has."""
    mine, theirs = (evidence.mean(trial, _measure(text, "perplexity")) for trial in (one, other))
    return mine / theirs


def _points(evidence: Evidence, one: Trial, other: Trial, text: str) -> Estimate:
    """Of keystroke saving, more than another."""
    mine, theirs = (evidence.mean(trial, _measure(text, "keystroke_saving")) for trial in (one, other))
    return 100 * (mine - theirs)


def _when(holds: bool) -> str:
    return HOLDS if holds else FAILS


def _nodes(evidence: Evidence, kind: str) -> list[Trial]:
    return [node(evidence.size, kind, share) for share in SHARES]


CLAIMS = Claims()


@CLAIMS.add("rehearsal", "Random rehearsal does better than learning without forgetting", "Table 1")
def _rehearsal(evidence: Evidence) -> Finding:
    """a lower average perplexity at every λ"""
    ours, theirs = _nodes(evidence, "rehearsal"), _nodes(evidence, "without_forgetting")
    gaps = [evidence.minus(one, other) for one, other in zip(ours, theirs, strict=True)]
    text = ", ".join(f"λ = {share:g}: {gap}" for share, gap in zip(SHARES, gaps, strict=True))
    return Finding(text, all_of([gap.at_most(0.0) for gap in gaps]))


@CLAIMS.add("half", "Rehearsal is best with λ = 1/2", "Table 1, section 2.5")
def _half(evidence: Evidence) -> Finding:
    """a lower average perplexity than with 1/4 and 3/4"""
    trials = _nodes(evidence, "rehearsal")
    gaps = [evidence.minus(trials[1], other) for other in (trials[0], trials[2])]
    return Finding(f"against λ = 0.25 {gaps[0]}, 0.75 {gaps[1]}", all_of([gap.at_most(0.0) for gap in gaps]))


@CLAIMS.add("forgetting", "Training on users' text alone forgets public text", "Table 1")
def _node_forgets(evidence: Evidence) -> Finding:
    """on one node, at least 1.5 times the initial perplexity on public text"""
    plain, start = node(evidence.size, "plain", 1.0), pretrained(evidence.size)
    worse = _times(evidence, plain, start, "public_text")
    return Finding(f"{worse:.3f} times the perplexity on public text", worse.at_least(1.5))


@CLAIMS.add("plain learns", "Of users' text it learns the most", "Table 1")
def _plain_learns(evidence: Evidence) -> Finding:
    """no other row has a lower perplexity on users' text"""
    plain = node(evidence.size, "plain", 1.0)
    others = [*_nodes(evidence, "rehearsal"), *_nodes(evidence, "without_forgetting")]
    times = {trial.label: _times(evidence, plain, trial, "users_text") for trial in others}
    nearest = max(times, key=lambda label: times[label].value)
    text = f"{times[nearest]:.3f} times that of the nearest, {nearest}"
    return Finding(text, all_of([each.at_most(1.0) for each in times.values()]))


@CLAIMS.add("rehearsal keeps", "Averaging without rehearsal forgets", "Figure 2")
def _averaging_forgets(evidence: Evidence) -> Finding:
    """at the end at least 1.2 times the perplexity on public text that it has with rehearsal"""
    kept, lost = rehearsed(evidence.size), forgetful(evidence.size)
    worse = _times(evidence, lost, kept, "public_text")
    return Finding(f"{worse:.3f} times the perplexity on public text with rehearsal", worse.at_least(1.2))


def _distillations(evidence: Evidence) -> list[Trial]:
    return [distillation(evidence.size, *each) for each in (("generated", 1), ("generated", 5), ("public", 1))]


@CLAIMS.add("averaging", "Averaging does better than transfer learning", "Table 2")
def _averaging(evidence: Evidence) -> Finding:
    """after one round, a lower average perplexity than all three"""
    averaged, distilled = one_round(evidence.size), _distillations(evidence)
    gaps = [evidence.minus(averaged, trial) for trial in distilled]
    text = f"against generated text {gaps[0]}, with 5 cycles {gaps[1]}, real text {gaps[2]}"
    return Finding(text, all_of([gap.at_most(0.0) for gap in gaps]))


@CLAIMS.add("same text", "Real or generated text makes no difference to transfer learning, nor do cycles", "Table 2")
def _same_text(evidence: Evidence) -> Finding:
    """average perplexities within 5 %"""
    once, often, real = _distillations(evidence)
    gaps = [evidence.minus(trial, real) for trial in (once, often)]
    text = f"1 cycle {gaps[0]}, 5 cycles {gaps[1]}, against real text"
    return Finding(text, all_of([gap.within(0.05) for gap in gaps]))


@CLAIMS.add("perplexity", "Averaging takes off almost 70 % of the perplexity on users' text", "abstract, Table 2")
def _learns(evidence: Evidence) -> Finding:
    """at least 50 %"""
    kept, start = rehearsed(evidence.size), pretrained(evidence.size)
    left = _times(evidence, kept, start, "users_text")
    less = 100 * Estimate(1 - left.value, left.margin)
    return Finding(f"{less:.1f} % less perplexity on users' text", less.at_least(50))


@CLAIMS.add("keystrokes", "and saves 8.7 points of their keystrokes more", "abstract, Table 2")
def _saves(evidence: Evidence) -> Finding:
    """at least 3 points"""
    kept, start = rehearsed(evidence.size), pretrained(evidence.size)
    points = _points(evidence, kept, start, "users_text")
    return Finding(f"{points:+.2f} points on users' text", points.at_least(3))


@CLAIMS.add("public text", "and hardly harms public text", "Table 2")
def _keeps(evidence: Evidence) -> Finding:
    """perplexity at most 10 % up, keystroke saving at most 1 point down"""
    kept, start = rehearsed(evidence.size), pretrained(evidence.size)
    worse, points = _times(evidence, kept, start, "public_text"), _points(evidence, kept, start, "public_text")
    text = f"{worse:.3f} times the perplexity, {points:+.2f} points of keystroke saving"
    return Finding(text, all_of([worse.at_most(1.1), points.at_least(-1)]))


@CLAIMS.add("early", "The model does reasonably well after 100 of 300 rounds", "Figure 2")
def _early(evidence: Evidence) -> Finding:
    """at a third of the rounds, 70 % of what is gained in ln perplexity on users' text"""
    kept, start = rehearsed(evidence.size), pretrained(evidence.size)
    curves = [run.measured(USERS) for run in evidence.outcomes(kept)]
    begun, third = evidence.mean(start, _measure("users_text", "perplexity")).value, evidence.size.marks[0]
    if not math.isfinite(begun) or not all(curves):
        return Finding(f"diverged, {NO_SPREAD}", FAILS)

    def share(run: Outcome) -> float:
        """In percent; a run that is over by then tells nothing of the spread."""
        curve = run.measured(USERS)
        if not curve or run.rounds <= third:
            return math.nan
        return 100 * math.log(begun / value_at(curve, third)) / math.log(begun / curve[-1][1])

    gained = evidence.mean(kept, share)
    return Finding(f"{gained:.0f} % of what is gained by round {third}", gained.at_least(70))


@CLAIMS.add("pareto", "Tails of c(s) are Pareto's", "Table 3")
def _pareto(evidence: Evidence) -> Finding:
    """the Lilliefors test at 5 % rejects at most 15 %"""
    seeds = [pairs_of(facts) for facts in tails_by_seed(evidence.size, evidence.results).values()]
    if not seeds:
        return NOT_RUN
    rejected, fitted = [sum(pair["rejected"] for pair in pairs) for pairs in seeds], sum(map(len, seeds))
    text = f"{sum(rejected)} of {fitted} are rejected at 5 %{by_seed(rejected)}; a count, {NO_SPREAD}"
    return Finding(text, _when(sum(rejected) <= 0.15 * fitted))


@CLAIMS.add("estimate", "The estimated ε is small", "Table 4")
def _estimate(evidence: Evidence) -> Finding:
    """the largest at δ = 1e-4 is at most 1"""
    seeds = [pairs_of(facts) for facts in tails_by_seed(evidence.size, evidence.results).values()]
    if not seeds:
        return NOT_RUN
    largest = [max(pair["epsilons"][0] for pair in pairs) for pairs in seeds]
    text = f"{max(largest):.2f} at δ = 1e-4{by_seed(largest, '.2f')} (printed {TABLE_4[0]:g}); a maximum, {NO_SPREAD}"
    return Finding(text, _when(max(largest) <= 1.0))


@CLAIMS.add("gigabytes", "74.48 on the Penn Treebank for 5.6 GB", "section 2.6")
def _gigabytes(evidence: Evidence) -> Finding:
    """at most 5 % more, for no more gigabytes"""
    curve = by_gigabytes(evidence.size, evidence.results)
    if not curve:
        return NOT_RUN
    within = [point for point in curve if point[1] <= PTB_GIGABYTES]
    if not within:
        return Finding(f"one round is {curve[0][1]:.2f} GB a node, {NO_SPREAD}", FAILS)
    rounds, sent, perplexity = within[-1]
    text = f"{'diverged' if perplexity is None else f'{perplexity:.1f}'} after {rounds} rounds ({sent:.2f} GB a node)"
    if len(within) < len(curve):
        more, too_much, _ = curve[len(within)]
        text += f"; {more} rounds are {too_much:.2f} GB"
    text += f"; one run, {NO_SPREAD}"
    if perplexity is not None and perplexity <= 1.05 * PTB_AVERAGED:
        return Finding(text, HOLDS)
    if len(within) < len(curve) or sent >= 0.95 * PTB_GIGABYTES:
        return Finding(text, FAILS)
    return Finding(text + "; not run as far", OPEN)
