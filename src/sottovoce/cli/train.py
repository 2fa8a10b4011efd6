"""`sotto train`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sottovoce.cli.display import gentle_stop, print_json, print_table, progress_of_rounds, shown_epsilon
from sottovoce.cli.options import ALONE, Flag, Json, Out, Processes, Recipe, Settings, option
from sottovoce.files import as_json

if TYPE_CHECKING:
    from sottovoce.commands.train import RunResult


def train(
    recipe: Recipe,
    *,
    out: Out,
    settings: Settings = None,
    start: Annotated[Path | None, option("A run, or a file of weights, to train further.", "--from")] = None,
    allow_large_delta: Annotated[Flag, option("Train although δ is not below 1/users.")] = False,
    several: Processes = ALONE,
    json: Json = False,
) -> None:
    """Train the model of a recipe."""
    from sottovoce import recipe as recipes
    from sottovoce.commands import train as command

    chosen = recipes.Recipe.load(recipe).with_settings(settings or ())
    if start is not None:
        chosen = chosen.replace(model={"initial": str(start)})
    if allow_large_delta:
        chosen = chosen.replace(privacy={"allow_large_delta": True})
    play = partial(command.train, chosen)
    train_with(several, play, out, store=chosen.data.store or None, json=json)


def train_with(
    several: Processes, train: Callable[..., RunResult], run: Path, *, store: Path | str | None, json: bool
) -> None:
    """Train or resume a run and print the result; in a process other than 0, help process 0 to do so.

    `store` is where such a process has the store, if not where process 0 has it.
    """
    from sottovoce.commands.helper import work_as_helper

    with several.join() as group, gentle_stop() as stop:
        if group and not group.is_leader:
            work_as_helper(group, store, stop=stop)
            if json:
                return print_json({"process": group.rank, "processes": group.count})
            return print(f"process {group.rank} of {group.count} is done; process 0 has the run")
        with progress_of_rounds(run.name, quiet=json) as observer:
            result = train(run, observer=observer, stop=stop, group=group)
    return print_result(result, json=json)


def print_result(result: RunResult, *, json: bool, again: str = "sotto resume", next_step: str = "") -> None:
    """Print rounds, ε, scores and traffic of a run, and what to do next: `again` resumes a run that was stopped."""
    from sottovoce.reporting.statement_text import bytes_text, other_relation

    statement, scores = result.statement, result.evaluation
    if json:
        written = statement.to_json()
        cost = {name: written[name] for name in ("private", "epsilon", "delta", "epsilon_spent", "epsilon_store")}
        answer = {"run": str(result.path), "round": result.round, "ended": result.ended, "notes": list(result.notes)}
        measured = {"evaluation": scores, "baselines": result.baselines}
        print_json({**answer, **cost, "bytes": result.traffic, **as_json(measured)})
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
        for name, score in result.baselines.scores.items() if result.baselines else ():
            perplexity = "" if score.perplexity is None else f", {score.perplexity:.4g}"
            rows[f"  {name}"] = f"{score.top1:.2%}{perplexity}"
    if result.traffic:
        sent = {name: bytes_text(count) for name, count in result.traffic.items()}
        rows["sent to a device, from it"] = f"{sent['down']}, {sent['up']}"
        rows["sent in a round, in all"] = f"{sent['round']}, {sent['total']}"
    print_table(f"Run {result.path}", rows)
    if scores and result.baselines and (sentence := result.baselines.no_better(scores.top1)):
        print(f"note: {sentence}")
    if result.ended == "stopped":
        next_step = f"stopped; go on with: {again} {result.path}"
    print(next_step or f"next: sotto report {result.path}")
