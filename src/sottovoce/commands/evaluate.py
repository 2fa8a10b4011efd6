"""Evaluate a run, and put its evidence on a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.build.assembly import build_model, load_model
from sottovoce.commands.stores import held_out_users, open_split, store_folder
from sottovoce.data.corpus import is_plain_text
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.evaluation.breakdown import Breakdown, bands_of, count_parts
from sottovoce.evaluation.fine_tuning import FineTuningGain, evaluate_fine_tuning
from sottovoce.evaluation.keystrokes import SUGGESTIONS, KeystrokeSaving, count_keystrokes, saving, spread_of_saving
from sottovoce.evaluation.prediction import Evaluation, spread, summarise
from sottovoce.evaluation.suggestions import suggest
from sottovoce.files import write_aside
from sottovoce.local.fine_tune import FineTune
from sottovoce.models.contract import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.reporting.findings import AUDITS, Finding, findings
from sottovoce.reporting.report import Evidence, render
from sottovoce.reporting.statement import restate, store_total
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import VOCABULARY, RunFolder
from sottovoce.runs.ledger import StoreLedger, read_ledger

# Written for this project; no user's words.
PROMPTS = (
    "good morning ,", "how are", "thank you so", "i am going to the", "do you want to", "see you", "the weather is",
    "what time do",
)  # fmt: skip


class Measured(NamedTuple):
    """How good a model is for some people; `spread` over single users is internal."""

    evaluation: Evaluation
    spread: dict[str, float]
    keystrokes: KeystrokeSaving | None = None
    personalised: FineTuningGain | None = None
    breakdown: Breakdown | None = None
    beside: Beside | None = None


class Beside(NamedTuple):
    """Another run's model, for the same people."""

    evaluation: Evaluation
    breakdown: Breakdown


def evaluate_run(
    path: str | Path, *, corpus: Sequence[str | Path] = (), store: str | Path | Store | None = None,
    split: str = "test", user_field: str = "user", text_field: str = "text", model: LanguageModel | None = None,
    suggestions: int = 0, personalise: bool = False, local_epochs: int | None = None,
    local_learning_rate: float | None = None, beside: str | Path | None = None,
) -> Measured:  # fmt: skip
    """How well a run's model predicts the people of a corpus or a store.

    With `suggestions`, also how many keystrokes a keyboard saves that shows so many. With `personalise`, also what each
    of them gains by training the model on the first half of their text; what is not given is as in the run's recipe.
    `beside` is another run whose model is measured on the same people.
    """
    run = RunFolder.open(path)
    local = Recipe.of(run).local
    released, vocabulary = load_run(run, model)
    training = FineTune(
        epochs=local.epochs if local_epochs is None else local_epochs,
        learning_rate=local.learning_rate if local_learning_rate is None else local_learning_rate,
        batch=local.batch,
        unroll=local.unroll,
        gradient_clip=local.gradient_clip,
        bos=vocabulary.specials.bos,
    )
    other = None if beside is None else _load_beside(run, vocabulary, beside)
    if corpus:
        users = collect(corpus, vocabulary, Grouping(user_field, text_field))
    else:
        recipe = Recipe.of(run)
        users = store if isinstance(store, Store) else _open_users(recipe, run, store, split)
        if users.vocabulary.fingerprint != vocabulary.fingerprint:
            raise SottoError(f"the store {users.path} has another vocabulary than the model; give --corpus instead")
    typed = count_keystrokes(released, users, suggestions) if suggestions else None
    bands = bands_of(users)
    counts, breakdown = count_parts(released, users, bands)
    measured = Measured(
        evaluation=summarise(counts),
        spread=spread(counts) | (spread_of_saving(typed) if typed else {}),
        keystrokes=saving(typed, suggestions) if typed else None,
        breakdown=breakdown,
    )
    if other is not None:
        counts, breakdown = count_parts(other, users, bands)
        measured = measured._replace(beside=Beside(summarise(counts), breakdown))
    if not personalise:
        return measured
    gain = evaluate_fine_tuning(released, users, training, suggestions=suggestions or SUGGESTIONS)
    return measured._replace(personalised=gain, spread=measured.spread | gain.spread)


def _open_users(recipe: Recipe, run: RunFolder, store: str | Path | None, split: str) -> Store:
    return open_split(recipe, run, split) if store is None else Store.open(store, split)


def open_public(
    path: str | Path, text: Sequence[str | Path], *, user_field: str = "user", text_field: str = "text"
) -> Store:
    """Public text in the words of a run: what a store of plain text holds out, files of plain text, or a corpus."""
    run = RunFolder.open(path)
    vocabulary = load_vocabulary(run)
    folders = [each for each in text if Path(each).is_dir()]
    if folders and len(text) > 1:
        raise SottoError(f"{folders[0]} is a folder, and the public text of a store is measured alone; name one")
    if folders:
        return _held_out_text(folders[0], run, vocabulary)
    plain = [is_plain_text(each) for each in text]
    if any(plain) and not all(plain):
        one, other = text[plain.index(True)], text[plain.index(False)]
        raise SottoError(f"{one} is plain text and {other} is not; name public text of one kind")
    return collect(text, vocabulary, Grouping(user_field, text_field, plain_text=all(plain)))


