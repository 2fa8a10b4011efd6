"""`sotto bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from sottovoce.cli.display import print_json, print_rows, print_table
from sottovoce.cli.options import Json, Numbers, option

if TYPE_CHECKING:
    from sottovoce.commands.bench import Measurement


def bench(
    *,
    workload: Annotated[
        str,
        option(
            "mcmahan-lstm: the paper's model. demo: that of `sotto demo`. popov-device: one device of Popov 2018. "
            "lstm, gru, gated_cnn, stacked_lstm, stacked_lstm_650, transformer, lora, fedsgd, without_forgetting: the "
            "program for any model."
        ),
    ] = "mcmahan-lstm",
    cohort: Annotated[Numbers, option("Users a round (default: 100, and 1 device).")] = None,
    population: Annotated[Numbers, option("Users on disk to draw cohorts from (default: the cohort).")] = None,
    block: Annotated[int, option("Users computed at once; 0 chooses.")] = 0,
    kernels: Annotated[
        Literal["auto", "any_model", "off"] | None,
        option("As run.kernels of a recipe (default: auto, or any_model where the workload is to time that)."),
    ] = None,
    against: Annotated[
        Literal["plain"] | None, option("Time benchmarks/plain.py too: the paper's round in plain JAX.")
    ] = None,
    json: Json = False,
) -> None:
    """Time whole rounds on this machine, with made-up users. Several cohorts or populations give a row each."""
    from sottovoce.commands.bench import measure, measure_each, plain_rate

    if population or (cohort and len(cohort) > 1):
        found = list(measure_each(workload, cohort or [None], population or [None], block, kernels))
    else:
        found = [measure(workload, cohort[0] if cohort else None, block, kernels)]
    plain = plain_rate(found[0].cohort) if against else None
    if json and plain is not None:
        rows = [{**one.to_json(), "plain": plain, "ratio": one.users_per_second / plain} for one in found]
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    if json:
        print_json(found[0].to_json() if len(found) == 1 else [one.to_json() for one in found])
        return
    title, rows = f"Workload {workload} on {found[0].device}, {found[0].precision}", [_row(one) for one in found]
    if len(found) > 1:
        print_rows(title, rows)
        return
    more = {"users in a block": f"{found[0].block:,}", "core seconds a round": f"{found[0].core_seconds_a_round:.4g}"}
    if plain is not None:
        more |= {"plain JAX, users/s": f"{plain:,.4g}", "ratio": f"{found[0].users_per_second / plain:.2f}"}
    print_table(title, {name.replace("\n", " "): value for name, value in rows[0].items()} | more)


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
