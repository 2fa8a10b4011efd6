"""From a finished run to its result.

Two questions decide what is kept. Is the trial protected? Then nothing exact is kept of its users. Was it trained on
other text? Then it is evaluated on the users too. Each answer is one small function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.store import Store
from sottovoce.evaluation.figures import Evaluation, evaluations
from sottovoce.evaluation.head_words import head_words
from sottovoce.evaluation.prediction import evaluate
from sottovoce.models.contract import LanguageModel
from sottovoce.papers.engine.paper import FinishedRun, Paper
from sottovoce.papers.engine.populations import Populations
from sottovoce.papers.engine.results import Curve, Facts, Outcome
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import finite

# Held-out users on whom protected trials are compared at the end: these trials are few and differ little.
FINAL_USERS = 1000


@dataclass(frozen=True)
class RunToMeasure:
    """A finished run of a trial, and the text to measure it on."""

    trial: Trial
    seed: int
    recipe: Recipe
    run: RunFolder
    size: Size
    populations: Populations

    @cached_property
    def model(self) -> LanguageModel:
        return ModelFolder.open(self.run.path).model

    @cached_property
    def test(self) -> Store:
        """Held-out text of the corpus it was trained on."""
        return Store.open(self.populations.store(self.trial), "test")

    @cached_property
    def home(self) -> Store:
        """The held-out users of the reproduction."""
        return Store.open(self.populations.base, "test")

    @property
    def evaluated_users(self) -> int:
        return min(self.recipe.run.evaluate_users or self.test.users, self.test.users)

    @property
    def first(self) -> int:
        return self.trial.rounds_before(self.size)

    def evaluate(self, store: Store, users: int) -> Evaluation:
        return evaluate(self.model, store, range(min(users, store.users)))


def measure(done: RunToMeasure, paper: Paper) -> Outcome:
    """The result of a finished run. Of a protected trial, everything in it is public or noised."""
    trial, recipe = done.trial, done.recipe
    measured = _on_users(done) if trial.corpus.compared_on_users else _on_own_corpus(done)
    final, facts = measured.curve[-1][1], {"vocabulary": done.test.vocabulary.size, "users": recipe.privacy.users}
    if trial.is_protected or (trial.corpus.trained_on == "public" and paper.measure is None):
        facts["evaluated_users"] = min(FINAL_USERS, measured.store.users)
        final = done.evaluate(measured.store, FINAL_USERS)
    if trial.is_private:
        facts |= _guarantee(done.run.read_statement())
    series: dict[str, Curve] = {}
    heads: dict[str, list[float]] = {}
    if paper.measure is None:
        heads = head_words(done.model, done.test, range(done.evaluated_users)).to_json()
    else:
        more, series = paper.measure(_for_paper(done))
        facts |= more
    cohorts = _as_planned(done) if trial.is_protected else _from_diagnostics(done, series)
    return Outcome(
        name=trial.name,
        seed=done.seed,
        recipe=published(recipe),
        first=done.first,
        rounds=recipe.run.rounds,
        user_updates=cohorts.user_updates,
        curve=[(done.first + number, each.top1, finite(each.perplexity)) for number, each in measured.curve],
        evaluation=final,
        head_words=heads,
        clipped_share=cohorts.clipped_share,
        seconds=cohorts.seconds,
        elsewhere=measured.elsewhere,
        facts=facts,
        series=cohorts.series,
    )


@dataclass(frozen=True)
class _Evaluations:
    """Evaluations by round, the store they are of, and the last one on the other corpus it was trained on."""

    curve: Sequence[tuple[int, Evaluation]]
    store: Store
    elsewhere: Evaluation | None = None


def _on_own_corpus(done: RunToMeasure) -> _Evaluations:
    """The evaluations in the record of the run."""
    return _Evaluations(evaluations(done.run.record.read()), done.test)


def _on_users(done: RunToMeasure) -> _Evaluations:
    """One evaluation on the users of the reproduction, of a model that was trained on other text."""
    own = _on_own_corpus(done)
    last, elsewhere = own.curve[-1]
    if done.home.vocabulary.fingerprint != done.test.vocabulary.fingerprint:
        store = done.populations.store(done.trial)
        raise SottoError(f"{store} has another vocabulary than the users it is compared on; prepare it alike")
    if done.trial.corpus.trained_on == "public":
        last = 0  # it stands before the first round on the users
    return _Evaluations([(last, done.evaluate(done.home, done.evaluated_users))], done.home, elsewhere)


@dataclass(frozen=True)
class _CohortFigures:
    """What is known of the cohorts of a run."""

    user_updates: int
    clipped_share: Curve = field(default_factory=list)
    seconds: float | None = None
    series: dict[str, Curve] = field(default_factory=dict)


def _as_planned(done: RunToMeasure) -> _CohortFigures:
    """Of a protected trial: the expected number of updates. The realised cohorts are private."""
    return _CohortFigures(done.trial.user_updates(done.size))


def _from_diagnostics(done: RunToMeasure, series: dict[str, Curve]) -> _CohortFigures:
    """Of a trial without protected users: the exact figures in the owner's diagnostics."""
    lines, window = done.run.diagnostics.read(), done.recipe.run.evaluate_every
    shares: Curve = []
    for mark in done.size.marks:
        near = [line["clipped_share"] for line in lines if mark - window < line["round"] <= mark]
        known = [share for share in near if share is not None]
        if known:
            shares.append((done.first + mark, sum(known) / len(known)))
    # The training loss of the cohort's users, before their updates are averaged.
    local_loss = [
        (done.first + line["round"], line["loss"])
        for line in lines
        if line["round"] % window == 0 and line["loss"] is not None
    ]
    return _CohortFigures(
        user_updates=sum(line["users"] for line in lines),
        clipped_share=shares,
        seconds=round(sum(line["seconds"] for line in lines), 1),
        series=series | {"local loss": local_loss},
    )


def _for_paper(done: RunToMeasure) -> FinishedRun:
    users = done.home.head(done.size.evaluate_users)
    return FinishedRun(done.trial, done.size, done.run, done.model, users, done.populations.held_out_public())


def _guarantee(statement: dict[str, Any]) -> Facts:
    """The parts of a private run's statement that a table shows. The store's ε is of all its runs until then."""
    facts = {key: statement[key] for key in ("epsilon", "delta", "epsilon_store")}
    facts["declared"] = {key: statement["privacy"][key] for key in ("users", "cohort", "total_weight", "weight_cap")}
    facts |= {key: statement["mechanism"][key] for key in ("noise_multiplier", "noise_std")}
    return facts | ({"start": statement["start"]} if "start" in statement else {})


def published(recipe: Recipe) -> dict[str, Facts]:
    """A recipe without the paths of its stores and of its initial model."""
    sections = recipe.to_dict()
    del sections["data"]
    sections["model"].pop("initial", None)
    sections["local"].pop("public", None)
    return sections
