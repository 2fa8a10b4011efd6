"""`sotto init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Json, log, option
from sottovoce_evidence.errors import count_of


def init(
    store: Annotated[Path, option("Folder of `sotto prepare`.")],
    *,
    out: Annotated[Path | None, option("File to write (default: the recipe is printed).")] = None,
    users: Annotated[int | None, option("Number of people to declare (default: the count, rounded down).")] = None,
    noisy_count: Annotated[
        float | bool | None, Parameter(negative=(), show_default=False), option("Declare a noisy count; ε is charged.")
    ] = None,
    base: Annotated[Path | None, option("A base of your own to start from (default: one in the package).")] = None,
    json: Json = False,
) -> None:
    """Write a first recipe for a store, with a comment on every setting.

    The number of people that it declares becomes public. `--users` names it. `--noisy-count` draws it with noise, for
    ε = 0.1 or the ε that follows it, which is charged to the store once.

    Examples:
        sotto init store --out mine.toml
        sotto init store --noisy-count
    """
    from sottovoce.commands.init import write_recipe
    from sottovoce.commands.noisy_count import EPSILON

    epsilon = EPSILON if noisy_count is True else noisy_count or None
    made = write_recipe(store, users=users, noisy_count=epsilon, base=base, out=out)
    if json:
        facts = {"users": made.users, "notes": list(made.notes), "recipe": made.text}
        return print_json(facts | {"out": None if out is None else str(out)})
    for note in made.notes:
        log(f"note: {note}")
    if out is None:
        return print(made.text, end="")
    print(f"wrote {out}: {count_of(made.users, 'person', 'people')} declared")
    print(f"to try it for free, on made-up people: sotto train {out} --practice --out TRIAL")
    return print(f"next: sotto plan {out}, then sotto train {out} --out RUN")
