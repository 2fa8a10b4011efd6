"""`sotto practice`: a recipe on synthetic people, as many as it declares. Trying is then free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from sottovoce.commands.new_run import Given
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, has_own_store, prepare_demo
from sottovoce.commands.train import Observer, RunResult, Stop, never, train
from sottovoce.data.store import Store, mark_as_practice
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import check_empty
from sottovoce_evidence.recipe import Recipe

STORE, RUN = "store", "run"  # in the folder of a practice
TOKENS_PER_USER = 480  # where the store of the recipe is not there: as the recipe `small` asks for


def practice(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    observer: Observer | None = None,
    stop: Stop = never,
    **given: Unpack[Given],
) -> RunResult:
    """Train a recipe on synthetic people. The people of its store are neither read nor charged.

    There are as many as the recipe declares. Vocabulary and tokens of a user are those of its store, which are public;
    without a store they are as `sotto prepare` has them. Rounds, noise, time and files are those of the real run;
    accuracy is not, as synthetic people write a few sentences over and over.

    Args:
        recipe: as for `train`.
        out: a folder to make, for the people (`store`) and the run (`run`).
        observer: as for `train`.
        stop: as for `train`.
        given: as for `train`.
    """
    chosen = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    out = Path(out)
    return train(make_people(chosen, out), out / RUN, observer=observer, stop=stop, **given)


def make_people(recipe: Recipe, out: Path, log: Callable[[str], None] = lambda line: None) -> Recipe:
    """Write the synthetic people of a practice, and log that; the recipe with their store."""
    if not recipe.privacy.users:
        raise SottoError("privacy.users is not set: a practice has as many synthetic people as the recipe declares")
    if (begun := RunFolder(out / RUN)).recipe_file.exists():
        raise SottoError(
            f"{str(out)!r} holds another practice; use another --out, or go on with `sotto resume {begun.path}`"
        )
    check_empty(out)
    vocabulary, tokens = _public_facts(recipe)
    log(f"makes {recipe.privacy.users:,} synthetic people in {out}; no real person is read or charged")
    out.mkdir(parents=True, exist_ok=True)
    prepare_demo(out / STORE, recipe.privacy.users, vocabulary=vocabulary, tokens=tokens)
    mark_as_practice(out / STORE)
    return recipe.replace(data={"store": str(out / STORE)})


def _public_facts(recipe: Recipe) -> tuple[Tokenizer | None, int]:
    """The vocabulary and the most tokens of a user. Nothing else of the recipe's store is used: these are public."""
    if has_own_store(recipe):
        return None, DEMO_TOKENS_PER_USER
    if not recipe.data.store or not Path(recipe.data.store).is_dir():
        return Vocabulary.public(), TOKENS_PER_USER
    store = Store.open(recipe.data.store)
    return store.vocabulary, store.tokens_per_user
