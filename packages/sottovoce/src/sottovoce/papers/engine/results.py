"""Results of a reproduction: a small JSON file for every finished run, and statistics over them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sottovoce.evaluation.figures import Evaluation
from sottovoce.files import write_aside
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import as_json

SMOOTHING = 5  # evaluations, as in the paper
MIN_FREEDOM = 4  # degrees of freedom of a spread: with fewer, runs can agree by chance
INCREASING = ("top1",)  # measures where more is better

Curve = list[tuple[int, float]]
Facts = dict[str, Any]  # a JSON object


@dataclass(frozen=True)
class Outcome:
    """One finished run.

    Of protected trials (`Trial.is_protected`), `user_updates` is the expected number, and there is no clipped share, no
    time and no series: these would be exact figures of private data.

    Args:
        first: Rounds that the model had been trained for before this run.
        curve: Round, top-1 and perplexity; a model that diverged has no perplexity.
        elsewhere: As `evaluation`, on the corpus it was trained on, where that is another than the users.
        series: Other measures by round, by name.
    """

    name: str
    seed: int
    recipe: dict[str, Facts]
    first: int
    rounds: int
    user_updates: int
    curve: list[tuple[int, float, float | None]]
    evaluation: Evaluation
    head_words: dict[str, list[float]]
    clipped_share: Curve
    seconds: float | None
    elsewhere: Evaluation | None = None
    facts: Facts = field(default_factory=dict)
    series: dict[str, Curve] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return self.recipe["run"]["algorithm"]

    def measured(self, measure: str) -> Curve:
        """A measure by round: `top1`, `perplexity`, `loss` (its logarithm) or one of `series`.

        Rounds without a finite loss are left out: a model that has diverged predicts nothing.
        """
        known = [(number, top1, value) for number, top1, value in self.curve if value is not None]
        match measure:
            case "top1":
                return [(number, top1) for number, top1, _ in known]
            case "perplexity":
                return [(number, value) for number, _, value in known]
            case "loss":
                return [(number, math.log(value)) for number, _, value in known]
        return self.series.get(measure, [])

    def has_diverged(self, by: int) -> bool:
        """Had it no finite loss at its last evaluation up to a round?"""
        return next((value is None for number, _, value in reversed(self.curve) if number <= by), False)

    def best(self, measure: str) -> tuple[int, float] | None:
        """The first round in which a measure was best, and its value."""
        known = self.measured(measure)
        if not known:
            return None
        find = max if measure in INCREASING else min
        return find(known, key=lambda point: point[1])

    @property
    def top1(self) -> Curve:
        return [(number, top1) for number, top1, _ in self.curve]

    @cached_property
    def smoothed(self) -> Curve:
        return smooth(self.top1)

    def to_bytes(self) -> bytes:
        values = asdict(self)
        rows = {name: values.pop(name) for name in ("curve", "clipped_share")}
        values |= {name: as_json(getattr(self, name)) for name in ("evaluation", "elsewhere")}
        rows |= {f"series: {name}": curve for name, curve in values.pop("series").items()}
        # One row a line: small, and readable in a diff.
        body = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False).rstrip("}").rstrip()
        for name, row in rows.items():
            lines = ",\n  ".join(json.dumps(_six_digits(item)) for item in row)
            body += f',\n "{name}": [\n  {lines}\n ]'
        return (body + "\n}\n").encode()

    @staticmethod
    def load(path: Path) -> Outcome:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            for name in ("curve", "clipped_share"):
                values[name] = [tuple(row) for row in values[name]]
            for name in ("evaluation", "elsewhere"):
                values[name] = Evaluation.from_json(found) if (found := values.get(name)) else None
            named = [name for name in values if name.startswith("series: ")]
            values["series"] = {
                name.removeprefix("series: "): [tuple(row) for row in values.pop(name)] for name in named
            }
            return Outcome(**values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SottoError(f"cannot read the result {path} ({error}); delete it to run it again") from None


Figure = Callable[[Outcome], float]


def _six_digits(row: Sequence[Any]) -> list[Any]:
    return [float(f"{value:.6g}") if isinstance(value, float) else value for value in row]


def smooth(curve: Curve, over: int = SMOOTHING) -> Curve:
    """A centred moving average over `over` evaluations; over fewer at both ends and in a short run."""
    half = min(over, len(curve) // 3) // 2
    return [
        (number, fmean(value for _, value in curve[max(0, place - half) : place + half + 1]))
        for place, (number, _) in enumerate(curve)
    ]


def value_at(curve: Curve, round_number: int) -> float:
    """The value at the last evaluation up to a round; at the first evaluation where there is none."""
    return next((value for number, value in reversed(curve) if number <= round_number), curve[0][1])


def rounds_to(curve: Curve, target: float) -> int | None:
    """The first round at which a curve has reached a value."""
    return next((number for number, value in curve if value >= target), None)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation between them, which is None for one seed."""

    mean: float
    deviation: float | None
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        deviation = stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
        return Spread(fmean(values), deviation, len(values))


