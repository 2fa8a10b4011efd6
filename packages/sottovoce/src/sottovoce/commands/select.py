"""Train several private runs, of a random and secret number, and release the best of them alone."""

from __future__ import annotations

import math
import os
import secrets as os_entropy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.commands.evaluate import Extra, evaluate_run, public_text
from sottovoce.commands.initial_model import with_sizes
from sottovoce.commands.new_run import Context, open_run
from sottovoce.commands.release import AUDITS, BY_DEFAULT, run_faults
from sottovoce.commands.release_folder import Publication, ReleaseFolder
from sottovoce.commands.stores import has_own_store, with_absolute_paths
from sottovoce.commands.train import train
from sottovoce.data.store import Store, store_facts
from sottovoce.data.tokenizer_files import find_tokenizer
from sottovoce.files import check_empty, made_aside, work_folder, write_aside
from sottovoce.privacy.kinds import KINDS
from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs.card import Card
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import StoreLedger
from sottovoce.runs.owner_key import owner_key
from sottovoce.runs.payments import planned_rounds
from sottovoce.runs.record import Lines
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting import BestOfRuns, Event, rounded_up
from sottovoce_evidence.accounting.selection import draw_runs
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Facts
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.release import check_work
from sottovoce_evidence.signature import fingerprint
from sottovoce_evidence.statement import AuditOutcome, ChosenFacts, Evidence, Statement, state

SCORE = "the perplexity of public text"
DISTRIBUTIONS = ("logarithmic", "geometric")  # with one run at least
_LEDGER = ("ledger.head", "ledger.jsonl")  # in this order: a line that is written meanwhile is after the head
_NOT_LINKED = (*_LEDGER, "ledger.charged", "evaluations")


@dataclass(frozen=True)
class Choice:
    """How many runs there are on average, how their number is drawn, and what is tried."""

    runs: float = 5.0
    distribution: str = "logarithmic"
    tried: tuple[tuple[str, ...], ...] = ()  # settings, section.key=value; each run has one of these, at random

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            known = " or ".join(DISTRIBUTIONS)
            raise SettingError(f"{{distribution!r}} must be {known}", distribution=self.distribution)


@dataclass(frozen=True)
class Selected(Facts):
    """The model that was released. How many others there were is not known to anyone."""

    out: str
    epsilon: float
    delta: float
    chosen: ChosenFacts
    expected_runs: float
    distribution: str
    perplexity: float  # of the public text
    files: tuple[str, ...]
    check: str  # the command by which anyone with the released folder checks it

    def __repr__(self) -> str:
        best = f"best of {self.expected_runs:g} runs on average"
        return f"<Selected: {self.out}, {best}, ε = {rounded_up(self.epsilon)}>"


FIVE = Choice()


def select_best(
    recipe: Recipe | str | Path,
    out: str | Path,
    public: Sequence[str | Path],
    *,
    choice: Choice = FIVE,
    publication: Publication = BY_DEFAULT,
) -> Selected:
    """Train a recipe several times, and release the model that predicts public text best.

    Guarantee: the store is charged for the best of several runs, on disk, before their number is drawn. Nothing
    of the other runs is kept or shown, nor how many there were.

    Args:
        recipe: a recipe, the path of one, or the name of a shipped one; private, with secrets from entropy.
        out: the folder of the release to make.
        public: text that is public, to choose by: as for `sotto evaluate --public`.
        choice: how many runs on average, and the settings to try.
        publication: licence, language and key of the release.
    """
    out = Path(out)
    check_empty(out)
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    recipes = _recipes(_checked(recipe), choice)
    people = Path(recipes[0].data.store)
    # Its name is taken before the charge, or another process could have it at the end.
    with _telling() as charged, made_aside(out) as folder, work_folder(out.resolve().parent, out.name) as work:
        text = public_text(public, find_tokenizer(people))
        event = BestOfRuns(float(choice.runs), choice.distribution, _charges_of(recipes, work))
        check_work([event.to_json()])  # or nobody could verify what was paid for
        key = owner_key(publication.key)
        # From here on it is paid for. An owner who stops now has seen nothing, and gets nothing back.
        name = os_entropy.token_hex(6)
        StoreLedger(people / "ledger.jsonl").charge(name, "the best of several runs", event, 1)
        best_of = f"the best of {event.expected_runs:g} runs"
        charged.append(f"{people} was charged for {best_of}, and is charged again by another try")
        runs = draw_runs(event.expected_runs, event.distribution)
        best, score = _best(recipes, text, runs, work, out.resolve().name)
        if faults := list(run_faults(best)):
            raise SottoError(f"the best run cannot be released: {'; '.join(faults)}")
        copy = Path(Recipe.of(best).data.store)
        for file in _LEDGER:  # the total is that of the people, and the run alone is not in it
            shutil.copyfile(people / file, copy / file)
        chosen = ChosenFacts(len(recipes), SCORE, name)
        statement = _restate(best, event, chosen, StoreLedger(copy / "ledger.jsonl"))
        draft = ReleaseFolder(best, out, publication, fingerprint(key.public_key()))
        draft.publish(folder, tuple(AuditOutcome(name, "not run") for name in AUDITS), key)
        Secrets.erase(best.secrets)
    check = f"sotto verify {out} --signer {draft.signer}"
    drawn = event.expected_runs, event.distribution
    return Selected(str(out), statement.epsilon, statement.delta, chosen, *drawn, score, draft.files, check)


