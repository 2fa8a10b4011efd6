"""What a reproduction found: a small JSON file for every finished run, and how they are read together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sottovoce.errors import SottoError
from sottovoce.files import write_aside
from sottovoce.papers.engine.trial import Size, Trial

SMOOTHED_OVER = 5  # evaluations, as in the paper
LEAST_FREEDOM = 4  # second runs of a setting: fewer can agree by chance, and would make everything look certain
RISING = ("top1",)  # measures of which more is better

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Outcome:
    """One finished run. `curve` has round, top-1 and perplexity; a model that diverged has no perplexity.

    `series` holds whatever else was measured by round, by name. `first` is how many rounds the model had behind it
    already. What runs that promise nothing tell of their cohorts is part of the experiment; of guarded ones
    (`Trial.is_guarded`) `user_updates` is what is expected, and there is no clipped share, time or series.
    """

    name: str
    seed: int
    recipe: dict[str, Any]
    first: int
    rounds: int
    user_updates: int
    curve: list[tuple[int, float, float | None]]
    evaluation: dict[str, Any]
    head_words: dict[str, list[float]]
    clipped_share: list[tuple[int, float]]
    seconds: float | None
    elsewhere: dict[str, Any] | None = None  # as `evaluation`, where training was on another corpus
    facts: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Curve] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return self.recipe["run"]["algorithm"]

    def measured(self, measure: str) -> Curve:
        """A measure by round, where it is finite: `top1`, `perplexity`, `loss` (its logarithm) or one of `series`."""
        if measure == "top1":
            return self.top1
        if measure in ("perplexity", "loss"):
            known = [(number, value) for number, _, value in self.curve if value is not None]
            return known if measure == "perplexity" else [(number, math.log(value)) for number, value in known]
        return self.series.get(measure, [])

    def best(self, measure: str) -> tuple[int, float] | None:
        """The round a measure was best in, the first of equals, and how good it was."""
        known = self.measured(measure)
        if not known:
            return None
        find = max if measure in RISING else min
        return find(known, key=lambda point: point[1])

    @property
    def top1(self) -> Curve:
        return [(number, top1) for number, top1, _ in self.curve]

    @property
    def smoothed(self) -> Curve:
        return smooth(self.top1)

    def to_bytes(self) -> bytes:
        values = asdict(self)
        rows = {name: values.pop(name) for name in ("curve", "clipped_share")}
        rows |= {f"series: {name}": curve for name, curve in values.pop("series").items()}
        # A line a row: small, and readable in a comparison of two versions.
        body = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False).rstrip("}").rstrip()
        for name, row in rows.items():
            lines = ",\n  ".join(json.dumps(_short(item)) for item in row)
            body += f',\n "{name}": [\n  {lines}\n ]'
        return (body + "\n}\n").encode()

    @staticmethod
    def load(path: Path) -> Outcome:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            for name in ("curve", "clipped_share"):
                values[name] = [tuple(row) for row in values[name]]
            named = [name for name in values if name.startswith("series: ")]
            values["series"] = {
                name.removeprefix("series: "): [tuple(row) for row in values.pop(name)] for name in named
            }
            return Outcome(**values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SottoError(f"cannot read the result {path} ({error}); delete it to run it again") from None


def _short(row: Sequence[Any]) -> list[Any]:
    return [float(f"{value:.6g}") if isinstance(value, float) else value for value in row]


def smooth(curve: Curve, over: int = SMOOTHED_OVER) -> Curve:
    """Each evaluation with those around it: `over` of them, fewer at both ends and in a short run."""
    half = min(over, len(curve) // 3) // 2
    return [
        (number, fmean(value for _, value in curve[max(0, place - half) : place + half + 1]))
        for place, (number, _) in enumerate(curve)
    ]


def value_at(curve: Curve, round_number: int) -> float:
    """At the last evaluation up to a round; at the first one where there is none."""
    return next((value for number, value in reversed(curve) if number <= round_number), curve[0][1])


def rounds_to(curve: Curve, target: float) -> int | None:
    """The first round at which a curve has reached a value."""
    return next((number for number, value in curve if value >= target), None)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation between them; None where one seed cannot tell."""

    mean: float
    deviation: float | None
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        deviation = stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
        return Spread(fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Pool:
    """The results in a folder, by setting. Figures that share a setting share its runs."""

    folder: Path

    def path(self, trial: Trial, seed: int) -> Path:
        return self.folder / f"{trial.name}-seed{seed}.json"

    def save(self, outcome: Outcome) -> None:
        self.folder.mkdir(exist_ok=True)
        write_aside(self.folder / f"{outcome.name}-seed{outcome.seed}.json", outcome.to_bytes())

    def of(self, trial: Trial) -> list[Outcome]:
        """What is known of a setting, seed by seed."""
        return [Outcome.load(path) for path in sorted(self.folder.glob(f"{trial.name}-seed*.json"))]

    def final(self, trial: Trial) -> Spread | None:
        """Smoothed top-1 at the end."""
        return self.at(trial, None)

    def at(self, trial: Trial, round_number: int | None) -> Spread | None:
        """Smoothed top-1 at a round of this run, or at its end."""
        found = self.of(trial)
        if not found:
            return None
        ends = [value_at(each.smoothed, each.first + (round_number or each.rounds)) for each in found]
        return Spread.of(ends)

    @property
    def algorithms(self) -> list[str]:
        return sorted({Outcome.load(path).algorithm for path in self.folder.glob("*.json")})

    def deviation(self, figure: Callable[[Outcome], float], algorithm: str) -> float | None:
        """How far a figure of two runs of one setting lies apart, pooled over settings of an algorithm with several
        seeds, if these are enough. Algorithms are not alike in this: FedSGD wanders more than FedAvg."""
        finals: dict[str, list[float]] = {}
        for path in sorted(self.folder.glob("*.json")):
            outcome = Outcome.load(path)
            if outcome.algorithm == algorithm:
                finals.setdefault(outcome.name, []).append(figure(outcome))
        several = [values for values in finals.values() if len(values) > 1]
        freedom = sum(len(values) - 1 for values in several)
        if freedom < LEAST_FREEDOM:
            return None
        squares = sum((len(values) - 1) * stdev(values) ** 2 for values in several)
        return math.sqrt(squares / freedom)

    def rounds_to(self, trial: Trial, size: Size) -> Spread | None:
        """Rounds until smoothed top-1 reaches the size's target; None unless every seed does."""
        found = [rounds_to(each.smoothed, size.target) for each in self.of(trial)]
        reached = [number for number in found if number is not None]
        return Spread.of(reached) if reached and len(reached) == len(found) else None
