"""Run the experiments of a paper, each run once, and go on where an earlier call stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.build.mechanism import resolve
from sottovoce.commands.evaluate import load_run
from sottovoce.commands.train import Progress, resume, train
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.evaluation.head_words import head_words
from sottovoce.evaluation.prediction import evaluate
from sottovoce.files import write_aside
from sottovoce.papers.engine.claims import claims_table, judge_claims
from sottovoce.papers.engine.populations import People
from sottovoce.papers.engine.render import page, present, summarise
from sottovoce.papers.engine.results import Outcome, Pool
from sottovoce.papers.engine.trial import Experiment, Finished, Paper, Size, Trial
from sottovoce.papers.registry import PAPERS
from sottovoce.recipe import Recipe
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.payments import vocabulary_charges

SETTING_FILE = "reproduction.json"
# Held-out users on whom guarded trials are compared: these are few, are not repeated, and differ little.
AT_THE_END = 1000

ProgressDisplay = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]


def reproduce(
    paper: Paper, names: Sequence[str], *, size: str, out: Path, users: Sequence[Path] = (), other: Path | None = None,
    public: Path | None = None, declared: int = 0, seeds: int = 1, rounds: int | None = None,
    say: Callable[[str], None], progress: ProgressDisplay,
    stop: Callable[[], bool] = lambda: False,
) -> bool:  # fmt: skip
    """Run experiments into a folder and draw each when it is done. False when it was asked to stop.

    The folder holds the result of every run (`results`), the runs themselves (`runs`), a figure and a table for each
    experiment, and a page with all of them. Runs with a result are not run again, and one that was broken off goes on.
    """
    if seeds < 1:
        raise SottoError(f"seeds={seeds} must be 1 or more; it is how often every setting is run")
    if not users and (other or public):
        name, given = ("--other", other) if other else ("--public", public)
        raise SottoError(f"{name} {given} needs --users too, a store of people: without one all text is synthetic")
    chosen, scale = paper.choose(names), paper.size(size, rounds)
    out.mkdir(parents=True, exist_ok=True)
    people = People(
        out / "users", tuple(users), other, public, declared, scale.synthetic, scale.synthetic_tokens, scale.node_users
    )
    work = _Work(paper, out, scale, people, Pool(out / "results"), say, progress, stop)
    ready = [experiment for experiment in chosen if names or work.can_run(experiment)]
    for experiment in ready:
        for trial, _ in experiment.runs(scale, seeds):
            people.store(trial), people.users(trial), people.public_for(trial)  # whatever is missing is told first
    work.hold_to_one_setting()
    for experiment in ready:
        if not work.run(experiment, seeds):
            return False
        say(present(paper, experiment, scale, work.pool, out))
        write_page(out)
    return True


def redraw(names: Sequence[str], out: Path) -> Iterator[str]:
    """The figures and tables of what is in a folder already; nothing is trained."""
    paper, size, pool = read_folder(out)
    for experiment in paper.choose(names):
        if not experiment.trials(size) or any(pool.of(trial) for trial in experiment.trials(size)):
            yield present(paper, experiment, size, pool, out)
    write_page(out)


def summary(names: Sequence[str], out: Path) -> dict[str, list[dict[str, Any]]]:
    """What is known of every setting of some experiments."""
    paper, size, pool = read_folder(out)
    return {experiment.name: summarise(experiment.trials(size), size, pool) for experiment in paper.choose(names)}


def judge(out: Path) -> tuple[list[dict[str, Any]], str]:
    """The claims of the paper against what is in a folder, and as a table; both are written there too."""
    paper, size, pool = read_folder(out)
    judged = judge_claims(paper, pool, size)
    text = claims_table(paper, judged, pool)
    write_aside(out / "claims.json", json.dumps(judged, indent=1, ensure_ascii=False).encode() + b"\n")
    write_aside(out / "claims.md", text.encode())
    write_page(out)
    return judged, text


def write_page(out: Path) -> None:
    """Put all tables and figures of a folder on one page, `results.md`."""
    paper, _, _ = read_folder(out)
    write_aside(out / "results.md", page(paper, _setting_of(out), out).encode())


def read_folder(out: Path) -> tuple[Paper, Size, Pool]:
    """What a folder is a reproduction of, at which size, and what it found."""
    known = _setting_of(out)
    paper = PAPERS[known["paper"]]
    return paper, paper.size(known["size"], known["rounds"]), Pool(out / "results")


def check_paper(out: Path, name: str | None) -> None:
    """Refuse a folder that is of another paper than the one named."""
    known = _setting_of(out)["paper"]
    if name not in (None, known):
        raise SottoError(f"{out} holds a reproduction of {known}, not of {name}; name its folder, or that paper")


def _setting_of(out: Path) -> dict[str, Any]:
    path = out / SETTING_FILE
    if not path.is_file():
        raise SottoError(f"{out} holds no reproduction: there is no {SETTING_FILE}; run one into it first")
    known = json.loads(path.read_text(encoding="utf-8"))
    if known.get("paper") not in PAPERS:
        raise SottoError(f"{path} is of the paper {known.get('paper')!r}, and this version has {', '.join(PAPERS)}")
    return known


@dataclass(frozen=True)
class _Work:
    paper: Paper
    out: Path
    size: Size
    people: People
    pool: Pool
    say: Callable[[str], None]
    progress: ProgressDisplay
    stop: Callable[[], bool]
    recipes: dict[tuple[str, int], Recipe] = field(default_factory=dict)

    def can_run(self, experiment: Experiment) -> bool:
        able = all(self.people.has(trial) for trial, _ in experiment.runs(self.size))
        if not able:
            self.say(
                f"{experiment.name} is left out: it needs more stores (--users with three folders, --other, --public) "
                f"or --declared-users"
            )
        return able

    def hold_to_one_setting(self) -> None:
        """One folder is of one size and one population, or its figures would mix what cannot be compared."""
        base = Trial("base")
        store, test = (Store.open(self.people.store(base), split) for split in ("train", "test"))
        setting = {
            "paper": self.paper.name, "size": self.size.name, "rounds": self.size.rounds,
            "users": self.people.declared or store.users,
            "held_out_users": test.users, "vocabulary": store.vocabulary.size, "tokens_per_user": store.tokens_per_user,
            "synthetic": not self.people.stores,
        }  # fmt: skip
        path = self.out / SETTING_FILE
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if different := [key for key, value in setting.items() if known.get(key) != value]:
                what = ", ".join(f"{key} = {known.get(key)}, not {setting[key]}" for key in different)
                raise SottoError(f"{self.out} holds a reproduction with {what}; choose another --out")
        write_aside(path, json.dumps(setting, indent=1).encode() + b"\n")

    def run(self, experiment: Experiment, seeds: int) -> bool:
        runs = experiment.runs(self.size, seeds)
        # All settings with one seed before any with two: a figure is whole as early as it can be.
        todo = [(trial, seed) for seed in range(max((n for _, n in runs), default=0)) for trial, n in runs if seed < n]
        missing = sum(not self.pool.path(trial, seed).exists() for trial, seed in todo)
        self.say(f"{experiment.title}: {len(todo)} runs, {missing} of them to do")
        for trial, seed in todo:
            if self.pool.path(trial, seed).exists():
                self._check_result(trial, seed)
            elif self.stop() or not self._train(trial, seed):
                return False
        return True

    def _recipe(self, trial: Trial, seed: int) -> Recipe:
        """As a run keeps it. Found once: the noise for an ε takes seconds."""
        if (known := self.recipes.get((trial.name, seed))) is not None:
            return known
        folder, base = self.people.store(trial), Recipe.load(self.paper.name)
        users, store = self.people.users(trial), str(folder.resolve())
        made = trial.recipe(base, self.size, users=users, store=store, seed=seed)
        if trial.after is not None:
            made = made.replace(model={"initial": str(self._folder(trial.after, seed).resolve())})
        if (public := self.people.public_for(trial)) is not None:
            made = made.replace(local={"public": str(public.resolve())})
        before = vocabulary_charges(Store.open(folder)) if trial.is_private else ()
        return self.recipes.setdefault((trial.name, seed), resolve(made, before))

    def _check_result(self, trial: Trial, seed: int) -> None:
        path = self.pool.path(trial, seed)
        # Compared as recipes: a key that came later has its default in older results.
        if Recipe.from_dict(Outcome.load(path).recipe) != Recipe.from_dict(_told(self._recipe(trial, seed))):
            raise SottoError(f"{path} is of another recipe than it should be; delete it to run it again")

    def _folder(self, trial: Trial, seed: int) -> Path:
        return self.out / "runs" / f"{trial.name}-seed{trial.seed_of(seed)}"

    def _train(self, trial: Trial, seed: int) -> bool:
        """Train a run, or go on with it, and keep its result. False when it was asked to stop."""
        seed = trial.seed_of(seed)
        recipe, folder = self._recipe(trial, seed), self._folder(trial, seed)
        begun = RunFolder(folder).recipe_file.exists()
        if trial.after is not None and not begun and not self._has_model(trial.after, seed):
            return False
        folder.parent.mkdir(exist_ok=True)
        with self.progress(f"{trial.label} (seed {seed})") as observer:
            if begun:
                if _told(Recipe.load(RunFolder(folder).recipe_file)) != _told(recipe):
                    raise SottoError(f"{folder} was begun with another recipe than it should be; delete it")
                result = resume(folder, observer=observer, stop=self.stop, also_evaluate_on=self._beside(trial))
            else:
                result = train(recipe, folder, observer=observer, stop=self.stop, also_evaluate_on=self._beside(trial))
        if result.ended == "stopped":
            return False
        self.pool.save(self._outcome(trial, seed, recipe))
        return True

    def _has_model(self, trial: Trial, seed: int) -> bool:
        """See that a run's model is there: it is done again where only its result was kept. False: asked to stop."""
        folder = self._folder(trial, seed)
        kept = (
            self.pool.path(trial, trial.seed_of(seed)).exists()
            and (RunFolder(folder).model / "weights.safetensors").exists()
        )
        return kept or self._train(trial, seed)

    def _beside(self, trial: Trial) -> Store | None:
        """Public text that a run is evaluated on too, where its paper asks how much of that is forgotten."""
        public = self.people.held_out_public() if self.paper.measure and not trial.on else None
        return None if public is None else public.head(self.size.evaluate_users)

    def _outcome(self, trial: Trial, seed: int, recipe: Recipe) -> Outcome:
        """What is kept of a run. Of people who are promised something, nothing that is not public or noised."""
        run = RunFolder.open(self._folder(trial, seed))
        model, _ = load_run(run)
        store = self.people.store(trial)
        test = Store.open(store, "test")
        rows = range(min(recipe.run.evaluate_users or test.users, test.users))
        first = _rounds_before(trial, self.size)
        lines, diagnostics = run.record.read(), [] if trial.is_guarded else run.diagnostics.read()
        evaluated = [(line["round"], line["evaluation"]) for line in lines if "evaluation" in line]
        window = recipe.run.evaluate_every
        shares = []
        for mark in self.size.marks:
            near = [line["clipped_share"] for line in diagnostics if mark - window < line["round"] <= mark]
            near = [share for share in near if share is not None]
            if near:
                shares.append((first + mark, sum(near) / len(near)))
        elsewhere, compared = None, test
        if trial.elsewhere:
            elsewhere = evaluated[-1][1]
            compared = home = Store.open(self.people.store(Trial("base")), "test")
            if home.vocabulary.fingerprint != test.vocabulary.fingerprint:
                raise SottoError(f"{store} has another vocabulary than the users it is compared on; prepare it alike")
            last = 0 if trial.on == "public" else evaluated[-1][0]  # before the first round on the users
            evaluated = [(last, evaluate(model, home, range(min(len(rows), home.users))).to_json())]
        final, updates = evaluated[-1][1], sum(line["users"] for line in diagnostics)
        facts = {"vocabulary": test.vocabulary.size, "users": recipe.privacy.users}
        if trial.is_guarded or (trial.on == "public" and self.paper.measure is None):
            facts["evaluated_users"] = min(AT_THE_END, compared.users)
            final = evaluate(model, compared, range(facts["evaluated_users"])).to_json()
        if trial.is_guarded:
            updates = trial.user_updates(self.size)  # as planned: how many there were is private
        if trial.is_private:
            facts |= _promised(run.read_statement())
        more: dict[str, list[tuple[int, float]]] = {}
        if self.paper.measure is not None:
            users = Store.open(self.people.store(Trial("base")), "test").head(self.size.evaluate_users)
            public = self.people.held_out_public()
            public = None if public is None else public.head(self.size.evaluate_users)
            measured, more = self.paper.measure(Finished(trial, self.size, run, model, users, public, lines))
            facts |= measured
        return Outcome(
            name=trial.name,
            seed=seed,
            recipe=_told(recipe),
            first=first,
            rounds=recipe.run.rounds,
            user_updates=updates,
            curve=[(first + number, found["top1"], found["perplexity"]) for number, found in evaluated],
            evaluation=final,
            head_words={} if self.paper.measure else head_words(model, test, rows).to_json(),
            clipped_share=shares,
            seconds=None if trial.is_guarded else round(sum(line["seconds"] for line in diagnostics), 1),
            elsewhere=elsewhere,
            facts=facts,
            series={}
            if trial.is_guarded
            else more
            | {
                # Of the users a round was trained on, as their training went on: before anything was averaged.
                "local loss": [
                    (first + line["round"], line["loss"])
                    for line in diagnostics
                    if line["round"] % window == 0 and line["loss"] is not None
                ]
            },
        )


def _promised(statement: dict[str, Any]) -> dict[str, Any]:
    """Of a private run's statement, what a table shows. The store's total is of all runs on it until then."""
    facts = {key: statement[key] for key in ("epsilon", "delta", "epsilon_store", "declared")}
    facts |= {key: statement["mechanism"][key] for key in ("noise_multiplier", "noise_std")}
    return facts | ({"start": statement["start"]["source"]} if "start" in statement else {})


def _rounds_before(trial: Trial, size: Size) -> int:
    """On the same people: pre-training is not counted."""
    if trial.after is None or trial.after.on != trial.on:
        return 0
    return trial.after.rounds_of(size) + _rounds_before(trial.after, size)


def _told(recipe: Recipe) -> dict[str, Any]:
    """A recipe as it is published: without where the users and public text lie, and the model it began with."""
    sections = recipe.to_dict()
    del sections["data"]
    sections["model"].pop("initial", None)
    sections["local"].pop("public", None)
    return sections
