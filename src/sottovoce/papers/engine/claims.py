"""The claims of a paper, each with a criterion that was set beforehand, checked against the results.

Settings are compared by one figure of a run, the paper's `Metric`. A difference has a margin of two standard errors,
from the spread between seeds, pooled over all settings of the same kind with several seeds. Where the criterion lies
within the margin, or no spread is known, the verdict is "cannot be told".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sottovoce.papers.engine.results import Outcome, ResultStore, WatchedResults
from sottovoce.papers.engine.tables import markdown
from sottovoce.papers.engine.trial import Experiment, Size, Trial

ALGORITHMS = {"fedavg": "FedAvg", "fedsgd": "FedSGD", "central": "central training"}
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"


@dataclass(frozen=True)
class Finding:
    measured: str
    verdict: str


NOT_RUN = Finding("not run", OPEN)


@dataclass(frozen=True)
class Difference:
    """A difference in units of the metric. The margin is None where no spread between seeds is known."""

    value: float
    margin: float | None
    decimals: int = 2  # that are shown

    def __str__(self) -> str:
        margin = "" if self.margin is None else f" ± {self.margin:.{self.decimals}f}"
        return f"{self.value:+.{self.decimals}f}{margin}"

    def at_most(self, limit: float) -> str:
        if self.margin is None:
            return OPEN
        return HOLDS if self.value + self.margin <= limit else FAILS if self.value - self.margin > limit else OPEN

    def at_least(self, limit: float) -> str:
        return Difference(-self.value, self.margin).at_most(-limit)

    def within(self, limit: float) -> str:
        return Difference(abs(self.value), self.margin).at_most(limit)


def all_of(verdicts: Sequence[str]) -> str:
    """A claim of several parts holds if all parts hold, and fails if one fails."""
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts or not verdicts else HOLDS


def algorithm_of(outcome: Outcome) -> str:
    return ALGORITHMS[outcome.algorithm]


@dataclass(frozen=True)
class Metric:
    """The figure of a run by which claims compare settings.

    Args:
        description: With its unit.
        value: The figure at a round, or (None) of the whole run.
        kind: Settings of one kind vary alike between seeds, so that their spreads are pooled. FedSGD varies more than
            FedAvg.
        decimals: Of a difference, that are shown.
    """

    description: str
    value: Callable[[Outcome, int | None], float]
    kind: Callable[[Outcome], str] = algorithm_of
    decimals: int = 2

    def deviations(self, results: ResultStore) -> dict[str, float | None]:
        """Standard deviation between two runs of one setting, by kind."""
        return results.deviations(lambda outcome: self.value(outcome, None), self.kind)


@dataclass(frozen=True)
class Evidence:
    """What a claim is checked against."""

    results: ResultStore
    size: Size
    metric: Metric
    experiments: Mapping[str, Experiment]
    deviations: Mapping[str, float | None]  # by kind

    @staticmethod
    def of(results: ResultStore, size: Size, metric: Metric, experiments: Mapping[str, Experiment]) -> Evidence:
        return Evidence(results, size, metric, experiments, metric.deviations(results))

    def has(self, *trials: Trial) -> bool:
        return all(self.results.outcomes(trial) for trial in trials)

    def minus(self, one: Trial, other: Trial, at: int | None = None) -> Difference:
        """The metric of one setting minus that of another, at a round or at the end."""
        means, variances = [], []
        for trial in (one, other):
            runs = self.results.outcomes(trial)
            means.append(fmean(self.metric.value(run, at) for run in runs))
            deviation = self.deviations[self.metric.kind(runs[0])]
            variances.append(math.nan if deviation is None else deviation**2 / len(runs))
        margin = 2 * math.sqrt(sum(variances))
        return Difference(means[0] - means[1], None if math.isnan(margin) else margin, self.metric.decimals)

    def trials(self, name: str) -> list[Trial]:
        return self.experiments[name].trials(self.size)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, where the paper makes it, and the criterion by which it holds."""

    name: str
    text: str
    where: str
    criterion: str
    check: Callable[[Evidence], Finding]


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with its finding. `runs` are the settings it rests on: how many seeds each was run with, by name."""

    claim: Claim
    finding: Finding
    runs: Mapping[str, int] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """The numbers of seeds of its settings, each once; empty where nothing is trained for it."""
        return sorted(set(self.runs.values()))

    @property
    def verdict(self) -> str:
        """The verdict, and whether one of its settings was run once."""
        return self.finding.verdict + (", one seed" if 1 in self.seeds else "")

    def to_json(self) -> dict[str, str | list[int]]:
        claim, finding = self.claim, self.finding
        return {
            "claim": claim.name,
            "says": claim.text,
            "where": claim.where,
            "criterion": claim.criterion,
            "measured": finding.measured,
            "verdict": finding.verdict,
            "seeds": self.seeds,
        }


def check_claims(claims: Sequence[Claim], evidence: Evidence) -> list[CheckedClaim]:
    checked, known = [], {}
    for claim in claims:
        watched = WatchedResults(evidence.results.folder, known)
        checked.append(CheckedClaim(claim, claim.check(replace(evidence, results=watched)), watched.seen))
    return checked


def claims_table(checked: Sequence[CheckedClaim], evidence: Evidence) -> str:
    rows = []
    for each in checked:
        claim, finding = each.claim, each.finding
        rows.append([f"{claim.text} ({claim.where})", claim.criterion, finding.measured, f"**{finding.verdict}**"])
    return f"{markdown(['claim', 'criterion', 'measured', 'verdict'], rows)}\n\n{spread_note(evidence)}\n"


def spread_note(evidence: Evidence) -> str:
    """What claims compare, and how far two runs of one setting differ."""
    known = {kind: deviation for kind, deviation in evidence.deviations.items() if deviation is not None}
    parts = [f"{evidence.metric.description}, ± two standard errors"]
    if known:
        decimals = evidence.metric.decimals
        spreads = ", ".join(f"{deviation:.{decimals}f} ({kind})" for kind, deviation in known.items())
        parts.append(f"the standard deviation between runs of one setting, pooled, is {spreads}")
    if unknown := [kind for kind in evidence.deviations if kind not in known]:
        parts.append(f"too few settings were run with several seeds for a spread of {', '.join(unknown)}")
    return "; ".join(parts) + "."
