"""`sotto compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Flag, Json, option
from sottovoce.errors import SottoError


def compare(
    runs: Annotated[list[Path], Parameter(negative=(), help="Folders of runs, measured on the users of the first.")],
    *,
    out: Annotated[Path | None, option("HTML file to write: one page that opens anywhere and prints.")] = None,
    users: Annotated[int, option("How many held-out users to measure on, at most; 0 for all.")] = 1000,
    internal: Annotated[Flag, option("Also figures of people's text and of single users: for the owner only.")] = False,
    json: Json = False,
) -> None:
    """Compare runs: utility against ε, curves, head words, what was proved and found."""
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
