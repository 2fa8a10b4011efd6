r"""Transformers of pieces against the LSTM of words: the same public text, the same people, the same ε.

    python benchmarks/transformers.py prepare --public wikipedia.txt.zst --people users.jsonl.zst --out trial \
        --tuning others.jsonl.zst
    python benchmarks/transformers.py base tune private evaluate table --out trial --budget-seconds 440

A step does what is not done yet, so the second command may be given again: training goes on where the budget stopped.
It ends with status 3 while something is left. Nothing is downloaded, and after `prepare` only `--out` is read.

- `prepare`: a tokenizer of the public text (lower case, as the words are), and stores of words and of pieces. Each user
  is cut at whole records before either is made, so that both models read the same text.
- `base`: pre-trains the LSTM, a small and a large transformer on the public text.
- `tune`: tries settings on the people of `--tuning`, who are public, with the noise of the private runs, and takes the
  best.
- `private`: trains the people privately, at each ε of `--epsilon`; the large transformer by an adapter.
- `evaluate`: measures every model on people held out, and writes `results.jsonl`.
- `table`: writes `table.md`, for docs/results/transformers.md.

`--scale tiny` runs all of it in minutes on two cores, to see that it works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax

from sottovoce.commands.evaluate import Extra, evaluate_run
from sottovoce.commands.tokenizer import train_tokenizer
from sottovoce.commands.train import RunResult, resume, train
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.subwords import Subwords
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.figures import last_evaluation
from sottovoce.planning.plan import make_plan
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.files import Json
from sottovoce_evidence.recipe import Recipe

DELTA = 1e-5
LEFT = 3  # the status where the budget ended first
TOKENS = ("words", "pieces")
CURVE = ((0.0, 1.0), (0.6, 0.3), (0.85, 0.1))  # from which part of the pre-training on, which factor of its rate


@dataclass(frozen=True)
class Sizes:
    """Of a model: a transformer has layers and heads, the LSTM has none."""

    embedding: int
    hidden: int
    layers: int = 0
    heads: int = 0

    def recipe(self) -> Json:
        if not self.layers:
            return {"kind": "lstm", "embedding": self.embedding, "hidden": self.hidden}
        sizes = {"embedding": self.embedding, "hidden": self.hidden, "layers": self.layers}
        return {"kind": "transformer", **sizes, "heads": self.heads, "kv_heads": self.heads // 2, "context": 128}


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    models: dict[str, Sizes] = field(
        default_factory=lambda: {
            "lstm": Sizes(96, 256),
            "small": Sizes(256, 512, 4, 4),
            "large": Sizes(512, 1408, 8, 8),
        }
    )
    tokens_per_user: int = 1600  # of words; users are cut at whole records
    words: int = 10_000
    pieces: int = 8_000
    passes: float = 5.0
    users: int = 27_000  # declared
    cohort: int = 1_000
    rounds: int = 100
    tuning_cohort: int = 200
    tuning_rounds: int = 30
    held_out: int = 1_000  # users on whom models are measured
    measured_words: int = 2_000


SCALES = {
    "full": Scale(),
    "tiny": Scale(
        models={"lstm": Sizes(8, 16), "small": Sizes(16, 32, 1, 2), "large": Sizes(32, 48, 2, 4)},
        tokens_per_user=100,
        words=500,
        pieces=400,
        passes=0.5,
        users=60,
        cohort=10,
        rounds=3,
        tuning_cohort=5,
        tuning_rounds=2,
        held_out=8,
        measured_words=10,
    ),
}


@dataclass(frozen=True)
class Way:
    """Settings of private training, in the words of a recipe."""

    learning_rate: float
    clip_norm: float
    server_rate: float = 1.0
    optimiser: str = "sgd"

    @property
    def name(self) -> str:
        return f"{self.optimiser}-{self.learning_rate:g}-{self.clip_norm:g}-{self.server_rate:g}"

    def __str__(self) -> str:
        return f"η = {self.learning_rate:g}, S = {self.clip_norm:g}, server {self.optimiser} {self.server_rate:g}"


@dataclass(frozen=True)
class Trial:
    """A model that is trained privately, and the settings that are tried for it; the first where none are."""

    base: str
    tokens: str
    ways: tuple[Way, ...]
    adapter_rank: int | None = None


TRIALS = {
    "lstm": Trial("lstm", "words", (Way(6.0, 15.0), Way(3.0, 3.0, 1.5))),
    "small": Trial("small", "pieces", (Way(0.3, 1.0, 0.003, "adam"), Way(0.3, 1.0), Way(1.0, 1.0), Way(1.0, 3.0))),
    "large-adapter": Trial("large", "pieces", (Way(0.3, 1.0, 0.003, "adam"), Way(1.0, 2.0)), adapter_rank=8),
}
MODELS = ("lstm", "small", "large")


class Budget:
    """Seconds that this call may take: asked before each piece of work, and after every round."""

    def __init__(self, seconds: float | None):
        self._end = None if seconds is None else time.monotonic() + seconds
        self.left_something = False

    def is_spent(self) -> bool:
        spent = self._end is not None and time.monotonic() > self._end
        self.left_something |= spent
        return spent


@dataclass(frozen=True)
class Workshop:
    """The folder of a comparison, and what it is to hold."""

    out: Path
    scale: Scale
    budget: Budget
    only: tuple[str, ...] = MODELS

    @property
    def trials(self) -> dict[str, Trial]:
        return {name: trial for name, trial in TRIALS.items() if trial.base in self.only}

    def tokens_of(self, name: str) -> str:
        return "words" if name == "lstm" else "pieces"

    def store(self, people: str, tokens: str) -> Path:
        return self.out / "stores" / f"{people}-{tokens}"

    def run(self, name: str) -> Path:
        return self.out / "runs" / name

    def is_finished(self, name: str) -> bool:
        folder = RunFolder(self.run(name))
        if not folder.recipe_file.is_file() or not folder.statement_file.is_file():
            return False
        return int(folder.read_card()["rounds"]) == Recipe.of(folder).run.rounds

    def train(self, name: str, recipe: Recipe) -> RunResult | None:
        """Train a run, or go on with it, until it ends or the budget does. None: nothing was left to do."""
        if self.is_finished(name) or self.budget.is_spent():
            return None
        folder, begun = self.run(name), time.monotonic()
        folder.parent.mkdir(parents=True, exist_ok=True)
        if RunFolder(folder).recipe_file.is_file():
            done = resume(folder, progress=False, stop=self.budget.is_spent)
        else:
            done = train(recipe, folder, progress=False, stop=self.budget.is_spent)
        say(f"{name}: {done.ended} at round {done.round} of {recipe.run.rounds}, {time.monotonic() - begun:.0f} s")
        return done

    def tuned(self) -> dict[str, Way]:
        """The best settings of each trial, by bits per byte of the people it was tried on."""
        found = {name: trial.ways[0] for name, trial in TRIALS.items()}
        for name, tried in self.tried().items():
            found[name] = min(tried, key=lambda way: tried[way])
        return found

    def tried(self) -> dict[str, dict[Way, float]]:
        """Bits per byte after each tuning run that is finished."""
        found: dict[str, dict[Way, float]] = {}
        for name, trial in TRIALS.items():
            for way in trial.ways:
                run = f"tune-{name}-{way.name}"
                if self.is_finished(run):
                    found.setdefault(name, {})[way] = bits_per_byte(self.run(run))
        return found


def bits_per_byte(run: Path) -> float:
    """Of the last evaluation in the record of a run; infinite where it has none, as after a run that diverged."""
    _, found = last_evaluation(RunFolder(run).record.read())
    return float("inf") if found is None or found.bits_per_byte is None else found.bits_per_byte


def say(line: str) -> None:
    print(line, flush=True)


def cut_users(corpus: Iterable[Path], words: Vocabulary, limit: int) -> Iterator[tuple[str, str]]:
    """The (user, text) records of a corpus, of each user as many whole ones as have `limit` tokens together."""
    grouping, taken, full = Grouping(), Counter[str](), set[str]()
    for user, text in grouping.records(grouping.sources(list(corpus))):
        if user in full:
            continue
        tokens = len(words.encode(text))
        if taken[user] + tokens > limit:
            full.add(user)
        else:
            taken[user] += tokens
            yield user, text


def prepare_all(workshop: Workshop, texts: argparse.Namespace) -> None:
    scale, out = workshop.scale, workshop.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "tokenizer.json"
    if not file.exists():
        made = train_tokenizer(texts.public, file, public=True, size=scale.pieces, lower_case=True)
        say(f"tokenizer: {made.size:,} pieces, {made.bytes_per_token:.2f} bytes each")
    words, pieces = Vocabulary.public(scale.words), Subwords.load(file)
    # A word is 1.2 to 1.5 pieces here; users are never cut by their pieces, of which twice as many fit.
    limits = {"words": scale.tokens_per_user, "pieces": 2 * scale.tokens_per_user}
    for people in ("public", "people", "tuning"):
        for tokens, tokenizer in zip(TOKENS, (words, pieces), strict=True):
            store = workshop.store(people, tokens)
            if store.exists():
                continue
            store.parent.mkdir(parents=True, exist_ok=True)
            if people == "public":
                grouping = Grouping(test_users=0.02, plain_text=True, tokens_per_user=limits[tokens])
                summary = prepare(texts.public, store, tokenizer, grouping)
            else:
                corpus = list(cut_users(getattr(texts, people), words, limits["words"]))
                summary = prepare(corpus, store, tokenizer, Grouping(tokens_per_user=limits[tokens]))
            say(f"{store.name}: {summary!r}, {summary.users_cut:,} users cut")


def train_bases(workshop: Workshop) -> None:
    """Central training by Adam. Every rate falls towards the end."""
    for name, sizes in workshop.scale.models.items():
        if name not in workshop.only:
            continue
        store = workshop.store("public", workshop.tokens_of(name))
        pieces = Store.open(store).users
        cohort = min(100, pieces)
        rounds = max(round(workshop.scale.passes * pieces / cohort), 1)
        curve = {1 + int(part * rounds): factor for part, factor in CURVE}  # of a short run, the later ones count
        local = {"batch": 128, "unroll": 20} if not sizes.layers else {"batch": 64, "unroll": 64}
        rate = 0.002 if not sizes.layers else 0.001 if sizes.embedding < 500 else 0.0005
        recipe = Recipe.load("base").replace(
            data={"store": str(store)},
            model={**sizes.recipe(), "initial": "none"},
            local=local,
            server={"learning_rate": rate, "schedule": tuple(curve.items())},
            privacy={"users": pieces, "cohort": cohort},
            run={"rounds": rounds, "checkpoint_every": 20},
        )
        workshop.train(f"base-{name}", recipe)


def recipe_of(workshop: Workshop, name: str, way: Way, people: str) -> Recipe:
    """The recipe of a trial, but for its privacy and its rounds."""
    trial = TRIALS[name]
    sizes = workshop.scale.models[trial.base]
    local = {"batch": 8, "unroll": 32 if sizes.layers else 10, "learning_rate": way.learning_rate}
    return Recipe().replace(
        data={"store": str(workshop.store(people, trial.tokens))},
        model={
            **sizes.recipe(),
            "initial": str(workshop.run(f"base-{trial.base}")),
            "adapter_rank": trial.adapter_rank,
        },
        local=local,
        server={"optimiser": way.optimiser, "learning_rate": way.server_rate},
        privacy={"clip_norm": way.clip_norm, "delta": DELTA},
    )


def tune(workshop: Workshop, epsilon: float) -> None:
    """Trials with the noise on a mean update that a private run has. Their people are public: they promise nothing."""
    scale = workshop.scale
    planned = make_plan(
        users=scale.users, cohort=scale.cohort, rounds=scale.rounds, epsilon=epsilon, delta=DELTA, sampling="poisson"
    )
    assert planned.noise_multiplier is not None
    for name, trial in workshop.trials.items():
        if not workshop.is_finished(f"base-{trial.base}"):
            say(f"{name}: base-{trial.base} is not trained yet")
            workshop.budget.left_something = True
            continue
        users = Store.open(workshop.store("tuning", trial.tokens)).users
        for way in trial.ways:
            recipe = recipe_of(workshop, name, way, "tuning").replace(
                privacy={
                    "mode": "experiment",
                    "users": users,
                    "cohort": min(scale.tuning_cohort, users),
                    "noise_std": planned.noise_multiplier * way.clip_norm / scale.cohort,
                },
                run={"rounds": scale.tuning_rounds, "evaluate_every": scale.tuning_rounds, "checkpoint_every": 5},
            )
            workshop.train(f"tune-{name}-{way.name}", recipe)
    for name, tried in workshop.tried().items():
        for way, bits in sorted(tried.items(), key=lambda each: each[1]):
            say(f"tuned {name}: {bits:.4f} bits per byte, {way}")


def train_privately(workshop: Workshop, epsilons: list[float]) -> None:
    tuned = workshop.tuned()
    for epsilon in epsilons:
        for name, trial in workshop.trials.items():
            if not workshop.is_finished(f"base-{trial.base}"):
                workshop.budget.left_something = True
                continue
            scale = workshop.scale
            recipe = recipe_of(workshop, name, tuned[name], "people").replace(
                privacy={"users": scale.users, "cohort": scale.cohort, "epsilon": epsilon},
                run={"rounds": scale.rounds, "evaluate_every": 20, "evaluate_users": 60, "checkpoint_every": 5},
            )
            workshop.train(f"private-{name}-{epsilon:g}", recipe)


def measure(workshop: Workshop, epsilons: list[float]) -> None:
    """Add a line to `results.jsonl` for every model that is trained and not measured yet."""
    results = workshop.out / "results.jsonl"
    known = {line["run"] for line in read_results(workshop)}
    wanted = [f"base-{name}" for name in workshop.only]
    wanted += [f"private-{name}-{epsilon:g}" for epsilon in epsilons for name in workshop.trials]
    for name in wanted:
        if name in known or not workshop.is_finished(name):
            workshop.budget.left_something |= name not in known
            continue
        if workshop.budget.is_spent():
            return
        begun, run = time.monotonic(), RunFolder.open(workshop.run(name))
        model = name.split("-")[1]
        users = Store.open(workshop.store("people", workshop.tokens_of(model)), "test").head(workshop.scale.held_out)
        extra = Extra(suggestions=3, words=workshop.scale.measured_words)
        found, card, statement = evaluate_run(run.path, users, extra=extra), run.read_card(), run.read_statement()
        assert found.keystrokes is not None
        line = {
            "run": name,
            "tokens": workshop.tokens_of(model),
            "epsilon": statement["epsilon"] if name.startswith("private") else 0.0,
            "settings": str(workshop.tuned()[name.removeprefix("private-").rpartition("-")[0]])
            if name.startswith("private")
            else "",
            "parameters": card["parameters"],
            "trained_parameters": card["trained_parameters"],
            "traffic": card.get("bytes"),
            "device": jax.devices()[0].device_kind,
            **found.evaluation.to_json(),
            **found.keystrokes.to_json(),
        }
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        say(f"{name}: measured, {time.monotonic() - begun:.0f} s")


def read_results(workshop: Workshop) -> list[Json]:
    file = workshop.out / "results.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def write_table(workshop: Workshop) -> None:
    scale, lines = workshop.scale, read_results(workshop)
    head = ("model", "ε", "bits per byte", "top-1 of words", "keystrokes saved", "trained", "sent a round and user")
    rows = [head, ("---",) * len(head)]
    for line in lines:
        sent = line["traffic"]
        share = line["parameters"]
        trained = line["trained_parameters"]
        rows.append(
            (
                line["run"].removeprefix("private-").rpartition("-")[0] if line["epsilon"] else line["run"],
                f"{line['epsilon']:.2f}" if line["epsilon"] else "0",
                "–" if line.get("bits_per_byte") is None else f"{line['bits_per_byte']:.3f}",
                f"{line['top1_words']:.2%}",
                f"{line['keystroke_saving']:.2%}" if line.get("keystroke_saving") is not None else "–",
                f"{trained:,} of {share:,}" if trained != share else f"{trained:,}",
                "" if not sent else f"{(sent['down'] + sent['up']) / 1e6:.2f} MB",
            )
        )
    cohorts = f"{scale.rounds} rounds of {scale.cohort:,} of {scale.users:,} declared users, δ = {DELTA:g}"
    text = [f"Private runs: {cohorts}. Base: {scale.passes:g} passes.", ""]
    text += [f"| {' | '.join(row)} |" for row in rows]
    text += ["", "Settings, tried on public people (bits per byte after it):", ""]
    for name, tried in workshop.tried().items():
        ordered = sorted(tried.items(), key=lambda each: each[1])
        text.append(f"- {name}: " + "; ".join(f"{way} ({bits:.3f})" for way, bits in ordered))
    (workshop.out / "table.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    say("\n".join(text))


STEPS = ("prepare", "base", "tune", "private", "evaluate", "table")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("public", "people", "tuning"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[], help="files, for prepare")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0, 4.0])
    parser.add_argument("--budget-seconds", type=float)
    parser.add_argument("--scale", choices=tuple(SCALES), default="full")
    parser.add_argument(
        "--only", nargs="+", choices=MODELS, default=MODELS, help="models; several calls may run at once"
    )
    numbers = ("cohort", "rounds", "passes", "users", "tokens_per_user", "held_out", "tuning_rounds")
    for name in numbers:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float if name == "passes" else int)
    given = parser.parse_args()
    changed = {name: getattr(given, name) for name in numbers if getattr(given, name) is not None}
    workshop = Workshop(
        given.out, replace(SCALES[given.scale], **changed), Budget(given.budget_seconds), tuple(given.only)
    )
    for step in given.steps:
        if step == "prepare":
            prepare_all(workshop, given)
        elif step == "base":
            train_bases(workshop)
        elif step == "tune":
            tune(workshop, max(given.epsilon))
        elif step == "private":
            train_privately(workshop, given.epsilon)
        elif step == "evaluate":
            measure(workshop, given.epsilon)
        else:
            write_table(workshop)
    return LEFT if workshop.budget.left_something else 0


if __name__ == "__main__":
    sys.exit(main())