@contextmanager
def _telling() -> Iterator[list[str]]:
    """An error says what was charged before it."""
    charged: list[str] = []
    try:
        yield charged
    except (OSError, SottoError) as error:
        if not charged:
            raise
        raise SottoError(f"{error}; {charged[0]}") from error


def _checked(recipe: Recipe) -> Recipe:
    recipe = with_sizes(with_absolute_paths(recipe))
    if recipe.privacy.mode != "private" or recipe.privacy.secrets != "entropy":
        needed = "privacy.mode = 'private' and privacy.secrets = 'entropy'"
        raise SottoError(f"the best of several runs is released, which needs {needed}; set both")
    if has_own_store(recipe) or store_facts(Path(recipe.data.store))["practice"]:
        raise SottoError("data.store is synthetic, and there is nothing to release; name a folder of `sotto prepare`")
    if recipe.audit.users or recipe.audit.secrets:
        raise SottoError("canaries would be published with the one run, and are of all; leave [audit] out")
    return recipe


def _recipes(recipe: Recipe, choice: Choice) -> list[Recipe]:
    """What is tried: each may be released, is of the same people, and measures nothing on those held out."""
    recipes = [_checked(recipe.with_settings(settings)) for settings in choice.tried] or [recipe]
    if any(each.data.store != recipe.data.store for each in recipes):
        raise SottoError("what is tried changes data.store, and one store is charged; leave it alone")
    return [each.replace(run={"evaluate_every": 0}) for each in recipes]


def _on_copy(recipe: Recipe, folder: Path) -> Recipe:
    """The same recipe on the same people under another ledger: a run that nobody may see is charged there."""
    store = Path(recipe.data.store)
    return recipe.replace(data={"store": str(_linked(store, folder / "people" / store.name))})


def _linked(store: Path, copy: Path) -> Path:
    copy.mkdir(parents=True)
    for path in store.iterdir():
        if path.name not in _NOT_LINKED:
            os.symlink(path.resolve(), copy / path.name)
    for name in _LEDGER:
        if (store / name).exists():
            shutil.copyfile(store / name, copy / name)
    return copy


def _charges_of(recipes: Sequence[Recipe], work: Path) -> tuple[tuple[Event, int], ...]:
    """What one run is charged: the same, whatever is tried."""
    found = []
    for recipe in recipes:
        recipe = _on_copy(recipe, work / "planned")
        assembly = open_run(with_sizes(recipe), RunFolder(work / "planned/run"), Context(), new=True).assembly
        planned = planned_rounds(assembly.budget, assembly.recipe.privacy.noise_multiplier)
        found.append(tuple(assembly.algorithm.mechanism.events(planned)))
        shutil.rmtree(work / "planned")
    if any(charges != found[0] for charges in found):
        raise SottoError("what is tried changes what a run is charged; try settings that leave rounds and noise alone")
    return found[0]


def _best(recipes: Sequence[Recipe], public: Store, runs: int, work: Path, name: str) -> tuple[RunFolder, float]:
    """Train `runs` runs, each with settings drawn at random, and keep the one with the best score.

    Guarantee: at any time there are two runs at most on disk, and nothing tells how many were before them: each has a
    folder and a ledger of its own, which go with it.
    """
    best: tuple[RunFolder, float] | None = None
    for _ in range(runs):
        folder = work / os_entropy.token_hex(8)  # that says nothing of the place of a run among others
        path = folder / "run" / name
        train(_on_copy(os_entropy.choice(recipes), folder), path, progress=False)
        score = evaluate_run(path, public, extra=Extra(words=0)).evaluation.perplexity
        score = score if math.isfinite(score) else math.inf
        if best is None or score < best[1]:
            worse, best = best, (RunFolder.open(path), score)
            path = worse[0].path if worse else None
        if path is not None:
            Secrets.erase(RunFolder(path).secrets)
            shutil.rmtree(path.parents[1])
    assert best is not None  # there is one run at least
    return best


def _restate(run: RunFolder, event: BestOfRuns, chosen: ChosenFacts, people: StoreLedger) -> Statement:
    """Write the statement and the record of a run again, as those of the best of several."""
    recipe, stated = Recipe.of(run), read_statement(run)
    before = Evidence(recipe, stated.charged, stated.facts).before
    statement = state(Evidence(recipe, [*before, (event, 1)], replace(stated.facts, chosen=chosen), KINDS))
    statement = with_store_total(statement, people.spent())
    run.save_statement(statement.to_json(), Card.from_json(run.read_card()).to_json())
    lines = [{**line, "epsilon": statement.epsilon} for line in run.record.read()]
    write_aside(run.record.path, b"")
    for line in lines:
        Lines(run.record.path).append(line)
    return statement
