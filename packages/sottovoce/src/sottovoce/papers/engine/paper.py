"""Everything that is particular to one paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sottovoce.data.store import Store
from sottovoce.models.contract import LanguageModel
from sottovoce.papers.engine.claims import (
    NOT_RUN,
    OPEN,
    CheckedClaim,
    Claim,
    Evidence,
    Metric,
    check_claims,
    claims_table,
)
from sottovoce.papers.engine.results import Curve, Facts, ResultStore
from sottovoce.papers.engine.trial import Experiment, Size, Trial
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SettingError, SottoError, did_you_mean


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, for a paper to measure. `users` and `public` are held-out text."""

    trial: Trial
    size: Size
    run: RunFolder
    model: LanguageModel
    users: Store
    public: Store | None


@dataclass(frozen=True)
class Paper:
    """A paper. Its trials change the shipped recipe of the same name.

    Args:
        about: How to read the results; stands on their page.
        rows: Makes the table of an experiment, with a row for each trial.
        tables: More tables, by the name of their experiment.
        smoothing: Evaluations over which curves are averaged in figures.
        measure: Facts and curves to keep of a finished run, in place of its head words.
        figures: Figures of their own, by the name of their experiment.
        printed: Experiments whose tables have the paper's figures beside ours; making these writes no file.
    """

    name: str
    title: str
    sizes: Mapping[str, Size]
    experiments: Mapping[str, Experiment]
    claims: Sequence[Claim]
    metric: Metric
    about: str
    rows: Callable[[Sequence[Trial], Size, ResultStore], str]
    tables: Mapping[str, Callable[[Size, ResultStore, Path], str]] = field(default_factory=dict)
    smoothing: int = 1
    measure: Callable[[FinishedRun], tuple[Facts, dict[str, Curve]]] | None = None
    figures: Mapping[str, Callable[[Size, ResultStore], bytes | None]] = field(default_factory=dict)
    printed: Sequence[str] = ()

    def choose(self, names: Sequence[str]) -> list[Experiment]:
        """Experiments by name; all of them without a name."""
        for name in names:
            if name not in self.experiments:
                raise SottoError(
                    f"{self.name} has no experiment {name!r}: one of {', '.join(self.experiments)}"
                    f"{did_you_mean(name, self.experiments)}"
                )
        return [self.experiments[name] for name in names] or list(self.experiments.values())

    def size(self, name: str, rounds: int | None = None) -> Size:
        if name not in self.sizes:
            allowed = f"{', '.join(self.sizes)}{did_you_mean(name, self.sizes)}"
            raise SettingError("{size!r} must be one of {}", allowed, size=name)
        size = self.sizes[name]
        if rounds is not None and (rounds < size.evaluate_every or rounds % size.evaluate_every):
            raise SettingError(
                f"{{rounds}} must be a multiple of {size.evaluate_every}, at which models of this size are evaluated",
                rounds=rounds,
            )
        return size if rounds is None else replace(size, rounds=rounds)

    def evidence(self, results: ResultStore, size: Size) -> Evidence:
        """What its claims are checked against."""
        return Evidence.of(results, size, self.metric, self.experiments)

    def undecided(self, results: ResultStore, size: Size) -> list[Experiment]:
        """An experiment for each claim that more seeds may decide, of the settings that it rests on.

        Claims that cannot be told come first, then those that rest on a setting that was run once. A claim with a
        setting that was not run is left out.
        """
        tried = [each for each in self.check_claims(results, size)[0] if each.runs and each.finding != NOT_RUN]
        waiting = [each for each in tried if each.finding.verdict == OPEN or 1 in each.seeds]
        # Under the label of the first experiment that has it.
        trials = {trial.name: trial for each in [*self.experiments.values()][::-1] for trial, _ in each.runs(size)}
        return [
            Experiment(
                each.claim.name,
                f"{each.claim.text} ({each.claim.where}): {each.finding.verdict}",
                each.claim.criterion,
                lambda size, names=tuple(each.runs): [trials[name] for name in names],
                view="",
            )
            for each in sorted(waiting, key=lambda each: each.finding.verdict != OPEN)
        ]

    def check_claims(self, results: ResultStore, size: Size) -> tuple[list[CheckedClaim], str]:
        """Every claim with its finding, and all of them as a table."""
        evidence = self.evidence(results, size)
        checked = check_claims(self.claims, evidence)
        return checked, claims_table(checked, evidence)
