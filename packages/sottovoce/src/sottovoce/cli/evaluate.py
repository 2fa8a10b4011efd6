"""`sotto evaluate`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce.cli.display import (
    print_columns,
    print_json,
    print_rows,
    print_table,
    progress_on_terminal,
    shown_epsilon,
)
from sottovoce.cli.options import (
    AnyModel,
    Delimiter,
    Encoding,
    Flag,
    Json,
    Paths,
    TextField,
    UserField,
    delimiter_of,
    log,
    option,
)
from sottovoce.runs.baselines import token_text
from sottovoce_evidence.errors import SettingError, SottoError, plain_number
from sottovoce_evidence.files import Json as JsonObject

if TYPE_CHECKING:
    from sottovoce.commands.evaluate import Measured
    from sottovoce.commands.private_evaluation import PrivateEvaluation
    from sottovoce.evaluation.figures import Evaluation
    from sottovoce.evaluation.fine_tuning import FineTuningGain
    from sottovoce.evaluation.keystrokes import KeystrokeSaving


@Parameter(name="*")
@dataclass(frozen=True)
class Texts:
    """Whose text a model predicts."""

    corpus: Annotated[Paths, option("Files of text by user.")] = None
    store: Annotated[Path | None, option("A prepared store (default: the one the run was trained on).")] = None
    split: Annotated[str | None, option("Which users of the store: test (default) or train.")] = None
    public: Annotated[
        Paths, option("Public text, in a column of its own: a store of plain text, .txt or .tokens files, or a corpus.")
    ] = None
    user_field: UserField = ("user",)
    text_field: TextField = "text"
    delimiter: Delimiter = None
    encoding: Encoding = None

    def __post_init__(self) -> None:
        if self.corpus and (self.store or self.split):
            raise SottoError("--corpus goes without --store and --split; evaluate on one of them at a time")


@Parameter(name="*")
@dataclass(frozen=True)
class Measures:
    """What is measured in addition to accuracy, perplexity and bits per byte."""

    keystrokes: Annotated[Flag, option("Also the share of keystrokes that the model's suggestions save.")] = False
    suggestions: Annotated[int | None, option("How many words the keyboard suggests (default: 3).")] = None
    words: Annotated[
        int | None,
        option("At how many words whole words are searched, where the tokenizer cuts words (default: 2000; 0: none)."),
    ] = None
    by_band: Annotated[Flag, option("Also by how frequent words are among these users.")] = False
    by_group: Annotated[Flag, option("Also by group of users: amount of text, words outside the vocabulary.")] = False
    personalise: Annotated[
        Flag, option("Also what users gain by training on the first half of their text; measured on the second.")
    ] = False
    epochs: Annotated[int | None, option("Passes of that training (default: local.epochs of the recipe).")] = None
    learning_rate: Annotated[float | None, option("Its learning rate (default: local.learning_rate).")] = None
    internal: Annotated[Flag, option("Also the spread over single users.")] = False

    def __post_init__(self) -> None:
        if self.suggestions is not None and not self.keystrokes:
            raise SottoError(f"--suggestions {self.suggestions} is for --keystrokes; add it")
        if self.suggestions is not None and self.suggestions < 1:
            raise SottoError(f"--suggestions {self.suggestions} must be at least 1: the number of words suggested")
        if self.words is not None and self.words < bool(self.keystrokes):
            least = "at least 1, for --keystrokes" if self.keystrokes else "0 or more"
            raise SottoError(f"--words {self.words} must be {least}: the number of words that are measured")
        if not self.personalise and (self.epochs is not None or self.learning_rate is not None):
            raise SottoError("--epochs and --learning-rate are for --personalise; add it")

    @property
    def shown(self) -> int:
        """Suggestions to count keystrokes with; 0 counts none."""
        from sottovoce.evaluation.keystrokes import SUGGESTIONS

        return (self.suggestions or SUGGESTIONS) if self.keystrokes else 0


@Parameter(name="*")
@dataclass(frozen=True)
class Private:
    """What held-out users pay, so that accuracy may be published."""

    private_epsilon: Annotated[
        float | None, option("Add noise for this ε, charged to the store's held-out users: what may be published.")
    ] = None
    private_delta: Annotated[float | None, option("δ of that noise (default: 1e-6).")] = None
    tokens_per_user: Annotated[int | None, option("First tokens of a user that count; fewer need less noise.")] = None

    def __post_init__(self) -> None:
        given = {"--private-delta": self.private_delta, "--tokens-per-user": self.tokens_per_user}
        named = [name for name, value in given.items() if value is not None]
        if self.private_epsilon is None and named:
            raise SottoError(f"{named[0]} is for --private-epsilon; add that, or leave {named[0]} out")


TEXTS, MEASURES, EXACT = Texts(), Measures(), Private()


def evaluate(
    run: AnyModel,
    *,
    texts: Texts = TEXTS,
    measures: Measures = MEASURES,
    other: Annotated[
        Path | None,
        option("Another model to compare, such as a run without privacy.", "--beside"),
    ] = None,
    private: Private = EXACT,
    json: Json = False,
) -> None:
    """Measure how well a run's model predicts the next word of people it has not seen.

    Figures are exact, and for the owner; with them come those of the base that the run started from. With
    --private-epsilon they have noise, and may be published.

    Examples:
        sotto evaluate run
        sotto evaluate run --keystrokes
    """
    if private.private_epsilon is not None:
        if measures != MEASURES or other or replace(texts, store=None) not in (TEXTS, replace(TEXTS, split="test")):
            alone = "--store, --private-delta, --tokens-per-user and --json"
            raise SottoError(f"--private-epsilon measures held-out users of a store; it goes with {alone} alone")
        _evaluate_privately(run, texts.store, private, json)
        return
    from sottovoce.commands.baselines import list_keystrokes, public_baselines, unigram_keystrokes
    from sottovoce.commands.evaluate import (
        Extra,
        Personalise,
        evaluate_run,
        evaluate_start,
        open_public,
        open_users,
        rounds_so_far,
        start_at_hand,
    )
    from sottovoce.data.grouping import Grouping
    from sottovoce.evaluation.prediction import averages, observed
    from sottovoce.evaluation.word_prediction import WORDS

    if other and texts.public:
        raise SottoError("--beside and --public are two tables; ask for one at a time")
    if texts.split == "train":
        log("warning: exact figures of the people the guarantee protects, for the owner only")
    fields = Grouping(
        texts.user_field, texts.text_field, delimiter=delimiter_of(texts.delimiter), encoding=texts.encoding
    )
    # Both are opened, or refused, before anything is measured, which takes long.
    public = open_public(run, texts.public, fields) if texts.public else None
    users = open_users(run, texts.corpus or (), texts.store, texts.split or "test", fields)
    if measures.words is not None and users.vocabulary.is_words:
        raise SottoError(
            f"--words {measures.words}: each word of {run} is one token, and all are measured; leave it out"
        )
    training = Personalise(measures.epochs, measures.learning_rate) if measures.personalise else None
    extra = Extra(measures.shown, WORDS if measures.words is None else measures.words, training)
    found_public = average = None
    with progress_on_terminal(f"evaluate {run.name}", quiet=json) as step, observed(step):
        found = evaluate_run(run, users, extra=extra, other=other)
        if public is not None:
            found_public = evaluate_run(run, public, extra=replace(extra, personalise=None))
            average = averages([found.evaluation, found_public.evaluation])
        started = None if other else evaluate_start(run, users, extra)
    baselines = public_baselines(users, run)
    typed = {}
    if measures.shown:
        found_typed = {
            "unigram": unigram_keystrokes(users, run, measures.shown),
            "word_list": list_keystrokes(users, run, measures.shown),
        }
        typed = {name: saved for name, saved in found_typed.items() if saved}
    spread, parts = found.spread if measures.internal else {}, _parts(found, measures)
    if json:
        answer = {**_json(found), **parts, **spread}
        without_training: JsonObject = {
            "token": users.vocabulary.text_of(baselines.token),
            "constant": baselines.constant.to_json(),
        }
        if baselines.unigram:
            without_training["unigram"] = baselines.unigram.to_json()
        for name, saved in typed.items():
            without_training[name] = {**without_training.get(name, {}), **saved.to_json()}
        if started:
            without_training |= {"start": started[0], "start_model": _json(started[1])}
        answer["baselines"] = without_training
        if found_public and average:
            answer["public"] = _json(found_public)
            answer |= {name: value if math.isfinite(value) else None for name, value in average.items()}
        print_json(answer)
        return
    columns = {run.name: _column(found.evaluation, found.keystrokes)}
    columns[run.name] |= {f"{name.replace('_', ' ')} over users": f"{value:.2%}" for name, value in spread.items()}
    if found_public and average:
        columns[run.name] |= {name.replace("_", " "): f"{value:.4g}" for name, value in average.items()}
        columns["public"] = _column(found_public.evaluation, found_public.keystrokes)
    if other and found.other:
        columns[other.name] = _column(found.other.evaluation)
    if started:
        columns[f"the start, {started[0]}"] = _column(started[1].evaluation, started[1].keystrokes)
    if baselines.unigram or "unigram" in typed:
        columns["a unigram"] = _column(baselines.unigram, typed.get("unigram"))
    if "word_list" in typed:
        columns["the word list"] = _column(None, typed["word_list"])
    constant = {"top-1": f"{baselines.constant.top1:.2%}"}
    columns[f"always {token_text(users.vocabulary.text_of(baselines.token))}"] = constant
    print_columns(f"Evaluation of {run}{rounds_so_far(run)}", columns)
    if not other and not started and (initial := start_at_hand(run)):
        print(f"what it started from, on the same users: sotto evaluate {run} --beside {initial}")
    _print_parts(parts, run.name, other.name if other else "")
    if found.personalised:
        print_columns("The second half of each user's text", _gain_columns(found.personalised))


_PRIVATE_OPTIONS = {
    "epsilon": "--private-epsilon",
    "delta": "--private-delta",
    "tokens_per_user": "--tokens-per-user",
}


def _evaluate_privately(run: Path, store: Path | None, private: Private, json: bool) -> None:
    from sottovoce.commands.private_evaluation import DELTA, evaluate_privately
    from sottovoce.evaluation.prediction import observed

    assert private.private_epsilon is not None
    delta = DELTA if private.private_delta is None else private.private_delta
    try:
        with progress_on_terminal(f"evaluate {run.name}", quiet=json) as step, observed(step):
            found = evaluate_privately(
                run, store, epsilon=private.private_epsilon, delta=delta, tokens_per_user=private.tokens_per_user
            )
    except SettingError as error:
        raise SottoError(error.text(_PRIVATE_OPTIONS)) from None
    if json:
        print_json({"private": True, **found.to_json()})
        return
    print_table(f"Private evaluation of {run}", _private_rows(found))
    if found.accuracy.is_hidden:
        print("The noise hides the accuracy: it needs more held-out users, a larger ε, or fewer --tokens-per-user.")
    if found.kept:
        print("Paid for before: this is the answer of then, and nothing was charged.")
    print("These figures may be published, with their ε and δ. Held-out users are others than those trained on.")
    if found.is_undone:
        log(
            "warning: the held-out users of this store were declared exact: a release has exact figures of them, which "
            "undo what they paid for. Prepare the store with --held-out private to protect them"
        )


def _private_rows(found: PrivateEvaluation) -> dict[str, str]:
    accuracy, terms = found.accuracy, found.accuracy.terms

    def points(share: float | None, half: float | None) -> str:
        return "hidden" if share is None or half is None else f"{share:.2%} ± {100 * half:.2f}"

    rows = {
        "top-1 of people like them (95%)": points(accuracy.top1, accuracy.top1_within),
        "top-1 of these people": points(accuracy.top1, accuracy.top1_noise),
        "top-3 of these people": points(accuracy.top3, accuracy.top3_noise),
        "top-5 of these people": points(accuracy.top5, accuracy.top5_noise),
        "perplexity, losses cut off": "hidden",
        "targets, users (noisy)": f"{accuracy.targets:,}, {accuracy.users:,}",
        "tokens of a user, at most": f"{terms.tokens_per_user:,}",
        "ε for a held-out user": f"{shown_epsilon(terms.epsilon)} at δ = {plain_number(terms.delta)}",
        f"ε of all private evaluations ({found.evaluations:,})": shown_epsilon(found.epsilon_held_out),
    }
    if accuracy.perplexity is not None:
        low, high = f"{accuracy.perplexity_low:.4g}", f"{accuracy.perplexity_high:.4g}"
        rows["perplexity, losses cut off"] = f"{accuracy.perplexity:.4g} ({low} to {high}), at {terms.loss_bound:.3g}"
    return rows


def _json(found: Measured) -> JsonObject:
    return {
        **found.evaluation.to_json(),
        **(found.keystrokes.to_json() if found.keystrokes else {}),
        **({"personalised": found.personalised.to_json()} if found.personalised else {}),
        **({"beside": found.other.evaluation.to_json()} if found.other else {}),
    }


def _parts(found: Measured, measures: Measures) -> JsonObject:
    parts = found.breakdown.to_json(found.other.breakdown if found.other else None)
    asked = {"by_band": measures.by_band, "by_group": measures.by_group}
    return {name: parts[name] for name, wanted in asked.items() if wanted}


def _print_parts(parts: JsonObject, run: str, other: str) -> None:
    tables = {"words": parts["by_band"]} if "by_band" in parts else {}
    tables |= parts.get("by_group", {})
    if parts.get("by_group") == {}:
        print("too few users to put them into groups: no group may have fewer than ten")
    for name, rows in tables.items():
        print_rows(f"By {name}", [_part_row(row, run, other) for row in rows])


def _part_row(row: JsonObject, run: str, other: str) -> dict[str, str]:
    shown = {"": row["part"], "users": f"{row['users']:,}", "of all\ntargets": f"{row['share']:.1%}"}
    if not other:
        return shown | {"top-1": f"{row['top1']:.2%}", "top-3": f"{row['top3']:.2%}"}
    lost = f"{100 * row['lost']:.2f} ± {100 * row['within']:.2f}"
    both = {f"top-1\n{run}": f"{row['top1']:.2%}", f"top-1\n{other}": f"{row['beside']['top1']:.2%}"}
    return shown | both | {"points lost": lost}


def _gain_columns(gain: FineTuningGain) -> dict[str, dict[str, str]]:
    def column(evaluation: Evaluation, keystrokes: KeystrokeSaving | None) -> list[str]:
        saved = [f"{keystrokes.keystroke_saving_in_vocabulary:.2%}"] if keystrokes else []
        return [f"{evaluation.top1:.2%}", f"{evaluation.perplexity:.4g}", *saved]

    columns = {
        "as released": column(gain.before, gain.keystrokes_before),
        "trained on the first half": column(gain.after, gain.keystrokes_after),
        "users who gain": [f"{share:.1%}" for share in gain.gained.values()],
    }
    names = ("top-1", "perplexity per token", "keystroke saving in vocabulary")[: len(gain.gained)]
    return {title: dict(zip(names, values, strict=True)) for title, values in columns.items()}


def _column(evaluation: Evaluation | None, typed: KeystrokeSaving | None = None) -> dict[str, str]:
    """The figures of a model or a baseline."""
    rows = {}
    if evaluation is not None:
        bits = evaluation.bits_per_byte
        rows = {name: f"{getattr(evaluation, name.replace('-', '')):.2%}" for name in ("top-1", "top-3", "top-5")}
        rows["top-1 over words"] = _top1_words(evaluation)
        rows["bits per byte"] = "lengths of unknown words not kept" if bits is None else f"{bits:.3f}"
        rows["perplexity per token"] = f"{evaluation.perplexity:.4g}"
        if evaluation.oov_rate is not None:
            rows["perplexity in vocabulary"] = f"{evaluation.perplexity_in_vocabulary:.4g}"
            rows["outside the vocabulary"] = f"{evaluation.oov_rate:.2%}"
        rows |= {"targets": f"{evaluation.targets:,}", "users": f"{evaluation.users:,}"}
    if typed is None:
        return rows
    saved = keystrokes = characters = "lengths of unknown words not kept"
    if typed.keystroke_saving is not None:
        saved, keystrokes, characters = (
            f"{typed.keystroke_saving:.2%}",
            f"{typed.keystrokes:,}",
            f"{typed.characters:,}",
        )
    return rows | {
        f"keystroke saving, {typed.suggestions} suggestions": saved,
        "keystroke saving in vocabulary": f"{typed.keystroke_saving_in_vocabulary:.2%}",
        "keystrokes": keystrokes,
        "characters": characters,
    }


def _top1_words(evaluation: Evaluation) -> str:
    """With the half-width of its 95% confidence interval (Agresti and Coull), where some words stand for all."""
    share, words = evaluation.top1_words, evaluation.words
    if share is None:
        return "not measured (--words 0)"
    if words is None:
        return f"{share:.2%}"
    middle = (share * words + 2) / (words + 4)
    return f"{share:.2%} ± {196 * math.sqrt(middle * (1 - middle) / (words + 4)):.2f}, at {words:,} words"