def deviation_between(outcomes: Sequence[Outcome], figure: Figure) -> float | None:
    """Standard deviation of a figure between seeds, pooled over the trials of some runs; None for too few seeds.

    A trial with a run that has no finite figure is left out.
    """
    by_trial: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_trial.setdefault(outcome.name, []).append(outcome)
    found = [[figure(run) for run in runs] for runs in by_trial.values() if len(runs) > 1]
    several = [values for values in found if all(map(math.isfinite, values))]
    freedom = sum(len(values) - 1 for values in several)
    if freedom < MIN_FREEDOM:
        return None
    return math.sqrt(sum((len(values) - 1) * stdev(values) ** 2 for values in several) / freedom)


@dataclass(frozen=True)
class ResultStore:
    """The results in a folder, by trial. Figures with the same trial share its runs."""

    folder: Path

    def path(self, trial: Trial, seed: int) -> Path:
        return self.folder / f"{trial.name}-seed{seed}.json"

    def save(self, outcome: Outcome) -> None:
        self.folder.mkdir(exist_ok=True)
        write_aside(self.folder / f"{outcome.name}-seed{outcome.seed}.json", outcome.to_bytes())

    def outcomes(self, trial: Trial) -> list[Outcome]:
        """The finished runs of a trial, in the order of their file names."""
        return [Outcome.load(path) for path in sorted(self.folder.glob(f"{trial.name}-seed*.json"))]

    def every_run(self) -> list[Outcome]:
        return [Outcome.load(path) for path in sorted(self.folder.glob("*.json"))]

    def final(self, trial: Trial) -> Spread | None:
        """Smoothed top-1 at the end; None if the trial was not run."""
        outcomes = self.outcomes(trial)
        if not outcomes:
            return None
        return Spread.of([value_at(each.smoothed, each.first + each.rounds) for each in outcomes])

    def best_of_grids(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, and of each grid (`Trial.best_of`) only the best: the one with the highest smoothed top-1.

        The first run of each decides, so that more seeds of the best cannot change the choice.
        """

        def end_of_first_run(trial: Trial) -> float:
            outcomes = self.outcomes(trial)
            return outcomes[0].smoothed[-1][1] if outcomes else -1.0

        grids = dict.fromkeys(trial.best_of for trial in trials if trial.best_of)
        best = [max((one for one in trials if one.best_of == grid), key=end_of_first_run) for grid in grids]
        return [trial for trial in trials if not trial.best_of or trial in best]

    def rounds_to(self, trial: Trial, size: Size) -> Spread | None:
        """Rounds until smoothed top-1 reaches the size's target; None unless every seed reaches it."""
        rounds = [rounds_to(each.smoothed, size.target) for each in self.outcomes(trial)]
        reached = [number for number in rounds if number is not None]
        return Spread.of(reached) if reached and len(reached) == len(rounds) else None


@dataclass(frozen=True)
class WatchedResults(ResultStore):
    """The same results, each read once. It notes of which trials there were runs when they were asked for."""

    known: dict[str, list[Outcome]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # how many, by the name of the trial

    def outcomes(self, trial: Trial) -> list[Outcome]:
        if trial.name not in self.known:
            self.known[trial.name] = super().outcomes(trial)
        if found := self.known[trial.name]:
            self.seen[trial.name] = len(found)
        return found
