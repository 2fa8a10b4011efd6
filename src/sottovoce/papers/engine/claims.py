"""The claims of a paper, each with a criterion set beforehand, against what a reproduction found.

Runs are compared by one figure each, the paper's `Yardstick`. A difference counts with a margin of two standard errors,
from the spread between seeds, pooled over every setting of the same algorithm that was run with several. Where the
criterion lies within the margin, or there is no spread to tell, the answer is "cannot be told".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sottovoce.papers.engine.results import Outcome, Pool
from sottovoce.papers.engine.tables import markdown
from sottovoce.papers.engine.trial import Paper, Size, Trial

ALGORITHMS = {"fedavg": "FedAvg", "fedsgd": "FedSGD", "central": "central training"}
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"


@dataclass(frozen=True)
class Finding:
    measured: str
    verdict: str


NOT_RUN = Finding("not run", OPEN)


@dataclass(frozen=True)
class Difference:
    """In units of the yardstick; the margin is None where no spread between seeds is known."""

    value: float
    margin: float | None

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.margin is None else f" ± {self.margin:.2f}")

    def at_most(self, limit: float) -> str:
        if self.margin is None:
            return OPEN
        return HOLDS if self.value + self.margin <= limit else FAILS if self.value - self.margin > limit else OPEN

    def at_least(self, limit: float) -> str:
        return Difference(-self.value, self.margin).at_most(-limit)

    def within(self, limit: float) -> str:
        return Difference(abs(self.value), self.margin).at_most(limit)


def all_of(verdicts: Sequence[str]) -> str:
    """A claim of several parts holds if all do, and fails if one does."""
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts or not verdicts else HOLDS


@dataclass(frozen=True)
class Yardstick:
    """The one figure of a run by which claims compare settings: read at a round of it, or (None) of the whole run."""

    words: str  # what it is, and in which unit
    read: Callable[[Outcome, int | None], float]

    def deviation(self, pool: Pool, algorithm: str) -> float | None:
        """How far two runs of one setting of an algorithm lie apart."""
        return pool.deviation(lambda outcome: self.read(outcome, None), algorithm)


@dataclass(frozen=True)
class Evidence:
    pool: Pool
    size: Size
    paper: Paper
    deviations: Mapping[str, float | None]  # by algorithm

    def has(self, *trials: Trial) -> bool:
        return all(self.pool.of(trial) for trial in trials)

    def minus(self, one: Trial, other: Trial, at: int | None = None) -> Difference:
        """How much more one setting has than another, at a round or at the end."""
        means, variances = [], []
        for trial in (one, other):
            runs = self.pool.of(trial)
            means.append(fmean(self.paper.yardstick.read(run, at) for run in runs))
            deviation = self.deviations[runs[0].algorithm]
            variances.append(math.nan if deviation is None else deviation**2 / len(runs))
        margin = 2 * math.sqrt(sum(variances))
        return Difference(means[0] - means[1], None if math.isnan(margin) else margin)

    def trials(self, name: str) -> list[Trial]:
        return self.paper.experiments[name].trials(self.size)


@dataclass(frozen=True)
class Claim:
    """`says` is the paper's claim in our words, `where` it stands there, and `criterion` when we call it true."""

    name: str
    says: str
    where: str
    criterion: str
    judge: Callable[[Evidence], Finding]


def judge_claims(paper: Paper, pool: Pool, size: Size) -> list[dict[str, Any]]:
    """Every claim with what was measured."""
    found = Evidence(pool, size, paper, _deviations(paper, pool))
    return [
        {"claim": claim.name, "says": claim.says, "where": claim.where, "criterion": claim.criterion,
         **asdict(claim.judge(found))}
        for claim in paper.claims
    ]  # fmt: skip


def _deviations(paper: Paper, pool: Pool) -> dict[str, float | None]:
    return {algorithm: paper.yardstick.deviation(pool, algorithm) for algorithm in pool.algorithms}


def claims_table(paper: Paper, judged: Sequence[dict[str, Any]], pool: Pool) -> str:
    rows = [
        [f"{row['says']} ({row['where']})", row["criterion"], row["measured"], f"**{row['verdict']}**"]
        for row in judged
    ]
    deviations = _deviations(paper, pool)
    spreads = [
        f"two runs of one setting of {ALGORITHMS[algorithm]} differ by {deviation:.2f} (standard deviation, pooled)"
        for algorithm, deviation in deviations.items()
        if deviation is not None
    ]
    if unknown := [ALGORITHMS[algorithm] for algorithm, deviation in deviations.items() if deviation is None]:
        spreads.append(f"too few settings of {' and '.join(unknown)} were run with several seeds for a spread")
    note = "; ".join([f"{paper.yardstick.words}, ± two standard errors", *spreads]) + "."
    return f"{markdown(['claim', 'criterion', 'measured', 'verdict'], rows)}\n\n{note}\n"
