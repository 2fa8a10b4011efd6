"""The claims of a paper, each with a criterion that was set beforehand, checked against the results.

Settings are compared by figures of their runs, most by the paper's `Metric`. Each has a margin of two standard errors,
from the spread of that figure between seeds, pooled over all settings of the same kind with several seeds. Where the
criterion lies within the margin, or no spread is known, the verdict is "cannot be told".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sottovoce.papers.engine.results import Figure, Outcome, ResultStore, WatchedResults, deviation_between
from sottovoce.papers.engine.tables import markdown
from sottovoce.papers.engine.trial import Experiment, Size, Trial

ALGORITHMS = {"fedavg": "FedAvg", "fedsgd": "FedSGD", "central": "central training"}
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"


@dataclass(frozen=True)
class Finding:
    measured: str
    verdict: str


NOT_RUN = Finding("not run", OPEN)


class MissingRun(Exception):
    """A setting on which a claim rests was not run."""


NO_SPREAD = "no spread"  # said of figures that have none: counts, and settings of a kind that was run once


@dataclass(frozen=True)
class Estimate:
    """A figure of some settings, means over seeds. The margin is None where no spread between seeds is known."""

    value: float
    margin: float | None
    decimals: int = 2  # of a difference, that are shown

    def __str__(self) -> str:
        return format(self)

    def __format__(self, form: str) -> str:
        form = form or f"+.{self.decimals}f"
        margin = f" ({NO_SPREAD})" if self.margin is None else f" ± {self.margin:{form.lstrip('+')}}"
        return f"{self.value:{form}}{margin}"

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, _joined(self.margin, other.margin), self.decimals)

    def __rmul__(self, times: float) -> Estimate:
        margin = None if self.margin is None else abs(times) * self.margin
        return Estimate(times * self.value, margin, self.decimals)

    def __truediv__(self, other: Estimate) -> Estimate:
        """A ratio of positive figures."""
        ratio = self.value / other.value
        if not math.isfinite(ratio):
            return Estimate(ratio, 0.0, self.decimals)
        parts = [None if one.margin is None else ratio * one.margin / one.value for one in (self, other)]
        return Estimate(ratio, _joined(*parts), self.decimals)

    def at_most(self, limit: float) -> str:
        if self.margin is None:
            return OPEN
        return HOLDS if self.value + self.margin <= limit else FAILS if self.value - self.margin > limit else OPEN

    def at_least(self, limit: float) -> str:
        return (-1 * self).at_most(-limit)

    def below(self, limit: float) -> str:
        return {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[self.at_least(limit)]

    def within(self, limit: float) -> str:
        return Estimate(abs(self.value), self.margin).at_most(limit)


def _joined(one: float | None, other: float | None) -> float | None:
    """The margin of two independent figures together."""
    return None if one is None or other is None else math.hypot(one, other)


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

    def deviations(self, runs: Sequence[Outcome]) -> dict[str, float | None]:
        """Standard deviation between two runs of one setting, by kind."""
        return {
            kind: deviation_between([run for run in runs if self.kind(run) == kind], self.at(None))
            for kind in sorted({self.kind(run) for run in runs})
        }

    def at(self, number: int | None) -> Figure:
        """The figure at a round, or (None) of the whole run."""
        return lambda run: self.value(run, number)


@dataclass(frozen=True)
class Evidence:
    """What a claim is checked against."""

    results: ResultStore
    size: Size
    metric: Metric
    experiments: Mapping[str, Experiment]
    runs: Sequence[Outcome]  # all of the results: spreads also come from settings on which a claim does not rest

    @staticmethod
    def of(results: ResultStore, size: Size, metric: Metric, experiments: Mapping[str, Experiment]) -> Evidence:
        return Evidence(results, size, metric, experiments, results.every_run())

    def has(self, *trials: Trial) -> bool:
        return all(self.results.outcomes(trial) for trial in trials)

    def outcomes(self, trial: Trial) -> list[Outcome]:
        """The runs of a setting. Without one, a claim that asks for it is not run."""
        if found := self.results.outcomes(trial):
            return found
        raise MissingRun(trial.name)

    def mean(self, trial: Trial, figure: Figure | None = None) -> Estimate:
        """A figure of a setting, the metric of the whole run by default.

        What is run once for all seeds, such as a pre-trained model, is given: it adds no margin. Nor does an infinite
        figure, of a run that diverged.
        """
        figure = figure or self.metric.at(None)
        found, decimals = self.outcomes(trial), self.metric.decimals
        value, kind = fmean(map(figure, found)), self.metric.kind(found[0])
        if trial.single_seed or math.isinf(value):
            return Estimate(value, 0.0, decimals)
        deviation = deviation_between([run for run in self.runs if self.metric.kind(run) == kind], figure)
        return Estimate(value, None if deviation is None else 2 * deviation / math.sqrt(len(found)), decimals)

    def minus(self, one: Trial, other: Trial, at: int | None = None) -> Estimate:
        """The metric of one setting minus that of another, at a round or of the whole run."""
        return self.mean(one, self.metric.at(at)) - self.mean(other, self.metric.at(at))

    def trials(self, name: str) -> list[Trial]:
        return self.experiments[name].trials(self.size)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, where the paper makes it, and the criterion by which it holds."""

    name: str
    text: str
    where: str
    criterion: str
    check: Callable[..., Finding]  # of the evidence


class Claims(list[Claim]):
    """The claims of a paper, in its order. `add` decorates the check of one; its docstring is the criterion."""

    def add(self, name: str, text: str, where: str) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
        def added(check: Callable[..., Finding]) -> Callable[..., Finding]:
            self.append(Claim(name, text, where, " ".join((check.__doc__ or "").split()), check))
            return check

        return added


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
        try:
            finding = claim.check(replace(evidence, results=watched))
        except MissingRun:
            finding = NOT_RUN
        checked.append(CheckedClaim(claim, finding, watched.seen))
    return checked


def claims_table(checked: Sequence[CheckedClaim], evidence: Evidence) -> str:
    rows = []
    for each in checked:
        claim, finding = each.claim, each.finding
        rows.append([f"{claim.text} ({claim.where})", claim.criterion, finding.measured, f"**{finding.verdict}**"])
    return f"{markdown(['claim', 'criterion', 'measured', 'verdict'], rows)}\n\n{spread_note(evidence)}\n"


def spread_note(evidence: Evidence) -> str:
    """What claims compare, and how far two runs of one setting differ."""
    deviations = evidence.metric.deviations(evidence.runs)
    known = {kind: deviation for kind, deviation in deviations.items() if deviation is not None}
    parts = [evidence.metric.description, "± is two standard errors, from the spread of the figure it stands behind"]
    if known:
        decimals = evidence.metric.decimals
        spreads = ", ".join(f"{deviation:.{decimals}f} ({kind})" for kind, deviation in known.items())
        parts.append(f"the standard deviation between runs of one setting, pooled, is {spreads}")
    if unknown := [kind for kind in deviations if kind not in known]:
        parts.append(f"too few settings were run with several seeds for a spread of {', '.join(unknown)}")
    return "; ".join(parts) + "."
