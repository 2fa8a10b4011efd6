"""`sotto compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Flag, Json
from sottovoce.errors import SottoError

Runs = Annotated[list[Path], Parameter(negative=())]


def compare(
    runs: Runs, *, out: Path | None = None, users: int = 1000, internal: Flag = False, json: Json = False
) -> None:
    """Compare runs: utility against ε, curves, head words, what was proved and found.

    Parameters
    ----------
    runs
        Folders of runs. Those on the store of the first are measured on the same held-out users.
    out
        HTML file to write: one page that opens anywhere and prints.
    users
        How many held-out users to measure on, at most; 0 for all.
    internal
        Also what audits found of people's text and how unlike single users fare: for the owner only.
    """
    from sottovoce.commands.compare import compare_runs, write_comparison

    if out is None and not json:
        raise SottoError("name a file for the page, --out comparison.html, or ask for --json")
    if out is not None and out.suffix != ".html":
        raise SottoError(f"--out {out} must end in .html; it is a page, and replaces what is there")
    if out is not None and not out.parent.is_dir():
        raise SottoError(f"there is no folder {out.parent} for --out; make it first")
    comparison = compare_runs(runs, users=users, internal=internal)
    if out is not None:
        write_comparison(comparison, out)
    if json:
        print_json(comparison.to_json())
    else:
        print(out)
