"""`sotto demo`."""

from __future__ import annotations

from pathlib import Path

from sottovoce.cli.display import gentle_stop, progress_of_rounds, shown_epsilon


def demo(*, out: Path = Path("demo")) -> None:
    """Plan, prepare, train, evaluate and report on a synthetic population, in under two minutes.

    Parameters
    ----------
    out
        Folder for the store and the two runs.
    """
    from rich.console import Console
    from rich.table import Table

    from sottovoce.commands.demo import run_demo

    console = Console(highlight=False, soft_wrap=True)
    with gentle_stop() as stop:
        result = run_demo(out, log=console.print, progress=progress_of_rounds, stop=stop)
    if result is None:
        console.print(f"\nstopped; delete {out} and run `sotto demo` again")
        return
    table = Table(title="Held-out users of the synthetic population", title_justify="left", title_style="bold")
    table.add_column("model")
    for heading in ("ε", "top-1", "top-3", "perplexity"):
        table.add_column(heading, justify="right")
    table.add_row("most frequent word", "0", f"{result.baseline:.1%}", "", "")
    for name, run in (("private", result.private), ("not private", result.plain)):
        scores = run.evaluation
        assert scores is not None
        figures = (f"{scores.top1:.1%}", f"{scores.top3:.1%}", f"{scores.perplexity:.3g}")
        table.add_row(name, shown_epsilon(run.statement.epsilon), *figures)
    console.print(table)
    statement, path = result.private.statement, result.private.path
    console.print(
        f"The private model: ε = {shown_epsilon(statement.epsilon)} at δ = {statement.delta:g} for every one of its "
        f"users."
    )
    console.print("\nWhere to look next")
    console.print(f"  {path / 'report.html'}   open it in a browser: curves, predictions, the statement")
    console.print(f"  {path / 'privacy.json'}  the privacy statement for machines")
    console.print(f"  sotto evaluate {path}    accuracy in full")
    console.print("  sotto plan --help                what your own population would cost")
