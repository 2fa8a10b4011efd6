"""`sotto evaluate`, `sotto report` and `sotto bench`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_beside, print_json, print_rows, print_table

if TYPE_CHECKING:
    from sottovoce.commands.bench import Measurement
    from sottovoce.commands.evaluate import Measured
    from sottovoce.evaluation.fine_tuning import Personalised
    from sottovoce.evaluation.keystrokes import KeystrokeSaving
    from sottovoce.evaluation.prediction import Evaluation

Flag = Annotated[bool, Parameter(negative=())]
Paths = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]


def evaluate(
    run: Path,
    *,
    corpus: Paths = None,
    store: Path | None = None,
    split: str | None = None,
    public: Paths = None,
    keystrokes: Flag = False,
    suggestions: int | None = None,
    by_band: Flag = False,
    by_group: Flag = False,
    beside: Path | None = None,
    personalise: Flag = False,
    epochs: int | None = None,
    learning_rate: float | None = None,
    user_field: str = "user",
    text_field: str = "text",
    internal: Flag = False,
    json: Flag = False,
) -> None:
    """Measure how well a run's model predicts the next word of people it has not seen.

    Parameters
    ----------
    run
        Folder of a run.
    corpus
        Files of text by user.
    store
        A prepared store instead (default: the one the run was trained on).
    split
        Which users of the store: test (default) or train.
    public
        Public text: a column beside the users', and the average perplexity of both. The folder of a store made with
        `sotto prepare --plain-text` (what it holds out), files of plain text (.txt, .tokens), or a corpus.
    keystrokes
        Also the share of keystrokes that a keyboard with the model's suggestions saves.
    suggestions
        How many words that keyboard shows (default: 3).
    by_band
        Also by how frequent words are among these users.
    by_group
        Also by group of users: by amount of text, and by words outside the vocabulary.
    beside
        Another run, say one without privacy, for the same users: what this one loses against it.
    personalise
        Also what users gain who train the model on the first half of their own text: both measured on the second.
    epochs
        Passes of that training (default: local.epochs of the recipe).
    learning_rate
        Its learning rate (default: local.learning_rate of the recipe).
    user_field
        Field of the corpus that names the user.
    text_field
        Field of the corpus that holds the text.
    internal
        Also the spread over single users.
    json
        One JSON object.
    """
    from sottovoce.commands.evaluate import Measured, evaluate_run, open_public
    from sottovoce.errors import SottoError
    from sottovoce.evaluation.keystrokes import SUGGESTIONS
    from sottovoce.evaluation.prediction import averages

    if suggestions is not None and not keystrokes:
        raise SottoError(f"--suggestions {suggestions} is for --keystrokes; add it")
    if suggestions is not None and suggestions < 1:
        raise SottoError(f"--suggestions {suggestions} must be at least 1; it is how many words the keyboard shows")
    if not personalise and (epochs is not None or learning_rate is not None):
        raise SottoError("--epochs and --learning-rate are for --personalise; add it")
    shown = (SUGGESTIONS if suggestions is None else suggestions) if keystrokes else 0
    if corpus and (store or split):
        raise SottoError("--corpus goes without --store and --split; evaluate on one of them at a time")
    split = split or "test"
    if split == "train":
        print("warning: exact figures of the people the guarantee protects, for the owner only", file=sys.stderr)
    if beside and public:
        raise SottoError("--beside and --public are two tables; ask for one at a time")
    fields = {"user_field": user_field, "text_field": text_field}
    # Opened, or refused, before the users' evaluation, which takes its time.
    text = open_public(run, public, **fields) if public else None
    people = evaluate_run(
        run, corpus=corpus or (), store=store, split=split, suggestions=shown, beside=beside, personalise=personalise,
        local_epochs=epochs, local_learning_rate=learning_rate, **fields,
    )  # fmt: skip
    found = {"users": people}
    if text is not None:
        found["public"] = evaluate_run(run, store=text, suggestions=shown)
    average = averages([one.evaluation for one in found.values()])
    spread = found["users"].spread if internal else {}
    if json:
        answer = {**_json(found["users"]), **_parts(found["users"], by_band, by_group), **spread}
        if public:
            answer |= {"public": _json(found["public"])}
            answer |= {name: value if math.isfinite(value) else None for name, value in average.items()}
        print_json(answer)
        return
    columns = {name: _rows(one) for name, one in found.items()}
    columns["users"] |= {f"{name.replace('_', ' ')} over users": f"{value:.2%}" for name, value in spread.items()}
    if public:
        columns["users"] |= {name.replace("_", " "): f"{value:.4g}" for name, value in average.items()}
        print_beside(f"Evaluation of {run}", columns)
    elif beside and (other := found["users"].other):
        columns = {run.name: columns["users"], beside.name: _rows(Measured(other.evaluation, {}))}
        print_beside("Evaluation", columns)
    else:
        print_table(f"Evaluation of {run}", columns["users"])
    _print_parts(_parts(found["users"], by_band, by_group), run.name, beside.name if beside else "")
    if gain := found["users"].personalised:
        print_beside("The second half of each user's text", _gain_columns(gain))


def _json(measured: Measured) -> dict[str, Any]:
    keystrokes, gain = measured.keystrokes, measured.personalised
    return {
        **measured.evaluation.to_json(),
        **(keystrokes.to_json() if keystrokes else {}),
        **({"personalised": gain.to_json()} if gain else {}),
        **({"beside": measured.other.evaluation.to_json()} if measured.other else {}),
    }


def _parts(measured: Measured, by_band: bool, by_group: bool) -> dict[str, Any]:
    if measured.breakdown is None:
        return {}
    parts = measured.breakdown.to_json(measured.other.breakdown if measured.other else None)
    return {name: parts[name] for name, asked in (("by_band", by_band), ("by_group", by_group)) if asked}


def _print_parts(parts: dict[str, Any], run: str, beside: str) -> None:
    tables = {"words": parts["by_band"]} if "by_band" in parts else {}
    tables |= parts.get("by_group", {})
    if parts.get("by_group") == {}:
        print("too few users to put them into groups: no group may have fewer than ten")
    for name, rows in tables.items():
        print_rows(f"By {name}", [_part_row(row, run, beside) for row in rows])


def _part_row(row: dict[str, Any], run: str, beside: str) -> dict[str, str]:
    shown = {"": row["part"], "users": f"{row['users']:,}", "of all\ntargets": f"{row['share']:.1%}"}
    if not beside:
        return shown | {"top-1": f"{row['top1']:.2%}", "top-3": f"{row['top3']:.2%}"}
    return shown | {
        f"top-1\n{run}": f"{row['top1']:.2%}",
        f"top-1\n{beside}": f"{row['beside']['top1']:.2%}",
        "points lost": f"{100 * row['lost']:.2f} ± {100 * row['within']:.2f}",
    }


def _gain_columns(gain: Personalised) -> dict[str, dict[str, str]]:
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


def report(run: Path, *, beside: Path | None = None, internal: Flag = False) -> None:
    """Write a run's report: one HTML file that opens anywhere.

    Parameters
    ----------
    run
        Folder of a run.
    beside
        Another run, say one without privacy: drawn next to it, and what this one loses against it, by how frequent
        words are and by group of held-out users.
    internal
        Also update norms, the share clipped and what audits found of people's text: exact figures of private data, for
        the owner only.
    """
    from sottovoce.commands.report import report_run

    print(report_run(run, internal=internal, beside=beside))


def bench(
    *,
    workload: str = "mcmahan-lstm",
    cohort: Numbers = None,
    population: Numbers = None,
    block: int = 0,
    kernels: Literal["auto", "off"] = "auto",
    json: Flag = False,
) -> None:
    """Time whole rounds on this machine, with users who are made up.

    Parameters
    ----------
    workload
        mcmahan-lstm: the paper's model, 1,600 tokens a user. demo: that of `sotto demo`. popov-device: what one
        device of Popov et al. 2018 does with 20 kB of text.
    cohort
        Users a round (default: 100, and 1 device). Several give a row each.
    population
        Users on disk from which cohorts are drawn; several give a row each (default: the cohort is all there are).
    block
        Users computed at once; 0 chooses.
    kernels
        off: the general program, also where there are kernels for the model and the device.
    json
        One JSON object; a list of them for several cohorts or populations.
    """
    from sottovoce.commands.bench import measure, measure_each

    if population or (cohort and len(cohort) > 1):
        found = list(measure_each(workload, cohort or [None], population or [None], block, kernels))
    else:
        found = [measure(workload, cohort[0] if cohort else None, block, kernels)]
    if json:
        print_json(found[0].to_json() if len(found) == 1 else [one.to_json() for one in found])
        return
    if len(found) > 1:
        print_rows(f"Workload {workload} on {found[0].device}, {found[0].precision}", [_row(one) for one in found])
        return
    rows = {
        "device, precision": f"{found[0].device}, {found[0].precision}",
        "users a second": f"{found[0].users_per_second:,.4g}",
        "tokens a second": f"{found[0].tokens_per_second:,.0f}",
        "a round of users": f"{found[0].cohort:,}, in blocks of at most {found[0].block:,}",
        "of a population of": f"{found[0].population:,}",
        "seconds a round": f"{found[0].seconds_a_round:.4g} ({found[0].core_seconds_a_round:.4g} of all cores)",
        "seconds to compile": f"{found[0].compile_seconds:.3g}",
        "peak memory": f"{found[0].peak_bytes / 2**20:,.0f} MiB",
        "of the products this device can do": f"{found[0].arithmetic_share:.1%}",
        "of the bytes it can move": f"{found[0].bandwidth_share:.1%}",
    }
    print_table(f"Workload {workload}", rows)


def _row(found: Measurement) -> dict[str, str]:
    return {
        "population": f"{found.population:,}",
        "cohort": f"{found.cohort:,}",
        "users/s": f"{found.users_per_second:,.4g}",
        "tokens/s": f"{found.tokens_per_second:,.0f}",
        "seconds\na round": f"{found.seconds_a_round:.3g}",
        "s to\ncompile": f"{found.compile_seconds:.3g}",
        "peak\nMiB": f"{found.peak_bytes / 2**20:,.0f}",
        "of\nproducts": f"{found.arithmetic_share:.1%}",
        "of\nbytes": f"{found.bandwidth_share:.1%}",
    }
