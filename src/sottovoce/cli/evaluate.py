"""`sotto evaluate`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_columns, print_json, print_rows, print_table
from sottovoce.cli.options import Flag, Json, Paths, Run, TextField, UserField, log
from sottovoce.errors import SottoError
from sottovoce.files import Json as JsonObject

if TYPE_CHECKING:
    from sottovoce.commands.evaluate import Measured
    from sottovoce.evaluation.fine_tuning import FineTuningGain
    from sottovoce.evaluation.keystrokes import KeystrokeSaving
    from sottovoce.evaluation.prediction import Evaluation


@Parameter(name="*")
@dataclass(frozen=True)
class Texts:
    """Whose text a model predicts.

    Parameters
    ----------
    corpus
        Files of text by user.
    store
        A prepared store instead (default: the one the run was trained on).
    split
        Which users of the store: test (default) or train.
    public
        Public text: a column next to the users', and the average perplexity of both. The folder of a store made with
        `sotto prepare --plain-text` (what it holds out), files of plain text (.txt, .tokens), or a corpus.
    """

    corpus: Paths = None
    store: Path | None = None
    split: str | None = None
    public: Paths = None
    user_field: UserField = "user"
    text_field: TextField = "text"

    def __post_init__(self) -> None:
        if self.corpus and (self.store or self.split):
            raise SottoError("--corpus goes without --store and --split; evaluate on one of them at a time")


@Parameter(name="*")
@dataclass(frozen=True)
class Measures:
    """What is measured, besides accuracy and perplexity.

    Parameters
    ----------
    keystrokes
        Also the share of keystrokes that a keyboard with the model's suggestions saves.
    suggestions
        How many words that keyboard shows (default: 3).
    by_band
        Also by how frequent words are among these users.
    by_group
        Also by group of users: by amount of text, and by words outside the vocabulary.
    personalise
        Also what users gain who train the model on the first half of their own text: both measured on the second.
    epochs
        Passes of that training (default: local.epochs of the recipe).
    learning_rate
        Its learning rate (default: local.learning_rate of the recipe).
    internal
        Also the spread over single users.
    """

    keystrokes: Flag = False
    suggestions: int | None = None
    by_band: Flag = False
    by_group: Flag = False
    personalise: Flag = False
    epochs: int | None = None
    learning_rate: float | None = None
    internal: Flag = False

    def __post_init__(self) -> None:
        if self.suggestions is not None and not self.keystrokes:
            raise SottoError(f"--suggestions {self.suggestions} is for --keystrokes; add it")
        if self.suggestions is not None and self.suggestions < 1:
            raise SottoError(
                f"--suggestions {self.suggestions} must be at least 1; it is how many words the keyboard shows"
            )
        if not self.personalise and (self.epochs is not None or self.learning_rate is not None):
            raise SottoError("--epochs and --learning-rate are for --personalise; add it")

    @property
    def shown(self) -> int:
        """Suggestions to count keystrokes with; 0 counts none."""
        from sottovoce.evaluation.keystrokes import SUGGESTIONS

        return (self.suggestions or SUGGESTIONS) if self.keystrokes else 0


TEXTS, MEASURES = Texts(), Measures()


def evaluate(
    run: Run,
    *,
    texts: Texts = TEXTS,
    measures: Measures = MEASURES,
    other: Annotated[Path | None, Parameter(name="--beside")] = None,
    json: Json = False,
) -> None:
    """Measure how well a run's model predicts the next word of people it has not seen.

    Parameters
    ----------
    other
        Another run, such as one without privacy, for the same users: what this one loses against it.
    """
    from sottovoce.commands.evaluate import Measured, evaluate_run, open_public
    from sottovoce.evaluation.prediction import averages

    if other and texts.public:
        raise SottoError("--beside and --public are two tables; ask for one at a time")
    split = texts.split or "test"
    if split == "train":
        log("warning: exact figures of the people the guarantee protects, for the owner only")
    fields = {"user_field": texts.user_field, "text_field": texts.text_field}
    # Opened, or refused, before the users' evaluation, which takes long.
    public = open_public(run, texts.public, **fields) if texts.public else None
    users = evaluate_run(
        run,
        corpus=texts.corpus or (),
        store=texts.store,
        split=split,
        suggestions=measures.shown,
        beside=other,
        personalise=measures.personalise,
        local_epochs=measures.epochs,
        local_learning_rate=measures.learning_rate,
        **fields,
    )
    found = {"users": users}
    if public is not None:
        found["public"] = evaluate_run(run, store=public, suggestions=measures.shown)
    average = averages([one.evaluation for one in found.values()])
    spread = users.spread if measures.internal else {}
    parts = _parts(users, measures)
    if json:
        answer = {**_json(users), **parts, **spread}
        if public is not None:
            answer |= {"public": _json(found["public"])}
            answer |= {name: value if math.isfinite(value) else None for name, value in average.items()}
        print_json(answer)
        return
    columns = {name: _rows(one) for name, one in found.items()}
    columns["users"] |= {f"{name.replace('_', ' ')} over users": f"{value:.2%}" for name, value in spread.items()}
    if public is not None:
        columns["users"] |= {name.replace("_", " "): f"{value:.4g}" for name, value in average.items()}
        print_columns(f"Evaluation of {run}", columns)
    elif other and users.other:
        columns = {run.name: columns["users"], other.name: _rows(Measured(users.other.evaluation, {}))}
        print_columns("Evaluation", columns)
    else:
        print_table(f"Evaluation of {run}", columns["users"])
    _print_parts(parts, run.name, other.name if other else "")
    if users.personalised:
        print_columns("The second half of each user's text", _gain_columns(users.personalised))


def _json(measured: Measured) -> JsonObject:
    keystrokes, gain = measured.keystrokes, measured.personalised
    return {
        **measured.evaluation.to_json(),
        **(keystrokes.to_json() if keystrokes else {}),
        **({"personalised": gain.to_json()} if gain else {}),
        **({"beside": measured.other.evaluation.to_json()} if measured.other else {}),
    }


def _parts(measured: Measured, measures: Measures) -> JsonObject:
    if measured.breakdown is None:
        return {}
    parts = measured.breakdown.to_json(measured.other.breakdown if measured.other else None)
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
    return shown | {
        f"top-1\n{run}": f"{row['top1']:.2%}",
        f"top-1\n{other}": f"{row['beside']['top1']:.2%}",
        "points lost": f"{100 * row['lost']:.2f} ± {100 * row['within']:.2f}",
    }


def _gain_columns(gain: FineTuningGain) -> dict[str, dict[str, str]]:
    def column(evaluation: Evaluation, keystrokes: KeystrokeSaving) -> dict[str, str]:
        saved = keystrokes.keystroke_saving_in_vocabulary
        return {
            "top-1": f"{evaluation.top1:.2%}",
            "perplexity": f"{evaluation.perplexity:.4g}",
            "keystroke saving in vocabulary": f"{saved:.2%}",
        }

    return {
        "as released": column(gain.before, gain.keystrokes_before),
        "trained on the first half": column(gain.after, gain.keystrokes_after),
        "users who gain": {
            "top-1": f"{gain.gained['top1']:.1%}",
            "perplexity": f"{gain.gained['perplexity']:.1%}",
            "keystroke saving in vocabulary": f"{gain.gained['keystrokes']:.1%}",
        },
    }


def _rows(measured: Measured) -> dict[str, str]:
    evaluation, keystrokes = measured.evaluation, measured.keystrokes
    rows = {
        "top-1, top-3, top-5": f"{evaluation.top1:.2%}, {evaluation.top3:.2%}, {evaluation.top5:.2%}",
        "top-1 over words": f"{evaluation.top1_words:.2%}",
        "perplexity": f"{evaluation.perplexity:.4g}",
        "perplexity in vocabulary": f"{evaluation.perplexity_in_vocabulary:.4g}",
        "outside the vocabulary": f"{evaluation.oov_rate:.2%}",
        "targets, users": f"{evaluation.targets:,}, {evaluation.users:,}",
    }
    return rows | (_keystroke_rows(keystrokes) if keystrokes else {})


def _keystroke_rows(keystrokes: KeystrokeSaving) -> dict[str, str]:
    saving, typed, characters = keystrokes.keystroke_saving, keystrokes.keystrokes, keystrokes.characters
    unknown = "lengths of unknown words not kept"
    return {
        f"keystroke saving, {keystrokes.suggestions} suggestions": unknown if saving is None else f"{saving:.2%}",
        "keystroke saving in vocabulary": f"{keystrokes.keystroke_saving_in_vocabulary:.2%}",
        "keystrokes, characters": unknown if saving is None else f"{typed:,}, {characters:,}",
    }
