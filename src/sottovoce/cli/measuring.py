"""`sotto evaluate`, `sotto report` and `sotto bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_rows, print_table

if TYPE_CHECKING:
    from sottovoce.experiments.bench import Measurement

Flag = Annotated[bool, Parameter(negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]


def evaluate(
    run: Path,
    *,
    corpus: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())] = None,
    store: Path | None = None,
    split: str | None = None,
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
    user_field
        Field of the corpus that names the user.
    text_field
        Field of the corpus that holds the text.
    internal
        Also the spread over single users.
    json
        One JSON object.
    """
    from sottovoce.errors import SottoError
    from sottovoce.jobs.measuring import evaluate_run

    if corpus and (store or split):
        raise SottoError("--corpus goes without --store and --split; evaluate on one of them at a time")
    split = split or "test"
    if split == "train":
        print("warning: exact figures of the people the guarantee protects, for the owner only", file=sys.stderr)
    evaluation, spread = evaluate_run(
        run, corpus=corpus or (), store=store, split=split, user_field=user_field, text_field=text_field
    )
    if json:
        print_json({**evaluation.to_json(), **(spread if internal else {})})
        return
    rows = {
        "top-1, top-3, top-5": f"{evaluation.top1:.2%}, {evaluation.top3:.2%}, {evaluation.top5:.2%}",
        "top-1 over words": f"{evaluation.top1_words:.2%}",
        "perplexity": f"{evaluation.perplexity:.4g}",
        "perplexity in vocabulary": f"{evaluation.perplexity_in_vocabulary:.4g}",
        "outside the vocabulary": f"{evaluation.oov_rate:.2%}",
        "targets, users": f"{evaluation.targets:,}, {evaluation.users:,}",
    }
    if internal:
        rows |= {f"{name.replace('_', ' ')} over users": f"{value:.2%}" for name, value in spread.items()}
    print_table(f"Evaluation of {run}", rows)


def report(run: Path, *, internal: Flag = False) -> None:
    """Write a run's report: one HTML file that opens anywhere.

    Parameters
    ----------
    run
        Folder of a run.
    internal
        Also update norms, the share clipped and what audits found: exact figures of private data, for the owner only.
    """
    from sottovoce.jobs.measuring import report_run

    print(report_run(run, internal=internal))


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
        mcmahan-lstm: the paper's model, 1,600 tokens a user. demo: that of `sotto demo`.
    cohort
        Users a round (default: 100). Several give a row each.
    population
        Users on disk from which cohorts are drawn; several give a row each (default: the cohort is all there are).
    block
        Users computed at once; 0 chooses.
    kernels
        off: the general program, also where there are kernels for the model and the device.
    json
        One JSON object; a list of them for several cohorts or populations.
    """
    from sottovoce.experiments.bench import measure, measure_each

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
        "seconds a round": f"{found[0].seconds_a_round:.4g}",
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
