"""Train the trials of a paper. A run with a result is not repeated, and one that was interrupted is resumed.

Several processes may share a folder: each leaves runs alone that another one trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sottovoce.build.mechanism import resolve
from sottovoce.commands.train import Progress, resume, train
from sottovoce.data.store import Store
from sottovoce.files import locked
from sottovoce.papers.engine.measure import RunToMeasure, measure, published
from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.engine.populations import Populations
from sottovoce.papers.engine.results import Outcome, ResultStore
from sottovoce.papers.engine.setting import Setting
from sottovoce.papers.engine.trial import Experiment, Size, Trial
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.payments import vocabulary_charges
from sottovoce_evidence.errors import InUse, SottoError, count_of
from sottovoce_evidence.recipe import Recipe

ProgressDisplay = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]


@contextmanager
def no_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    yield lambda progress: None


@dataclass(frozen=True)
class Console:
    """How a reproduction reports to its caller, and how the caller stops it."""

    log: Callable[[str], None] = lambda text: None
    progress: ProgressDisplay = no_progress
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Runner:
    """Runs trials into a folder."""

    paper: Paper
    size: Size
    out: Path
    populations: Populations
    console: Console = field(default_factory=Console)
    _recipes: dict[tuple[str, int], Recipe] = field(default_factory=dict)

    @property
    def results(self) -> ResultStore:
        return ResultStore(self.out / "results")

    def can_run(self, experiment: Experiment) -> bool:
        if all(self.populations.can_run(trial) for trial, _ in experiment.runs(self.size)):
            return True
        self.console.log(
            f"{experiment.name} is left out: it needs more stores (--users with three folders, --other, --public) "
            f"or --declared-users"
        )
        return False

    def check_stores(self, experiment: Experiment) -> None:
        """Raise an error for a store that is missing, before anything is trained."""
        for trial, _ in experiment.runs(self.size):
            self.populations.store(trial)
            self.populations.users(trial)
            self.populations.public_text(trial)

    def save_setting(self) -> None:
        store, test = (Store.open(self.populations.base, split) for split in ("train", "test"))
        Setting(
            paper=self.paper.name,
            size=self.size.name,
            rounds=self.size.rounds,
            users=self.populations.given.declared_users or store.users,
            held_out_users=test.users,
            vocabulary=store.vocabulary.size,
            tokens_per_user=store.tokens_per_user,
            synthetic=self.populations.is_synthetic,
        ).save(self.out)

    def run(self, experiment: Experiment, seeds: int) -> bool:
        """Run what has no result yet. False when it was asked to stop."""
        runs = experiment.runs(self.size, seeds)
        # All trials with one seed before any with two: a figure is complete as early as possible.
        todo = [(trial, seed) for seed in range(max((n for _, n in runs), default=0)) for trial, n in runs if seed < n]
        missing = sum(not self.results.path(trial, seed).exists() for trial, seed in todo)
        self.console.log(f"{experiment.title}: {count_of(len(todo), 'run')}, {missing} of them to do")
        elsewhere: set[str] = set()  # grids of which another process trains a run
        left = 0
        for trial, seed in todo:
            if self.results.path(trial, seed).exists():
                self._check_result(trial, seed)
            elif seed > 0 and trial not in self.results.best_of_grids([one for one, _ in runs]):
                continue  # another of its grid is better
            elif seed > 0 and trial.best_of in elsewhere:
                left += 1  # which of its grid is the best is not known yet
            elif self.console.stop():
                return False
            else:
                try:
                    with self._alone(trial, seed):
                        if not self.results.path(trial, seed).exists() and not self._train(trial, seed):
                            return False
                except InUse:
                    left += 1
                    elsewhere |= {trial.best_of} - {""}
        if left:
            self.console.log(f"{left} of these runs are other processes', or wait for theirs; call it again after them")
        return True

    def recipe(self, trial: Trial, seed: int) -> Recipe:
        """The resolved recipe of a run. It is kept: to find the noise for an ε takes seconds."""
        if (known := self._recipes.get((trial.name, seed))) is not None:
            return known
        folder, base = self.populations.store(trial), Recipe.load(self.paper.name)
        users = self.populations.users(trial)
        recipe = trial.recipe(base, self.size, users=users, store=str(folder.resolve()), seed=seed)
        if trial.after is not None:
            recipe = recipe.replace(model={"initial": str(self._folder(trial.after, seed).resolve())})
        if (public := self.populations.public_text(trial)) is not None:
            recipe = recipe.replace(local={"public": str(public.resolve())})
        before = vocabulary_charges(Store.open(folder)) if trial.is_private else ()
        return self._recipes.setdefault((trial.name, seed), resolve(recipe, before))

    def outcome(self, trial: Trial, seed: int) -> Outcome:
        """The result of a run that has ended."""
        run = RunFolder.open(self._folder(trial, seed))
        done = RunToMeasure(trial, seed, self.recipe(trial, seed), run, self.size, self.populations)
        return measure(done, self.paper)

    def _check_result(self, trial: Trial, seed: int) -> None:
        path = self.results.path(trial, seed)
        # Compared as recipes: a key that a result does not name has its default.
        if Recipe.from_dict(Outcome.load(path).recipe) != Recipe.from_dict(published(self.recipe(trial, seed))):
            raise SottoError(f"{path} is of another recipe than it should be; delete it to run it again")

    def _folder(self, trial: Trial, seed: int) -> Path:
        return self.out / "runs" / f"{trial.name}-seed{trial.seed_of(seed)}"

    def _alone(self, trial: Trial, seed: int) -> AbstractContextManager[None]:
        """Keep other processes from this run. An `InUse` error where one of them trains it."""
        folder = self._folder(trial, seed)
        folder.parent.mkdir(exist_ok=True)
        return locked(folder.with_name(f".{folder.name}.lock"), f"{folder} is being trained by another process")

    def _train(self, trial: Trial, seed: int) -> bool:
        """Train or resume a run, and keep its result. False when it was asked to stop."""
        seed = trial.seed_of(seed)
        recipe, folder = self.recipe(trial, seed), self._folder(trial, seed)
        begun = RunFolder(folder).recipe_file.exists()
        if trial.after is not None and not begun and not self._has_model(trial.after, seed):
            return False
        given = {"also_evaluate_on": self._also_evaluate_on(trial), "strategy": trial.strategy}
        with self.console.progress(f"{trial.label} (seed {seed})") as observer:
            if begun:
                if published(Recipe.load(RunFolder(folder).recipe_file)) != published(recipe):
                    raise SottoError(f"{folder} was begun with another recipe than it should be; delete it")
                result = resume(folder, observer=observer, stop=self.console.stop, **given)
            else:
                result = train(recipe, folder, observer=observer, stop=self.console.stop, **given)
        if result.ended == "stopped":
            return False
        self.results.save(self.outcome(trial, seed))
        return True

    def _has_model(self, trial: Trial, seed: int) -> bool:
        """Make sure that a run's model is there; train it again where only its result was kept. False when stopped."""
        weights = RunFolder(self._folder(trial, seed)).model / "weights.safetensors"
        kept = self.results.path(trial, trial.seed_of(seed)).exists() and weights.exists()
        if kept:
            return True
        with self._alone(trial, seed):
            return self._train(trial, seed)

    def _also_evaluate_on(self, trial: Trial) -> Store | None:
        """Public text to evaluate a run on too, where its paper measures how much of it is forgotten."""
        return self.populations.held_out_public() if self.paper.measure and trial.corpus.is_users else None
