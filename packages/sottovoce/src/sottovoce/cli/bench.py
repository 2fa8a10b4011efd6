"""`sotto bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from sottovoce.cli.display import print_json, print_rows
from sottovoce.cli.options import Json, Numbers, Recipe, Settings, option

if TYPE_CHECKING:
    from sottovoce.commands.bench import Measurement


def bench(
    recipe: Recipe = "small",
    *,
    cohort: Annotated[
        Numbers, option("Users a round, a row for each (default: as the recipe has it, at most 16 on a CPU).")
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Time whole rounds of a recipe on this machine, with made-up users.

    They have the vocabulary's size and the tokens per user of the recipe's store, which is not read.

    Examples:
        sotto bench mine.toml
        sotto bench mine.toml --cohort 50 100 200
    """
    from sottovoce.commands.bench import measure, measure_each
    from sottovoce_evidence import recipe as recipes

    chosen, cohorts = recipes.Recipe.load(recipe).with_settings(settings or ()), cohort or [None]
    found = list(measure_each(chosen, cohort)) if cohort and len(cohort) > 1 else [measure(chosen, cohorts[0])]
    if json:
        return print_json(found[0].to_json() if len(found) == 1 else [one.to_json() for one in found])
    return print_rows(f"{recipe} on {found[0].device}, {found[0].precision}", [_row(one) for one in found])


def _row(found: Measurement) -> dict[str, str]:
    return {
        "cohort": f"{found.cohort:,}",
        "at once": f"{found.block:,}",
        "users/s": f"{found.users_per_second:,.4g}",
        "tokens/s": f"{found.tokens_per_second:,.0f}",
        "seconds\na round": f"{found.seconds_a_round:.3g}",
        "core s\na round": f"{found.core_seconds_a_round:.3g}",
        "s to\ncompile": f"{found.compile_seconds:.3g}",
        "peak\nMiB": f"{found.peak_bytes / 2**20:,.0f}",
    }
