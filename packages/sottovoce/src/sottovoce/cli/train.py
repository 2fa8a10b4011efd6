"""`sotto train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import Parameter

from sottovoce.cli.display import (
    Asked,
    at_once,
    confirmed,
    duration,
    gentle_stop,
    print_json,
    print_table,
    progress_of_rounds,
    shown_epsilon,
)
from sottovoce.cli.options import ALONE, Flag, Json, Processes, Recipe, Settings, log, option, set_options
from sottovoce_evidence.errors import LostProcess, SottoError, plain_number, plural
from sottovoce_evidence.files import as_json

if TYPE_CHECKING:
    from sottovoce.commands.forecast import Forecast
    from sottovoce.commands.train import RunResult
    from sottovoce.planning.grid import Choice


Yes = Annotated[Flag, option("Do not ask before people are charged.")]
OWNER_ONLY = "it depends exactly on who takes part, so do not publish it; the guarantee is the planned ε"
NOT_MADE = "nobody was charged, and no run was made"


@Parameter(name="*")
@dataclass(frozen=True)
class Confirmation:
    """What happens before a run begins."""

    yes: Yes = False
    dry_run: Annotated[Flag, option("Show what a run would charge and how long it would take; charge nobody.")] = False


ASK = Confirmation()


def train(
    recipe: Recipe,
    *,
    out: Annotated[Path | None, option("Folder of the new run.")] = None,
    settings: Settings = None,
    start: Annotated[str | None, option("A base, run, release or Hugging Face folder to start from.", "--from")] = None,
    practice: Annotated[Flag, option("On made-up people, as many as declared: nobody is charged.")] = False,
    confirmation: Confirmation = ASK,
    several: Processes = ALONE,
    json: Json = False,
) -> None:
    """Train the model of a recipe.

    First it shows what the run will charge to the people of the store, how long it will take, and what does not fit
    together. On a terminal it then asks; elsewhere it goes on without asking. Exit status 1 if the answer is no, 130 if
    Ctrl-C stopped the run.

    With --practice it trains on made-up people, and neither reads nor charges those of the store. Rounds, noise, time
    and files are those of the real run; accuracy is not.

    Examples:
        sotto train mine.toml --out run
        sotto train mine.toml --set privacy.epsilon=4 --dry-run
        sotto train mine.toml --practice --out trial
    """
    from sottovoce.commands import train as command
    from sottovoce.commands.new_run import forecast
    from sottovoce_evidence import bases
    from sottovoce_evidence import recipe as recipes

    chosen = recipes.Recipe.load(recipe).with_settings(settings or ())
    if start is not None:
        chosen = chosen.replace(model={"initial": start})
    if (initial := chosen.model.initial) in bases.shipped() and Path(initial).exists() and not json:
        log(f"note: {initial!r} is the base in the package; to start from the folder {initial}, say ./{initial}")
    if confirmation.dry_run:
        found = forecast(chosen, out, before_timing=None if json else say_timing, practice=practice)
        if json:
            return print_json(found.to_json())
        (show_work if practice else show_forecast)(found, print)
        return print(f"{NOT_MADE} (--dry-run)")
    if out is None:
        raise SottoError("--out is missing: name the folder of the new run, or use --dry-run")
    play = partial(command.train, chosen, before_timing=None if json else say_timing)
    if practice:
        if not json:
            log(f"makes {chosen.privacy.users:,} made-up people in {out}; no real person is read or charged")
        play = partial(play, practice=True, confirm=partial(show_practice, json=json))
        return train_with(several, play, out, store=None, json=json, next_step=after_practice(recipe, out, settings))
    play = partial(play, confirm=partial(confirm, yes=confirmation.yes, json=json))
    return train_with(several, play, out, store=chosen.data.store or None, json=json)


def show_practice(forecast: Forecast, *, json: bool) -> bool:
    """Nobody is charged, so nobody is asked."""
    if not json:
        show_work(forecast, log)
    return True


def after_practice(recipe: str, out: Path, settings: list[str] | None) -> str:
    """How to train for real: without what was set of [run], as fewer rounds would cost the whole ε."""
    kept = [each for each in settings or () if not each.strip().startswith("run.")]
    return (
        f"accuracy is that of made-up text; it says nothing about yours\n"
        f"look at it: sotto report {out}, sotto keyboard {out}, sotto watch {out}\n"
        f"for real: sotto train {recipe} --out RUN{set_options(kept)}"
    )


def say_timing() -> None:
    log("timing this machine, about 20 seconds ...")


def confirm(forecast: Forecast, *, yes: bool, json: bool) -> bool:
    """Show the forecast; ask at a terminal. Elsewhere a run goes on, whatever the store holds: how a command ends must
    not tell anyone whether one person more is in the store.
    """
    if not json:
        show_forecast(forecast, log)  # on standard error: it is for the owner, and no result
    return yes or json or at_once(lambda: confirmed("start training?", NOT_MADE))


def show_forecast(forecast: Forecast, show: Callable[[str], None]) -> None:
    """What a run will charge, and the rest of `show_work`."""
    if forecast.private:
        cost, total = shown_epsilon(forecast.epsilon), shown_epsilon(forecast.epsilon_store)
        store = forecast.store.removeprefix(f"{Path.cwd()}{os.sep}")
        charged = f"ε = {cost} at δ = {plain_number(forecast.delta)} to {store}, whose total becomes {total}"
        show(f"charges: {charged}; stopping early saves nothing")
    else:
        show("charges: nobody, as the run is not private (ε is infinite)")
    show_work(forecast, show)


def show_work(forecast: Forecast, show: Callable[[str], None]) -> None:
    """What a run starts from, how long it will take, and what does not fit together."""
    show(f"starts from: {forecast.start}")
    joining = plural(forecast.cohort, forecast.sampled.removesuffix("s"))
    work = f"{plural(forecast.rounds_asked, 'round')} of about {forecast.cohort:g} {joining}"
    if forecast.rounds < forecast.rounds_asked:
        work = f"{forecast.rounds:,} of {forecast.rounds_asked:,} {work}: the budget is spent then"
    else:
        work = f"{forecast.rounds:,} {work}"
    if forecast.seconds is None:
        show(f"takes: {work}; the time is known after the first round")
    else:
        show(f"takes: about {duration(forecast.seconds)} on this machine, for {work}")
    if forecast.shorter:
        show(shorter(forecast.shorter))
    for warning in (*forecast.mismatches, *forecast.warnings):
        show(f"warning: {warning}")


def shorter(choice: Choice) -> str:
    """How to train in a quarter of the time."""
    same = "about a quarter of the time, the same ε; usually less accurate"
    return f"shorter: --set run.rounds={choice.rounds} ({same})"


def train_with(
    several: Processes,
    train: Callable[..., RunResult],
    run: Path,
    *,
    store: Path | str | None,
    json: bool,
    next_step: str = "",
) -> None:
    """Train or resume a run and print the result; in a process other than 0, help process 0 to do so.

    `store` is where such a process has the store, if not where process 0 has it.
    """
    from sottovoce.commands.forecast import Declined
    from sottovoce.commands.helper import work_as_helper

    stop: Asked | None = None
    try:
        with several.join() as group, gentle_stop() as stop:
            if group and not group.is_leader:
                work_as_helper(group, store, stop=stop)
                if json:
                    return print_json({"process": group.rank, "processes": group.count})
                return print(f"process {group.rank} of {group.count} is done; process 0 has the run")
            with way_on(run, "sotto resume"), progress_of_rounds(run.name, quiet=json) as observer:
                result = train(run, observer=observer, stop=stop, group=group)
    except Declined:
        end_declined(stop)
    print_result(result, json=json, next_step=next_step)
    return end_stopped(result, stop)


def end_declined(stop: Asked | None) -> NoReturn:
    """No run was made: the owner answered no, or it was stopped before anybody was charged."""
    print(NOT_MADE)
    sys.exit(stop.status if stop and stop() else 1)


def end_stopped(result: RunResult, stop: Asked) -> None:
    """A run that was stopped is no success: what a script does next may need all of it."""
    if result.ended == "stopped":
        sys.exit(stop.status)


@contextmanager
def way_on(run: Path, again: str) -> Iterator[None]:
    """Where a run is stopped at once or loses a process: say how to go on with it, and from where."""
    from sottovoce.runs import checkpoint
    from sottovoce.runs.folder import RunFolder

    try:
        yield
    except (KeyboardInterrupt, LostProcess):
        folder = RunFolder(run)
        if folder.recipe_file.exists():
            done = checkpoint.last_round(folder.checkpoints)
            log(f"stopped; go on with: {again} {run}" + ("" if done is None else f" (from round {done})"))
        raise


def print_result(result: RunResult, *, json: bool, again: str = "sotto resume", next_step: str = "") -> None:
    """Print rounds, ε, scores and traffic of a run, and what to do next: `again` resumes a run that was stopped."""
    from sottovoce.reporting.words import bytes_text
    from sottovoce_evidence.statement_text import other_relation

    statement, scores = result.statement, result.evaluation
    if json:
        written = statement.to_json()
        cost = {name: written[name] for name in ("private", "epsilon", "delta", "epsilon_spent", "epsilon_store")}
        answer = {"run": str(result.path), "round": result.round, "ended": result.ended, "notes": list(result.notes)}
        measured = {"evaluation": scores, "baselines": result.baselines}
        realised, own = result.epsilon_realised, {}
        if realised is not None:
            own = {"for_the_owner_only": {"epsilon_realised": realised, "why": OWNER_ONLY}}
        print_json({**answer, **own, **cost, "bytes": result.traffic, **as_json(measured)})
        return
    for note in result.notes:
        print(note)
    rows = {"rounds": f"{result.round} of {statement.rounds_planned}", "ε": "∞, not private"}
    if statement.rounds_planned < result.rounds_asked:
        rows["rounds"] += f" ({result.rounds_asked} in the recipe: the budget is spent before)"
    if statement.private:
        rows["ε"] = f"{shown_epsilon(statement.epsilon)} at δ = {plain_number(statement.delta)}"
        if result.ended == "stopped":
            rows["ε"] += " for all planned rounds"
            rows["ε spent so far"] = f"{shown_epsilon(statement.epsilon_spent)} (stopping for good saves nothing)"
        rows["ε of the store, all runs"] = shown_epsilon(statement.epsilon_store) + other_relation(statement)
    if scores:
        rows["top-1, perplexity at the last evaluation"] = f"{scores.top1:.2%}, {scores.perplexity:.4g}"
        for name, score in result.baselines.scores.items() if result.baselines else ():
            perplexity = f", {score.perplexity:.4g}" if isfinite(score.perplexity) else ""
            rows[f"  {name}"] = f"{score.top1:.2%}{perplexity}"
        if scores.top1_words is not None:
            start = result.baselines.start_model if result.baselines else None
            beside = "" if not start or start.top1_words is None else f"; the start {start.top1_words:.2%}"
            rows["top-1 over words"] = f"{scores.top1_words:.2%}{beside}"
        if scores.bits_per_byte is not None:
            rows["bits per byte"] = f"{scores.bits_per_byte:.3f}"
    if result.traffic:  # of a simulation: a run across devices has none
        sent = {name: bytes_text(count) for name, count in result.traffic.items()}
        rows["a real device would get, send"] = f"{sent['down']}, {sent['up']} a round"
        if "frozen" in sent:
            rows["  once, before"] = f"{sent['frozen']}: what is not trained"
    print_table(f"Run {result.path}", rows)
    if scores and result.baselines and (sentence := result.baselines.no_better(scores)):
        print(f"note: {sentence}")
    if result.epsilon_realised is not None:
        shown = f"ε = {shown_epsilon(result.epsilon_realised)} for the rounds that users joined"
        print(f"for the owner only: {shown}; {OWNER_ONLY}")
    if result.ended == "stopped":
        next_step = f"stopped; go on with: {again} {result.path}"
    print(next_step or f"next: sotto report {result.path}")
