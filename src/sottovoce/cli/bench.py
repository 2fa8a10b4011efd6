"""`sotto bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sottovoce.cli.display import print_json, print_rows, print_table
from sottovoce.cli.options import Json, Numbers

if TYPE_CHECKING:
    from sottovoce.commands.bench import Measurement


def bench(
    *,
    workload: str = "mcmahan-lstm",
    cohort: Numbers = None,
    population: Numbers = None,
    block: int = 0,
    kernels: Literal["auto", "off"] = "auto",
    json: Json = False,
) -> None:
    """Time whole rounds on this machine, with made-up users. Several cohorts or populations give a row each.

    Parameters
    ----------
    workload
        mcmahan-lstm: the paper's model, 1,600 tokens a user. demo: that of `sotto demo`. popov-device: what one
        device of Popov et al. 2018 does with 20 kB of text.
    cohort
        Users a round (default: 100, and 1 device).
    population
        Users on disk from which cohorts are drawn (default: the cohort is all there are).
    block
        Users computed at once; 0 chooses.
    kernels
        off: the general program, also where there are kernels for the model and the device.
    """
    from sottovoce.commands.bench import measure, measure_each

    if population or (cohort and len(cohort) > 1):
        found = list(measure_each(workload, cohort or [None], population or [None], block, kernels))
    else:
        found = [measure(workload, cohort[0] if cohort else None, block, kernels)]
    if json:
        print_json(found[0].to_json() if len(found) == 1 else [one.to_json() for one in found])
    elif len(found) > 1:
        print_rows(f"Workload {workload} on {found[0].device}, {found[0].precision}", [_row(one) for one in found])
    else:
        print_table(f"Workload {workload}", _rows(found[0]))


def _rows(found: Measurement) -> dict[str, str]:
    return {
        "device, precision": f"{found.device}, {found.precision}",
        "users a second": f"{found.users_per_second:,.4g}",
        "tokens a second": f"{found.tokens_per_second:,.0f}",
        "a round of users": f"{found.cohort:,}, in blocks of at most {found.block:,}",
        "of a population of": f"{found.population:,}",
        "seconds a round": f"{found.seconds_a_round:.4g} ({found.core_seconds_a_round:.4g} of all cores)",
        "seconds to compile": f"{found.compile_seconds:.3g}",
        "peak memory": f"{found.peak_bytes / 2**20:,.0f} MiB",
        "of the products this device can do": f"{found.arithmetic_share:.1%}",
        "of the bytes it can move": f"{found.bandwidth_share:.1%}",
    }


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
