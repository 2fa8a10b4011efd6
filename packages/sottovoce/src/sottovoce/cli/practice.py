"""`sotto practice`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sottovoce.cli.display import gentle_stop, progress_of_rounds
from sottovoce.cli.options import Json, Recipe, Settings, log, option, set_options
from sottovoce.cli.train import end_stopped, print_result, say_timing, show_work, way_on

if TYPE_CHECKING:
    from sottovoce.commands.forecast import Forecast


def practice(
    recipe: Recipe,
    *,
    out: Annotated[Path, option("Folder for the synthetic people and the run.")],
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Train a recipe on synthetic people, as many as it declares. Nobody is charged.

    Rounds, noise, time and files are those of the real run; accuracy is not.
    """
    from sottovoce.commands.forecast import Declined
    from sottovoce.commands.practice import RUN, make_people
    from sottovoce.commands.train import train as train_recipe
    from sottovoce_evidence import recipe as recipes

    chosen = recipes.Recipe.load(recipe).with_settings(settings or ())
    chosen = make_people(chosen, out, (lambda line: None) if json else log)
    train = partial(train_recipe, confirm=partial(_show, json=json), before_timing=None if json else say_timing)
    with gentle_stop() as stop:
        try:
            with way_on(out / RUN, "sotto resume"), progress_of_rounds(out.name, quiet=json) as observer:
                result = train(chosen, out / RUN, observer=observer, stop=stop)
        except Declined:
            print(f"stopped; delete {out} and begin again")
            sys.exit(stop.status)
    lines = (
        "accuracy is that of made-up text; it says nothing about yours",
        f"look at it: sotto report {result.path}, sotto keyboard {result.path}, sotto watch {result.path}",
        f"for real: sotto train {recipe} --out RUN{set_options(_without_run(settings))}",
    )
    print_result(result, json=json, next_step="\n".join(lines))
    end_stopped(result, stop)


def _without_run(settings: list[str] | None) -> list[str]:
    """What was set for practice as well as for the real run: fewer rounds to look at would cost the whole ε."""
    return [each for each in settings or () if not each.strip().startswith("run.")]


def _show(forecast: Forecast, *, json: bool) -> bool:
    if not json:
        show_work(forecast, log)
    return True
