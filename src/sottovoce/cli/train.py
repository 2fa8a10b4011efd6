"""`sotto train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, print_table, progress_of_rounds, shown_epsilon
from sottovoce.cli.options import ALONE, Flag, Json, Processes, Settings

if TYPE_CHECKING:
    from sottovoce.commands.train import RunResult
    from sottovoce.multiprocess.group import Group


def train(
    recipe: str,
    *,
    out: Path,
    settings: Settings = None,
    start: Annotated[Path | None, Parameter(name="--from")] = None,
    allow_large_delta: Flag = False,
    several: Processes = ALONE,
    json: Json = False,
) -> None:
    """Train the model of a recipe.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe (demo, mcmahan2018).
    out
        Folder of the new run.
    start
        Folder of a run, or file of weights, to train further, as model.initial of the recipe.
    allow_large_delta
        Train although δ is not below 1/users.
    """
    import sottovoce
    from sottovoce.commands.helper import work_as_helper
    from sottovoce.recipe import Recipe

    chosen = Recipe.load(recipe).with_settings(settings or ())
    if start is not None:
        chosen = chosen.replace(model={"initial": str(start)})
    if allow_large_delta:
        chosen = chosen.replace(privacy={"allow_large_delta": True})
    with several.join() as group, gentle_stop() as stop:
        if group and not group.is_leader:
            work_as_helper(group, chosen.data.store or None, stop=stop)
            return print_helper(group, json=json)
        with progress_of_rounds(out.name, quiet=json) as observer:
            result = sottovoce.train(chosen, out, observer=observer, stop=stop, group=group)
    return print_result(result, json=json)


def print_helper(group: Group, *, json: bool) -> None:
    """What a process other than 0 has to say at the end."""
    if json:
        print_json({"process": group.rank, "processes": group.count})
    else:
        print(f"process {group.rank} of {group.count} is done; process 0 has the run")


def print_result(result: RunResult, *, json: bool, again: str = "sotto resume", next_step: str = "") -> None:
    """What a run came to: rounds, ε, scores, traffic.

    Args:
        again: the command that goes on with a run that was stopped.
        next_step: the last line, where it is not to look at the report.
    """
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
