"""What a reproduction is made of: trials, which each change a base recipe, and experiments that read them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import SottoError, did_you_mean
from sottovoce.recipe import Recipe

if TYPE_CHECKING:
    from sottovoce.data.store import Store
    from sottovoce.models.contract import LanguageModel
    from sottovoce.papers.engine.claims import Claim, Yardstick
    from sottovoce.papers.engine.results import Pool
    from sottovoce.runs.folder import RunFolder

Changes = Mapping[str, Mapping[str, Any]]
_MOST_AT_ONCE = 640  # users on a GPU: 7 GB of updates of the paper's model


@dataclass(frozen=True)
class Size:
    """How much is computed, never what: the paper's S, σ and η hold in every size.

    `synthetic` is how many users are made up where none are given, with `synthetic_tokens` each, and `target` the
    accuracy to which rounds are counted.
    """

    name: str
    rounds: int
    cohort: int
    evaluate_every: int
    evaluate_users: int
    synthetic: int
    synthetic_tokens: int = 160
    target: float = 0.0
    changes: Changes = field(default_factory=dict)
    full: bool = False  # every point of a grid, or a few
    node_users: int = 0  # whose text is on one node, where there is one

    @property
    def marks(self) -> tuple[int, int, int]:
        """Early, later and last: the rounds at which figures over S or σ are read. The paper's are 100, 500, 3,000."""
        if self.rounds > 500:
            return 100, 500, self.rounds
        early, later = (
            max(1, round(self.rounds * share / self.evaluate_every)) * self.evaluate_every for share in (1 / 3, 2 / 3)
        )
        return early, later, self.rounds


