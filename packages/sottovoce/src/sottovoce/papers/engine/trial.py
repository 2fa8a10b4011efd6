"""What a reproduction runs: sizes, trials that change a base recipe, and experiments that group trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sottovoce.training.strategy import Strategy
from sottovoce_evidence.recipe import Recipe

Section = Mapping[str, Any]  # keys of one section of a recipe
View = Literal["curves", "sweep", "histograms", "own", ""]
_MAX_BLOCK = 640  # users at once on a GPU: their updates of the paper's model take 7 GB


@dataclass(frozen=True)
class Changes:
    """Keys of a recipe to change, by section."""

    privacy: Section = field(default_factory=dict)
    local: Section = field(default_factory=dict)
    server: Section = field(default_factory=dict)
    run: Section = field(default_factory=dict)
    model: Section = field(default_factory=dict)

    def apply(self, recipe: Recipe) -> Recipe:
        return recipe.replace(
            privacy=self.privacy, local=self.local, server=self.server, run=self.run, model=self.model
        )


@dataclass(frozen=True)
class Size:
    """How much is computed, never what: the paper's S, σ and η hold in every size.

    Args:
        synthetic_users: Users to generate where no store is given, with `synthetic_tokens` each.
        target: Accuracy for the column "rounds to".
        full: Run every point of a grid, not a few.
        node_users: Users whose text is pooled on one node.
    """

    name: str
    rounds: int
    cohort: int
    evaluate_every: int
    evaluate_users: int
    synthetic_users: int
    synthetic_tokens: int = 160
    target: float = 0.0
    changes: Changes = field(default_factory=Changes)
    full: bool = False
    node_users: int = 0

    @property
    def marks(self) -> tuple[int, int, int]:
        """An early, a later and the last round: figures over S or σ are read there. The paper has 100, 500, 3,000."""
        if self.rounds > 500:
            return 100, 500, self.rounds
        early, later = (
            max(1, round(self.rounds * share / self.evaluate_every)) * self.evaluate_every for share in (1 / 3, 2 / 3)
        )
        return early, later, self.rounds


@dataclass(frozen=True)
class Corpus:
    """Which text a trial reads.

    Args:
        trained_on: `users`: the users of the reproduction. `other`: the users of another corpus. `public`: public
            text. `node`: the text of some users as if one user had written it. `ptb`: the Penn Treebank, cut into a few
            parts.
        compared_on_users: Evaluate on the users of the reproduction, although it is trained on other text.
        with_public_text: Devices or the server read public text too.
    """

    trained_on: Literal["users", "other", "public", "node", "ptb"] = "users"
    compared_on_users: bool = False
    with_public_text: bool = False

    @property
    def is_users(self) -> bool:
        return self.trained_on == "users"


USERS = Corpus()
PUBLIC = Corpus("public", compared_on_users=True)


@dataclass(frozen=True)
class Place:
    """Where a trial stands in a figure: its `panel`, its `group` of lines, and `x` where the axis is not rounds."""

    x: float | None = None
    group: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Trial:
    """One setting, run with one or more seeds.

    A trial with `privacy.mode = "private"` is a real private run: it declares its population, and its secrets come from
    entropy. It is protected, and so is every other trial on the same users: only public facts are kept of them.

    Args:
        label: Its name in tables and figures.
        strategy: How it trains, if not by Algorithm 1.
        cohort: Multiple of the size's cohort.
        rounds: Multiple of the size's rounds.
        words: Size of the dictionary, as a multiple of the paper's 10,000 words.
        after: The trial whose model this one continues from.
        leave_one_out: How many models to train again, each without one user (`audit.tails`).
        protected: Its users are those of a private trial.
        mean_weight: Declared mean weight of a user: W is this times the declared users.
        short_name: Name of its files, where the name that `name` composes would be too long.
        extra_seeds: Seeds beyond the number asked for.
        single_seed: Run with seed 0 only; trials of all seeds share it.
        best_of: Name of a grid. Trials of an experiment with the same name differ in one thing that is not what the
            experiment is about. Figures show the best of them, and only that one is run with more seeds.
    """

    label: str
    changes: Changes = field(default_factory=Changes)
    strategy: Strategy | None = None
    cohort: float = 1.0
    rounds: float = 1.0
    words: int = 1
    corpus: Corpus = USERS
    after: Trial | None = None
    leave_one_out: int = 0
    protected: bool = False
    mean_weight: float = 1.0
    short_name: str = ""
    extra_seeds: int = 0
    single_seed: bool = False
    best_of: str = ""
    place: Place = field(default_factory=Place)

    def shown_as(self, label: str, *, x: float | None = None, group: str = "", panel: str = "") -> Trial:
        """The same runs in another figure."""
        return replace(self, label=label, place=Place(x, group, panel))

    @property
    def is_private(self) -> bool:
        return self.changes.privacy.get("mode") == "private"

    @property
    def is_protected(self) -> bool:
        return self.protected or self.is_private

    @property
    def is_central(self) -> bool:
        """SGD on pooled text: no cohort is drawn, nothing is clipped or noised."""
        return self.changes.run.get("algorithm") == "central"

    @property
    def name(self) -> str:
        """Names everything that differs from the base recipe, so that figures with the same setting share its runs."""
        if self.short_name:
            return self.short_name
        changes = self.changes
        left_out = ("mode", "delta") if self.is_private else ()
        kept = {key: value for key, value in changes.privacy.items() if key not in left_out}
        clipping, norm = kept.pop("clipping", "flat"), kept.pop("clip_norm", 15.0)
        bounds = [
            "no-clip" if clipping == "none" else f"{clipping.replace('_', '-')}-S{norm:g}",
            "" if self.is_private else f"sigma{kept.pop('noise_std', 0.0):g}",
        ]
        parts = [
            "private" if self.is_private else "",
            str(changes.run.get("algorithm", "fedavg")),
            *([] if self.is_central else bounds),
            *(f"{key}-{_schedule_or_text(value)}".replace("_", "-") for key, value in sorted(kept.items())),
            *(f"{key.replace('_', '-')}{_number_or_text(value)}" for key, value in sorted(changes.local.items())),
            *(f"server-{key}-{value}".replace("_", "-") for key, value in sorted(changes.server.items())),
            "" if self.cohort == 1 else f"cohort-x{self.cohort:g}",
            "" if self.rounds == 1 else f"rounds-x{self.rounds:.3g}",
            "" if self.words == 1 else f"words-x{self.words}",
            self._corpus_name,
            "guarded" if self.protected else "",
            f"after-{self.after.name}" if self.after else "",
        ]
        return "-".join(part for part in parts if part)

    @property
    def _corpus_name(self) -> str:
        if self.corpus.is_users:
            return ""
        return "elsewhere" if self.corpus.compared_on_users else f"on-{self.corpus.trained_on}"

    def seed_of(self, seed: int) -> int:
        return 0 if self.single_seed else seed

    def rounds_of(self, size: Size) -> int:
        return max(1, round(self.rounds * size.rounds))

    def rounds_before(self, size: Size) -> int:
        """Rounds of the trials before this one on the same text; pre-training is not counted."""
        if self.after is None or self.after.corpus.trained_on != self.corpus.trained_on:
            return 0
        return self.after.rounds_of(size) + self.after.rounds_before(size)

    def cohort_of(self, size: Size) -> int:
        return max(1, round(self.cohort * size.cohort))

    def user_updates(self, size: Size) -> int:
        """Updates that users compute. Public text has no users; leave-one-out models are trained as often again."""
        if self.corpus.trained_on == "public":
            return 0
        models = 2 + self.leave_one_out if self.leave_one_out else 1
        return self.rounds_of(size) * self.cohort_of(size) * models

    def recipe(self, base: Recipe, size: Size, *, users: int, store: str, seed: int) -> Recipe:
        """The recipe of one run. `users` are declared; without a guarantee they are those of the store."""
        cohort = self.cohort_of(size)
        privacy: dict[str, Any] = {
            "noise_multiplier": None,
            "users": users,
            "cohort": cohort,
            "sampling": "fixed",
            "secrets": "seeded",
        }
        if self.is_private:
            privacy |= {"sampling": "poisson", "secrets": "entropy"}
        else:
            privacy |= {"mode": "none"} if self.is_central else {"mode": "experiment", "noise_std": 0.0}
        if self.mean_weight != 1:
            privacy["total_weight"] = round(self.mean_weight * users)
        privacy |= self.changes.privacy
        run = {
            "rounds": self.rounds_of(size),
            "evaluate_every": size.evaluate_every,
            "evaluate_users": size.evaluate_users,
            "checkpoint_every": 250,
            "seed": seed,
            "block": self._block(size, cohort),
            **self.changes.run,
        }
        sized = size.changes.apply(base).replace(data={"store": store})
        return replace(self.changes, privacy=privacy, run=run).apply(sized)

    def _block(self, size: Size, cohort: int) -> int:
        """Users of a block. A cohort of fixed size fills its blocks; 0 leaves the choice to the program."""
        random_size = self.changes.privacy.get("sampling", "fixed") == "poisson" or self.is_private
        if not size.full or self.is_central or random_size:
            return 0
        blocks = -(-cohort // _MAX_BLOCK)
        return -(-cohort // blocks)


def _schedule_or_text(value: Any) -> str:
    """A value as part of a file name: a schedule [[1, 1.0], [50, 0.5]] is 1x1-50x0.5."""
    if isinstance(value, tuple | list):
        return "-".join("x".join(f"{number:g}" for number in pair) for pair in value)
    return str(value)


def _number_or_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


Trials = Callable[[Size], list[Trial]]


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    Args:
        view: How it is drawn: `curves` of some `measures` over rounds, a `sweep` over `x` at the size's marks,
            `histograms` of head words, a figure of its `own` (`Paper.figures`), or "" for a table alone.
        columns: Panels in a row; 0: one for each measure, or all of them if there is one measure.
        vertical_line: A place on the axis of a sweep to mark, with its label.
    """

    name: str
    title: str
    shows: str
    trials: Trials
    view: View = "curves"
    x: str = "round"
    measures: tuple[str, ...] = ("top1",)
    columns: int = 0
    vertical_line: Callable[[Size], tuple[float, str]] | None = None

    def user_updates(self, size: Size, seeds: int = 1) -> int:
        """Updates to compute if nothing of it was run before."""
        return sum(trial.user_updates(size) * count for trial, count in self.runs(size, seeds))

    def runs(self, size: Size, seeds: int = 1) -> list[tuple[Trial, int]]:
        """The trials to run, each with its number of seeds; a trial comes after the one it continues from."""
        counts: dict[str, tuple[Trial, int]] = {}
        for trial in self.trials(size):
            chain = [trial]
            while (before := chain[0].after) is not None:
                chain.insert(0, before)
            for each in chain:
                known, count = counts.get(each.name, (each, 0))
                counts[each.name] = known, 1 if each.single_seed else max(count, seeds + each.extra_seeds)
        return list(counts.values())


class Experiments(dict[str, Experiment]):
    """The experiments of a paper by name, in the order in which they are run."""

    def add(self, name: str, title: str, shows: str, **how: Any) -> Callable[[Trials], Trials]:
        """Decorates the function that makes an experiment's trials."""

        def added(trials: Trials) -> Trials:
            self[name] = Experiment(name, title, shows, trials, **how)
            return trials

        return added
