"""`sotto train`, `sotto resume`, `sotto demo`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, print_table, progress_of_rounds, shown_epsilon
from sottovoce.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.commands.train import RunResult
    from sottovoce.multiprocess.group import Group

Flag = Annotated[bool, Parameter(negative=())]


def train(
    recipe: str,
    *,
    out: Path,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    start: Annotated[Path | None, Parameter(name="--from")] = None,
    allow_large_delta: Flag = False,
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    wait: float = 300.0,
    secret: Path | None = None,
    json: Flag = False,
) -> None:
    """Train the model of a recipe.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe (demo, mcmahan2018).
    out
        Folder of the new run.
    settings
        Change one value of the recipe: section.key=value. May be given many times.
    start
        Folder of a run whose model is trained further, as model.initial of the recipe.
    allow_large_delta
        Train although δ is not below 1/users.
    coordinator
        Train with several processes: HOST:PORT of process 0, the same for all, or auto in a cluster that JAX knows.
    processes
        How many processes there are.
    process_id
        Which of them this is, from 0; process 0 keeps the run's folder, the others help.
    wait
        Seconds for all processes to come.
    secret
        File with the secret that all processes share, for its owner alone; else SOTTO_SECRET in the environment.
    json
        One JSON object at the end, no progress.
    """
    import sottovoce
    from sottovoce.commands.helper import work_as_helper
    from sottovoce.recipe import Recipe

    chosen = Recipe.load(recipe).with_settings(settings or ())
    if start is not None:
        chosen = chosen.replace(model={"initial": str(start)})
    if allow_large_delta:
        chosen = chosen.replace(privacy={"allow_large_delta": True})
    with _group(coordinator, processes, process_id, wait, secret) as group, gentle_stop() as stop:
        if group and not group.leads:
            work_as_helper(group, chosen.data.store or None, stop=stop)
            return _tell_helper(group, json=json)
        with progress_of_rounds(out.name, quiet=json) as observer:
            result = sottovoce.train(chosen, out, observer=observer, stop=stop, group=group)
    return tell(result, json=json)


def resume(
    run: Path,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    wait: float = 300.0,
    secret: Path | None = None,
    store: Path | None = None,
    json: Flag = False,
) -> None:
    """Go on with a run that was stopped or killed.

    Parameters
    ----------
    run
        Folder of the run. Of several processes, only process 0 needs it.
    coordinator
        Train with several processes: HOST:PORT of process 0, the same for all, or auto in a cluster that JAX knows.
    processes
        How many processes there are.
    process_id
        Which of them this is, from 0; process 0 keeps the run's folder, the others help.
    wait
        Seconds for all processes to come.
    secret
        File with the secret that all processes share, for its owner alone; else SOTTO_SECRET in the environment.
    store
        Where a process other than 0 has the store, if not where process 0 has it.
    json
        One JSON object at the end, no progress.
    """
    import sottovoce
    from sottovoce.commands.helper import work_as_helper

    with _group(coordinator, processes, process_id, wait, secret) as group, gentle_stop() as stop:
        if group and not group.leads:
            work_as_helper(group, store, stop=stop)
            return _tell_helper(group, json=json)
        with progress_of_rounds(run.name, quiet=json) as observer:
            result = sottovoce.resume(run, observer=observer, stop=stop, group=group)
    return tell(result, json=json)


def demo(*, out: Path = Path("demo")) -> None:
    """Plan, prepare, train, evaluate and report on a synthetic population, in under two minutes.

    Parameters
    ----------
    out
        Folder for the store and the two runs.
    """
    from rich.console import Console

    from sottovoce.commands.demo import run_demo

    console = Console(highlight=False, soft_wrap=True)
    with gentle_stop() as stop:
        result = run_demo(out, say=console.print, progress=progress_of_rounds, stop=stop)
    if result is None:
        console.print(f"\nstopped; delete {out} and run `sotto demo` again")
        return
    from rich.table import Table

    table = Table(title="Held-out users of the synthetic population", title_justify="left", title_style="bold")
    table.add_column("model")
    for heading in ("ε", "top-1", "top-3", "perplexity"):
        table.add_column(heading, justify="right")
    table.add_row("most frequent word", "0", f"{result.baseline:.1%}", "", "")
    for name, run in (("private", result.private), ("not private", result.plain)):
        scores = run.evaluation
        assert scores is not None
        table.add_row(
            name, shown_epsilon(run.statement.epsilon), f"{scores.top1:.1%}", f"{scores.top3:.1%}",
            f"{scores.perplexity:.3g}",
        )  # fmt: skip
    console.print(table)
    console.print(f"The private model: ε = {shown_epsilon(result.private.statement.epsilon)} "
                  f"at δ = {result.private.statement.delta:g} for every one of its users.")  # fmt: skip
    console.print("\nWhere to look next")
    console.print(f"  {result.private.path / 'report.html'}   open it in a browser: curves, predictions, the statement")
    console.print(f"  {result.private.path / 'privacy.json'}  the privacy statement for machines")
    console.print(f"  sotto evaluate {result.private.path}    accuracy in full")
    console.print("  sotto plan --help                what your own population would cost")


def _group(
    coordinator: str | None, processes: int | None, process_id: int | None, wait: float, secret: Path | None
) -> AbstractContextManager[Group | None]:
    if coordinator is None:
        if processes is not None or process_id is not None or secret is not None:
            raise SottoError(
                "--processes, --process-id and --secret need --coordinator: HOST:PORT of process 0, or auto"
            )
        return nullcontext()
    from sottovoce.multiprocess.group import joined

    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    return joined(coordinator, processes, process_id, wait, say, secret)


def _tell_helper(group: Group, *, json: bool) -> None:
    if json:
        print_json({"process": group.mine, "processes": group.count})
    else:
        print(f"process {group.mine} of {group.count} is done; process 0 has the run")


def tell(result: RunResult, *, json: bool, again: str = "sotto resume", next_step: str = "") -> None:
    from sottovoce.reporting.statement_text import bytes_text, other_relation

    statement, scores = result.statement, result.evaluation
    if json:
        answer = {"run": str(result.path), "round": result.round, "ended": result.ended, "notes": list(result.notes)}
        cost = {name: value for name, value in statement.to_json().items() if name in ("private", "epsilon", "delta")}
        cost |= {name: statement.to_json()[name] for name in ("epsilon_spent", "epsilon_store")}
        print_json({**answer, **cost, "bytes": result.traffic, "evaluation": scores.to_json() if scores else None})
        return
    for note in result.notes:
        print(note)
    rows = {"rounds": f"{result.round} of {statement.rounds_planned}", "ε": "∞, not private"}
    if statement.private:
        rows["ε"] = f"{shown_epsilon(statement.epsilon)} at δ = {statement.delta:g}"
        if result.ended == "stopped":
            rows["ε"] += " for all planned rounds"
            rows["ε spent so far"] = f"{shown_epsilon(statement.epsilon_spent)} (stopping for good saves nothing)"
        rows["ε of the store, all runs"] = shown_epsilon(statement.epsilon_store) + other_relation(statement)
    if scores:
        rows["top-1, perplexity at the last evaluation"] = f"{scores.top1:.2%}, {scores.perplexity:.4g}"
    if result.traffic:
        sent = {name: bytes_text(count) for name, count in result.traffic.items()}
        rows["sent to a device, from it"] = f"{sent['down']}, {sent['up']}"
        rows["sent in a round, in all"] = f"{sent['round']}, {sent['total']}"
    print_table(f"Run {result.path}", rows)
    if result.ended == "stopped":
        print(f"stopped; go on with: {again} {result.path}")
    else:
        print(next_step or f"next: sotto report {result.path}")
