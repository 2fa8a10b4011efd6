"""`sotto select`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import confirmed, print_json, shown_epsilon
from sottovoce.cli.options import Flag, Json, Paths, Recipe, Settings, Strings, log, option
from sottovoce_evidence.errors import SottoError, plain_number


@Parameter(name="*")
@dataclass(frozen=True)
class Drawn:
    """How many runs there are, and what is tried."""

    runs: Annotated[float, option("Runs on average. How many there are is drawn at random, and not shown.")] = 5.0
    distribution: Annotated[
        Literal["logarithmic", "geometric"], option("Of their number; logarithmic is cheaper, and varies more.")
    ] = "logarithmic"
    tried: Annotated[
        Strings,
        option("Settings of a run, section.key=value and more after a space; repeat it to try others.", "--try"),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class Published:
    """How the release is published."""

    license: Annotated[str, option("Licence of the model, for its README.md: apache-2.0.")] = "other"
    language: Annotated[str | None, option("Language of the model, for its README.md: en.")] = None
    key: Annotated[Path | None, option("Ed25519 key that signs (default: yours, made on first use).")] = None


DRAWN, PUBLISHED = Drawn(), Published()


def select(
    recipe: Recipe,
    *,
    out: Annotated[Path, option("New folder for the release.")],
    public: Annotated[Paths, option("Public text to choose by, as for `sotto evaluate --public`.")] = None,
    settings: Settings = None,
    drawn: Drawn = DRAWN,
    published: Published = PUBLISHED,
    yes: Annotated[Flag, option("Do not ask before people are charged.")] = False,
    json: Json = False,
) -> None:
    """Train a random number of private runs, and release the one that predicts public text best.

    The store is charged once, for the best of so many runs (`sotto plan --select` shows what that costs). The other
    runs are erased unseen.

    Examples:
        sotto select mine.toml --runs 5 --public public.txt --out released
    """
    from sottovoce.commands.release_folder import Publication
    from sottovoce.commands.select import Choice, select_best
    from sottovoce_evidence import recipe as recipes

    if not public:
        raise SottoError("--public is missing: the best run is the one that predicts public text best")
    chosen = recipes.Recipe.load(recipe).with_settings(settings or ())
    choice = Choice(drawn.runs, drawn.distribution, tuple(tuple(one.split()) for one in drawn.tried or ()))
    question = f"charge {chosen.data.store} for the best of {drawn.runs:g} runs?"
    not_done = "nobody was charged, and nothing was released"
    if not yes and not json and not confirmed(question, not_done):
        return print(not_done)
    if not json:
        log("training; how many runs there are is not shown ...")
    publication = Publication(published.license, published.language, published.key)
    found = select_best(chosen, out, public, choice=choice, publication=publication)
    if json:
        return print_json(found.to_json())
    print(f"released: {found.out}, with ε = {shown_epsilon(found.epsilon)} at δ = {plain_number(found.delta)}")
    print(f"perplexity of the public text: {found.perplexity:.4g}")
    return print(f"anyone who has it checks it with: {found.check}")