@dataclass(frozen=True)
class Trial:
    """One setting, to be run with one or more seeds.

    `label` names it in its figure, in the `panel` and the `group` of lines it belongs to, at `x` where the axis is not
    rounds. `cohort` and `rounds` are multiples of the size's. A trial `after` another goes on from that one's model.
    One that is run `once` serves all seeds.

    A trial with `privacy.mode = "private"` is a private run like any other: its population is declared, its secrets are
    from entropy. It is `guarded`, and so is any other trial on the same people: nothing exact is kept of them.
    """

    label: str
    privacy: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    cohort: float = 1.0
    rounds: float = 1.0
    words: int = 1  # the dictionary, in multiples of the paper's 10,000
    after: Trial | None = None
    elsewhere: bool = False  # trained on another corpus, and compared on these users
    # other: trained and measured on the people of the other corpus; public: pre-trained on public text; node: on the
    # text of some of the people as if it were one person's; ptb: on a benchmark that is cut into a few parts
    on: str = ""
    needs: tuple[str, ...] = ()  # stores besides: "public" for text that goes to devices, or that a server reads
    pairs: int = 0  # models without one user each, to compare with (`audit.tails`)
    guarded: bool = False
    mean_weight: float = 1.0  # declared: W is so many times the declared users
    called: str = ""  # a name, where one that says everything would be too long for a file
    more_seeds: int = 0  # beyond those asked for
    once: bool = False
    x: float | None = None
    group: str = ""
    panel: str = ""

    def shown_as(self, label: str, *, x: float | None = None, group: str = "", panel: str = "") -> Trial:
        """The same runs in another figure."""
        return replace(self, label=label, x=x, group=group, panel=panel)

    @property
    def is_private(self) -> bool:
        return self.privacy.get("mode") == "private"

    @property
    def is_guarded(self) -> bool:
        return self.guarded or self.is_private

    @property
    def is_central(self) -> bool:
        """SGD on pooled text: no cohort is drawn, nothing is clipped or noised."""
        return self.run.get("algorithm") == "central"

    @property
    def name(self) -> str:
        """Says all that is particular about the setting, so that figures with the same setting share its runs."""
        if self.called:
            return self.called
        kept = {key: value for key, value in self.privacy.items() if not (self.is_private and key in ("mode", "delta"))}
        clipping, norm = kept.pop("clipping", "flat"), kept.pop("clip_norm", 15.0)
        bounds = [
            "no-clip" if clipping == "none" else f"{clipping.replace('_', '-')}-S{norm:g}",
            "" if self.is_private else f"sigma{kept.pop('noise_std', 0.0):g}",
        ]
        parts = [
            "private" if self.is_private else "",
            str(self.run.get("algorithm", "fedavg")),
            *([] if self.is_central else bounds),
            *(f"{key}-{_plain(value)}".replace("_", "-") for key, value in sorted(kept.items())),
            *(f"{key.replace('_', '-')}{_short(value)}" for key, value in sorted(self.local.items())),
            *(f"server-{key}-{value}".replace("_", "-") for key, value in sorted(self.server.items())),
            "" if self.cohort == 1 else f"cohort-x{self.cohort:g}",
            "" if self.rounds == 1 else f"rounds-x{self.rounds:.3g}",
            "" if self.words == 1 else f"words-x{self.words}",
            "elsewhere" if self.elsewhere else "",
            f"on-{self.on}" if self.on else "",
            "guarded" if self.guarded else "",
            f"after-{self.after.name}" if self.after else "",
        ]
        return "-".join(part for part in parts if part)

    def seed_of(self, seed: int) -> int:
        return 0 if self.once else seed

    def rounds_of(self, size: Size) -> int:
        return max(1, round(self.rounds * size.rounds))

    def cohort_of(self, size: Size) -> int:
        return max(1, round(self.cohort * size.cohort))

    def user_updates(self, size: Size) -> int:
        """Of public text there are no users. With pairs it is trained again, with everybody and without each."""
        if self.on == "public":
            return 0
        return self.rounds_of(size) * self.cohort_of(size) * (2 + self.pairs if self.pairs else 1)

    def recipe(self, base: Recipe, size: Size, *, users: int, store: str, seed: int) -> Recipe:
        """The recipe of one run on so many users: those declared, or where nothing is promised those of the store."""
        made = base.replace(**size.changes)
        promised: dict[str, Any] = {"mode": "none"} if self.is_central else {"mode": "experiment", "noise_std": 0.0}
        if self.is_private:
            promised = {"sampling": "poisson", "secrets": "entropy"}
        if self.mean_weight != 1:
            promised["total_weight"] = round(self.mean_weight * users)
        cohort = self.cohort_of(size)
        # A cohort of known size fills its blocks; one of random size is cut as the program chooses.
        drawn = self.privacy.get("sampling", "fixed") == "poisson" or self.is_private
        known = size.full and not (self.is_central or drawn)
        filled = -(-cohort // -(-cohort // _MOST_AT_ONCE)) if known else 0
        return made.replace(
            data={"store": store},
            model=self.model,
            local=self.local,
            server=self.server,
            privacy={
                "noise_multiplier": None, "users": users, "cohort": cohort, "sampling": "fixed", "secrets": "seeded",
                **promised, **self.privacy,
            },
            run={
                "rounds": self.rounds_of(size), "evaluate_every": size.evaluate_every,
                "evaluate_users": size.evaluate_users, "checkpoint_every": 250, "seed": seed,
                "block": filled, **self.run,
            },
        )  # fmt: skip


def _plain(value: Any) -> str:
    """A value that can stand in the name of a file: a schedule [[1, 1.0], [50, 0.5]] is 1x1-50x0.5."""
    if isinstance(value, tuple | list):
        return "-".join("x".join(f"{number:g}" for number in pair) for pair in value)
    return str(value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    `view` says how it is drawn: `curves` of some `measures` over rounds, `sweep` over `x` at the size's marks,
    `histograms` of head words, a way of its `own` (`Paper.figures`), or nothing but a table. `upright` marks a place
    on the axis of a sweep.
    """

    name: str
    title: str
    shows: str
    trials: Callable[[Size], list[Trial]]
    view: str = "curves"
    x: str = "round"
    measures: tuple[str, ...] = ("top1",)
    columns: int = 0  # panels beside one another; 0: one for each measure, or all of them if there is but one
    upright: Callable[[Size], tuple[float, str]] | None = None

    def user_updates(self, size: Size, seeds: int = 1) -> int:
        """What it computes if nothing of it was run before."""
        return sum(trial.user_updates(size) * count for trial, count in self.runs(size, seeds))

    def runs(self, size: Size, seeds: int = 1) -> list[tuple[Trial, int]]:
        """The trials to run, those that others go on from first, each with its number of seeds."""
        found: dict[str, tuple[Trial, int]] = {}
        for trial in self.trials(size):
            chain = [trial]
            while (before := chain[0].after) is not None:
                chain.insert(0, before)
            for each in chain:
                known, count = found.get(each.name, (each, 0))
                found[each.name] = known, 1 if each.once else max(count, seeds + each.more_seeds)
        return list(found.values())


@dataclass(frozen=True)
class Finished:
    """A run that has ended, with all that a paper may measure it by. Stores are of held-out text."""

    trial: Trial
    size: Size
    run: RunFolder
    model: LanguageModel
    users: Store
    public: Store | None
    record: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Paper:
    """All that is particular to one paper. Its trials change the shipped recipe of the same name.

    `about` tells a reader of results how to read them. `tables` are those an experiment has besides, or instead of, the
    one with a row a trial, which `rows` makes. Curves are drawn `smoothed` over so many evaluations. `measure` finds
    what is kept of a finished run in place of its head words: facts and curves.
    """

    name: str
    title: str
    sizes: Mapping[str, Size]
    experiments: Mapping[str, Experiment]
    claims: Sequence[Claim]
    yardstick: Yardstick
    about: str
    rows: Callable[[Sequence[Trial], Size, Pool], str]
    tables: Mapping[str, Callable[[Size, Pool, Path], str]] = field(default_factory=dict)
    smoothed: int = 1
    measure: Callable[[Finished], tuple[dict[str, Any], dict[str, list[tuple[int, float]]]]] | None = None
    figures: Mapping[str, Callable[[Size, Pool], bytes | None]] = field(default_factory=dict)

    def choose(self, names: Sequence[str]) -> list[Experiment]:
        """Experiments by name, all of them by default."""
        for name in names:
            if name not in self.experiments:
                raise SottoError(
                    f"{self.name} has no experiment {name!r}: one of {', '.join(self.experiments)}"
                    f"{did_you_mean(name, self.experiments)}"
                )
        return [self.experiments[name] for name in names] or list(self.experiments.values())

    def size(self, name: str, rounds: int | None = None) -> Size:
        if name not in self.sizes:
            raise SottoError(f"size={name!r} must be one of {', '.join(self.sizes)}{did_you_mean(name, self.sizes)}")
        size = self.sizes[name]
        if rounds is not None and (rounds < size.evaluate_every or rounds % size.evaluate_every):
            raise SottoError(
                f"rounds={rounds} must be a multiple of {size.evaluate_every}, at which models of this size are "
                f"evaluated"
            )
        return size if rounds is None else replace(size, rounds=rounds)