def _held_out_text(folder: str | Path, run: RunFolder, vocabulary: Vocabulary) -> Store:
    store = Store.open(folder, "test")
    if store.people:
        raise SottoError(
            f"{folder} holds people's text, and what is measured as public text may be shown to everybody; measure its "
            f"people with --store, or prepare public text with `sotto prepare --plain-text`"
        )
    if store.vocabulary.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"the store {folder} has another vocabulary than the model; name its text files, or prepare it with "
            f"--vocabulary {run.model / 'vocabulary.txt'} --vocabulary-size {vocabulary.size}"
        )
    if not store.users:
        raise SottoError(
            f"the store {folder} holds nothing out; prepare it from more text or with a larger --test-users, or name "
            f"its text files"
        )
    return store


def _load_beside(run: RunFolder, vocabulary: Vocabulary, beside: str | Path) -> LanguageModel:
    other, theirs = load_run(beside)
    if theirs.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"{run.path} and {beside} have different vocabularies, so that a word of one is no target of the other; "
            f"train both on stores prepared with the same words (sotto prepare --vocabulary)"
        )
    return other


def load_run(path: str | Path | RunFolder, model: LanguageModel | None = None) -> tuple[LanguageModel, Vocabulary]:
    """The model a run ended with, and its vocabulary. A run of your own model needs one to fill."""
    run = path if isinstance(path, RunFolder) else RunFolder.open(path)
    weights = run.load_weights()
    vocabulary = load_vocabulary(run)
    like = model if model is not None else build_model(Recipe.of(run), vocabulary.size)
    return load_model(like, weights), vocabulary


def load_vocabulary(run: RunFolder) -> Vocabulary:
    return Vocabulary.load(run.model_file(VOCABULARY))


def report_run(
    path: str | Path, *, internal: bool = False, model: LanguageModel | None = None,
    baseline: float | None = None, beside: str | Path | None = None,
) -> Path:  # fmt: skip
    """Write `report.html` into a run's folder.

    `beside` is another run to draw next to it; where its words are the same, both are measured on the held-out users of
    the run's store, taken apart by band and by group.
    """
    run = RunFolder.open(path)
    released, vocabulary = load_run(run, model)
    other = RunFolder.open(beside) if beside is not None else None
    recipe = Recipe.of(run).to_dict()
    recipe["data"]["store"] = Path(recipe["data"]["store"]).name  # a page for others tells no paths of this machine
    if "initial" in recipe["model"]:
        recipe["model"]["initial"] = Path(recipe["model"]["initial"]).name
    if "public" in recipe["local"]:
        recipe["local"]["public"] = Path(recipe["local"]["public"]).name
    if not is_of_recipe(run):
        recipe["model"] = {"kind": _code(run)}  # the sizes in the recipe are not those of a caller's own model
    evidence = Evidence(
        name=run.path.resolve().name,
        recipe=recipe,
        statement=_statement_of_today(run),
        record=run.record.read(),
        suggestions=[(prompt, suggest(released, vocabulary, prompt)) for prompt in PROMPTS],
        baseline=baseline,
        diagnostics=run.diagnostics.read() if internal else None,
        findings=tuple(found_so_far(run)),
        costs=_costs(run, other, model) if other else None,
        traffic=run.read_card().get("bytes"),
        beside={"name": other.path.resolve().name, "record": other.record.read()} if other else None,
    )
    target = run.path / "report-internal.html" if internal else run.report_file
    write_aside(target, render(evidence).encode())
    if internal:
        target.chmod(0o600)
    return target


def _statement_of_today(run: RunFolder) -> dict[str, Any]:
    """A run's statement, with what all runs on its store cost by now; a store that never charged it is another one."""
    recipe, told = Recipe.of(run), run.read_statement()
    ledger = store_folder(recipe, run) / "ledger.jsonl"
    if not told["private"]:
        return told
    if not ledger.exists() or told["run"] not in (people := read_ledger(ledger)).runs:
        return restate(told, store_gone=True)
    total = store_total(people.spent, told["delta"], recipe.privacy.accountant)
    charged = sum(count for _, count in StoreLedger(ledger).spent(told["run"]))
    return restate(told, **total, **({} if told.get("charged_to_store") == charged else {"out_of_date": True}))


def found_so_far(run: RunFolder, name: str = "RUN") -> list[Finding]:
    """What is proved of a run, and what its audits found."""
    audits = {audit: run.read_audit(audit) for audit in AUDITS}
    return findings(run.read_statement(), audits, name, digest(run.load_weights()))


def is_of_recipe(run: RunFolder) -> bool:
    """Is its model that of the recipe, not a caller's own?"""
    return "of the recipe" in _code(run)


def _code(run: RunFolder) -> str:
    """What was trained, in words."""
    return run.read_card()["code"]


def _costs(run: RunFolder, other: RunFolder, model: LanguageModel | None) -> dict[str, Any] | None:
    """Both models by band and by group, on people whom neither was promised anything: those held out.

    None where there are none, where the other model is a caller's own, or where no word means the same in both.
    """
    if held_out_users(Recipe.of(run), run) is None or not is_of_recipe(other):
        return None
    if load_vocabulary(run).fingerprint != load_vocabulary(other).fingerprint:
        return None
    measured = evaluate_run(run.path, model=model, beside=other.path)
    assert measured.breakdown is not None
    assert measured.beside is not None
    return measured.breakdown.to_json(measured.beside.breakdown)
