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
        option("mcmahan-lstm: the paper's model. demo: that of `sotto demo`. popov-device: one device of Popov 2018."),
    ] = "mcmahan-lstm",
    cohort: Annotated[Numbers, option("Users a round (default: 100, and 1 device).")] = None,
    population: Annotated[Numbers, option("Users on disk to draw cohorts from (default: the cohort).")] = None,
    block: Annotated[int, option("Users computed at once; 0 chooses.")] = 0,
    kernels: Annotated[Literal["auto", "off"], option("off: the general program, also where kernels exist.")] = "auto",
    json: Json = False,
) -> None:
    """Time whole rounds on this machine, with made-up users. Several cohorts or populations give a row each."""
    from sottovoce.commands.bench import measure, measure_each

    if population or (cohort and len(cohort) > 1):
        found = list(measure_each(workload, cohort or [None], population or [None], block, kernels))
    else:
        found = [measure(workload, cohort[0] if cohort else None, block, kernels)]
    if json:
        print_json(found[0].to_json() if len(found) == 1 else [one.to_json() for one in found])
        return
    title, rows = f"Workload {workload} on {found[0].device}, {found[0].precision}", [_row(one) for one in found]
    if len(found) > 1:
        print_rows(title, rows)
        return
    more = {"users in a block": f"{found[0].block:,}", "core seconds a round": f"{found[0].core_seconds_a_round:.4g}"}
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
