"""Compare several runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import read_card, read_findings
from sottovoce.commands.stores import held_out_users, store_folder
from sottovoce.data.store import Store
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.breakdown import share_of
from sottovoce.evaluation.figures import Evaluation, coarse_count
from sottovoce.evaluation.head_words import head_words
from sottovoce.evaluation.prediction import count_hits, evaluate, spread, summarise
from sottovoce.evaluation.word_prediction import WORDS, count_words
from sottovoce.files import write_aside
from sottovoce.reporting.compare import MOST_RUNS, Compared, Comparison, render_comparison
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RunFolder, names_of
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


def compare_runs(
    paths: Sequence[str | Path], *, users: int = 1000, internal: bool = False, words: int = WORDS
) -> Comparison:
    """What is known of each run, and how well their models predict the same held-out people: at most `users` of them.

    Who is held out from one store may have trained another run: only runs on the store of the first are measured, and
    those on a store of other tokens with the same people held out. How single users fare is not even computed unless
    it is `internal`.

    Args:
        paths: folders of runs and releases; also bases, by folder or name, at least one run with them.
        users: how many held-out users to measure on; 0 takes all.
        internal: also what is for the owner alone.
        words: at how many words models whose tokens are no words are measured, where runs have different tokens; 0: at
            none.
    """
    if not 1 <= len(paths) <= MOST_RUNS:
        raise SottoError(f"{len(paths)} runs were named; a comparison has 1 to {MOST_RUNS}")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise SottoError("a run is named twice; name each once")
    if users < 0:
        raise SottoError(f"--users {users} must not be negative; 0 measures on all held-out users")
    folders = [ModelFolder.open(path) for path in paths]
    runs = [folder.run for folder in folders if folder.run]
    if not runs:
        raise SottoError(
            f"{folders[0].title} has no users: name a run too, or measure it alone with "
            f"`sotto evaluate {paths[0]} --store STORE`"
        )
    compared = [_read(run, name) for run, name in zip(runs, names_of([run.path for run in runs]), strict=True)]
    first = next((run for run in runs if not run.is_release), runs[0])  # a release does not know its users
    held_out = held_out_users(Recipe.of(first), first)
    if held_out is None:
        text = "There are no held-out users at hand, or they were declared private."
        return Comparison(compared, "", internal, [("Not measured", text)])
    rows = range(min(users, held_out.users) if users else held_out.users)
    searched = words if len({run.tokens for run in compared}) > 1 else 0
    elsewhere, own = [], []
    for place, run in enumerate(runs):
        people = held_out if _of_same_people(run, first) else _in_other_tokens(run, held_out)
        if people is None:
            elsewhere.append(compared[place].name)
        elif read_card(run).own_model:
            own.append(compared[place].name)
        else:
            compared[place] = _measure(run, compared[place], (people, rows), searched, internal=internal)
    notes = _other_lengths(compared)
    if elsewhere:
        text = f"Trained on another store than {compared[runs.index(first)].name}: {', '.join(elsewhere)}. Figures are "
        text += "from the run's own record, on its own held-out users, and cannot be compared with the others."
        notes.append(("Not the same users", text))
    if own:
        text = f"The model is of your own code, which is not loaded here: {', '.join(own)}. Figures are as recorded."
        notes.append(("Not measured again", text))
    about = f"about {coarse_count(len(rows)):,} held-out users of the store “{_store(first).name}”"
    found = {each.title: _measure_base(each, held_out, rows) for each in folders if each.run is None}
    people = about if found or len(elsewhere) + len(own) < len(runs) else ""
    return Comparison(compared, people, internal, notes, found)


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the page of a comparison: an internal one for the owner alone.

    Args:
        comparison: what `compare_runs` found.
        out: the file, which is overwritten.
    """
    write_aside(out, render_comparison(comparison).encode(), private=comparison.internal)


def _read(run: RunFolder, name: str) -> Compared:
    recipe, statement = Recipe.of(run), read_statement(run)
    model = "own" if read_card(run).own_model else recipe.model.kind.replace("_", " ")
    return Compared(
        name=name,
        model=f"{model}, synthetic people" if statement.practice else model,
        statement=statement,
        record=run.record.read(),
        budget=recipe.privacy.epsilon,
        findings=tuple(read_findings(run)),
        tokens=statement.vocabulary.fingerprint,
        tokens_are_words=ModelFolder.open(run.path).tokenizer.is_words,
        baselines=Baselines.of(run),
    )


def _of_same_people(run: RunFolder, first: RunFolder) -> bool:
    """Was a run trained on the store of the first? That of a release was if it is among those charged to the store."""
    if not run.is_release:
        return _store(run) == _store(first)
    return bool(StoreLedger(_store(first) / "ledger.jsonl").spent(read_statement(run).run))


def _store(run: RunFolder) -> Path:
    return store_folder(Recipe.of(run), run).resolve()


def _measure_base(base: ModelFolder, store: Store, rows: range) -> Evaluation:
    if base.tokenizer.fingerprint != store.vocabulary.fingerprint:
        raise SottoError(f"the {base.title} has other words than the store {store.path}; leave it out")
    return evaluate(base.model, store, rows).public


def _in_other_tokens(run: RunFolder, held_out: Store) -> Store | None:
    """The held-out users of a run's own store, in its own tokens; None unless they are the people of `held_out`."""
    own = held_out_users(Recipe.of(run), run)
    if own is None or own.vocabulary.fingerprint == held_out.vocabulary.fingerprint:
        return None
    if own.rows.names is None or held_out.rows.names is None:
        return None
    return own if own.names_fingerprint == held_out.names_fingerprint else None


def _other_lengths(compared: Sequence[Compared]) -> list[tuple[str, str]]:
    """A note where stores cut the same users to texts of different length."""
    lengths = {run.name: run.bytes for run in compared if run.bytes}
    longest = max(lengths.values(), default=0)
    shorter = [f"{name} ({size / longest:.0%})" for name, size in lengths.items() if size < 0.98 * longest]
    if not shorter:
        return []
    text = "Stores cut users to a number of tokens, so these were measured on less of the text than the one with most: "
    return [("Less text", f"{text}{', '.join(shorter)}. Prepare the stores with a larger --tokens-per-user.")]


def _measure(
    run: RunFolder, compared: Compared, people: tuple[Store, range], words: int, *, internal: bool
) -> Compared:
    folder, (store, rows) = ModelFolder.open(run.path), people
    model, vocabulary = folder.model, folder.tokenizer
    if vocabulary.fingerprint != store.vocabulary.fingerprint:
        raise SottoError(f"{run.path} has another vocabulary than its store {store.path}; put the store back")
    counts = count_hits(model, store, rows)
    evaluation = summarise(counts, Text.of(store, rows))
    if words and not vocabulary.is_words:
        searched = count_words(model, store, words, rows=rows)
        evaluation = replace(evaluation, top1_words=searched.top1 / searched.words, words=searched.words)
    return replace(
        compared,
        evaluation=evaluation if internal else evaluation.public,
        bytes=evaluation.bytes,
        within=share_of(counts.top1, counts.targets)[1],
        head_words=head_words(model, store, rows).to_json() if vocabulary.is_words else None,
        spread=spread(counts) if internal else None,
    )
