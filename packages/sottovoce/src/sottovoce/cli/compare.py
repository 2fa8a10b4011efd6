"""`sotto compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_rows
from sottovoce.cli.options import Flag, Json, option
from sottovoce_evidence.errors import SottoError


def compare(
    runs: Annotated[list[Path], Parameter(negative=(), help="Runs, releases and bases, on the first run's users.")],
    *,
    out: Annotated[Path | None, option("HTML file to write too: one page that opens anywhere and prints.")] = None,
    users: Annotated[int, option("How many held-out users to measure on, at most; 0 for all.")] = 1000,
    words: Annotated[
        int, option("At how many words models with other tokens than words are measured, where tokens differ.")
    ] = 2000,
    internal: Annotated[Flag, option("Also figures of people's text and of single users: for the owner only.")] = False,
    json: Json = False,
) -> None:
    """Compare runs: a table here; with --out a page with accuracy against ε, curves, head words, proofs and attacks.

    Examples:
        sotto compare run other-run --out compare.html
    """
    from sottovoce.commands.compare import compare_runs, write_comparison
    from sottovoce.reporting.draw.style import short

    if out is not None and out.suffix != ".html":
        raise SottoError(f"--out {out} must end in .html; it is a page, and replaces what is there")
    if out is not None and not out.parent.is_dir():
        raise SottoError(f"there is no folder {out.parent} for --out; make it first")
    if words < 0:
        raise SottoError(f"--words {words} must not be negative: the number of words that are measured")
    comparison = compare_runs(runs, users=users, internal=internal, words=words)
    if out is not None:
        write_comparison(comparison, out)
    if json:
        print_json(comparison.to_json())
        return
    shown = ("Run", "ε", "Top-1", "Top-1 over words", "Perplexity", "Rounds")  # what a narrow terminal has room for
    if not comparison.same_words:
        shown = ("Run", "ε", "Top-1 over words", "Bits per byte", "Rounds")
    rows = [{name: row[name].replace(" at δ", ", δ") for name in shown if name in row} for row in comparison.rows()]
    if comparison.same_words and "Top-1 over words" in rows[0]:
        heads = {"Top-1 over words": "Top-1,\nwords"}
        rows = [{heads.get(name, name): value for name, value in row.items()} for row in rows]
        rows = [{**row, "Run": short(row["Run"].replace("the start, ", "start: "), 20)} for row in rows]
    rows = [{name: short(value, 24) for name, value in row.items()} for row in rows]
    print_rows(f"Measured on {comparison.people}" if comparison.people else "As recorded in each run", rows)
    for title, text in comparison.notices():
        print(f"{title}: {text}")
    if out is not None:
        print(out)
