"""`sotto demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from sottovoce.cli.display import gentle_stop, print_rows, progress_of_rounds, shown_epsilon
from sottovoce.cli.options import option
from sottovoce_evidence.errors import plain_number


def demo(*, out: Annotated[Path, option("Folder for the store and the two runs.")] = Path("demo")) -> None:
    """Plan, prepare, train, evaluate and report on a synthetic population, in under two minutes.

    Examples:
        sotto demo --out demo
    """
    from sottovoce.commands.demo import run_demo

    with gentle_stop() as stop:
        result = run_demo(out, log=print, progress=progress_of_rounds, stop=stop)
    if result is None:
        print(f"\nstopped; delete {out} and run `sotto demo` again")
        sys.exit(stop.status)
    columns = ("model", "ε", "top-1", "top-3", "perplexity")
    rows = [("most frequent token", "0", f"{result.baseline:.1%}", "", "")]
    for name, run in (("private", result.private), ("not private", result.plain)):
        scores, epsilon = run.evaluation, shown_epsilon(run.statement.epsilon)
        assert scores is not None
        rows.append((name, epsilon, f"{scores.top1:.1%}", f"{scores.top3:.1%}", f"{scores.perplexity:.3g}"))
    print_rows("Held-out users of the synthetic population", [dict(zip(columns, row, strict=True)) for row in rows])
    statement, path = result.private.statement, result.private.path
    cost = f"ε = {shown_epsilon(statement.epsilon)} at δ = {plain_number(statement.delta)}"
    print(f"The private model: {cost} for each user.")
    print("\nWhere to look next")
    places = {
        str(path / "report.html"): "open it in a browser: curves, predictions, the statement",
        str(out / "compare.html"): "both models on one page",
        str(path / "privacy.json"): "the privacy statement for machines",
        f"sotto evaluate {path}": "accuracy in full, also over words alone",
        "sotto plan --help": "what your own population would cost",
    }
    for place, meaning in places.items():
        print(f"  {place:<{max(map(len, places))}}  {meaning}")
