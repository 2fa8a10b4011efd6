"""Evaluate a run, and put its evidence on a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sottovoce.assembly import build_model, load_model
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.evaluation.keystrokes import SUGGESTIONS, KeystrokeSaving, count_keystrokes, saving, spread_of_saving
from sottovoce.evaluation.prediction import Evaluation, count_hits, spread, summarise
from sottovoce.evaluation.suggestions import suggest
from sottovoce.files import write_aside
from sottovoce.jobs.personalising import Personalised, evaluate_personalised
from sottovoce.jobs.population import open_split
from sottovoce.local.personalise import Personalise
from sottovoce.models.language_model import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.reporting.report import Evidence, render
from sottovoce.runs.folder import RunFolder

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
    personalised: Personalised | None = None


def evaluate_run(
    path: str | Path, *, corpus: Sequence[str | Path] = (), store: str | Path | None = None, split: str = "test",
    user_field: str = "user", text_field: str = "text", model: LanguageModel | None = None,
    suggestions: int = 0, personalise: bool = False, local_epochs: int | None = None,
    local_learning_rate: float | None = None,
) -> Measured:  # fmt: skip
    """How well a run's model predicts the people of a corpus or a store.

    With `suggestions`, also how many keystrokes a keyboard saves that shows so many. With `personalise`, also what each
    of them gains by training the model on the first half of their text; what is not given is as in the run's recipe.
    """
    run = RunFolder.open(path)
    local = Recipe.load(run.recipe_file).local
    training = Personalise(
        epochs=local.epochs if local_epochs is None else local_epochs,
        learning_rate=local.learning_rate if local_learning_rate is None else local_learning_rate,
        batch=local.batch,
        unroll=local.unroll,
    )
    released, vocabulary = load_run(run, model)
    if corpus:
        users = collect(corpus, vocabulary, user_field=user_field, text_field=text_field)
    else:
        recipe = Recipe.load(run.recipe_file)
        users = Store.open(store, split) if store is not None else open_split(recipe, run, split)
        if users.vocabulary.fingerprint != vocabulary.fingerprint:
            raise SottoError(f"the store {users.path} has another vocabulary than the model; give --corpus instead")
    typed = count_keystrokes(released, users, suggestions) if suggestions else None
    counts = count_hits(released, users)
    measured = Measured(
        evaluation=summarise(counts),
        spread=spread(counts) | (spread_of_saving(typed) if typed else {}),
        keystrokes=saving(typed, suggestions) if typed else None,
    )
    if not personalise:
        return measured
    gain = evaluate_personalised(released, users, training, suggestions=suggestions or SUGGESTIONS)
    return measured._replace(personalised=gain, spread=measured.spread | gain.spread)


def load_run(path: str | Path | RunFolder, model: LanguageModel | None = None) -> tuple[LanguageModel, Vocabulary]:
    """The model a run ended with, and its vocabulary. A run of your own model needs one to fill."""
    run = path if isinstance(path, RunFolder) else RunFolder.open(path)
    weights = run.load_weights()
    vocabulary = Vocabulary.load(run.model / "vocabulary.txt")
    like = model if model is not None else build_model(Recipe.load(run.recipe_file), vocabulary.size)
    return load_model(like, weights), vocabulary


def report_run(
    path: str | Path, *, internal: bool = False, model: LanguageModel | None = None,
    baseline: float | None = None, beside: str | Path | None = None,
) -> Path:  # fmt: skip
    """Write `report.html` into a run's folder. `beside` is another run to draw next to it."""
    run = RunFolder.open(path)
    released, vocabulary = load_run(run, model)
    other = RunFolder.open(beside) if beside is not None else None
    recipe = Recipe.load(run.recipe_file).to_dict()
    recipe["data"]["store"] = Path(recipe["data"]["store"]).name  # a page for others tells no paths of this machine
    if "initial" in recipe["model"]:
        recipe["model"]["initial"] = Path(recipe["model"]["initial"]).name
    if "public" in recipe["local"]:
        recipe["local"]["public"] = Path(recipe["local"]["public"]).name
    code = json.loads((run.model / "card.json").read_text(encoding="utf-8"))["code"]
    if "of the recipe" not in code:
        recipe["model"] = {"kind": code}  # the sizes in the recipe are not those of a caller's own model
    evidence = Evidence(
        name=run.path.resolve().name,
        recipe=recipe,
        statement=run.read_statement(),
        record=run.record.read(),
        suggestions=[(prompt, suggest(released, vocabulary, prompt)) for prompt in PROMPTS],
        baseline=baseline,
        diagnostics=run.diagnostics.read() if internal else None,
        tails=run.read_audit("tails") if internal else None,
        beside={"name": other.path.resolve().name, "record": other.record.read()} if other else None,
    )
    target = run.path / "report-internal.html" if internal else run.report_file
    write_aside(target, render(evidence).encode())
    if internal:
        target.chmod(0o600)
    return target
