"""Where the users of a run are: a prepared store, or made-up people in the run's own folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sottovoce.build import rules
from sottovoce.data.demo import demo_vocabulary, write_demo
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import PreparationSummary, prepare
from sottovoce.data.store import Store, held_out_of, mark_as_practice
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation.roster import Roster, is_federation
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import SYNTHETIC, Recipe

DEMO_TOKENS_PER_USER = 160
USUAL_TOKENS_PER_USER = 480  # where the store of the recipe is not there: as the recipe `small` asks for


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The same recipe, valid in any folder."""
    if not recipe.data.store:
        raise SottoError("data.store is not set: name a folder made by `sotto prepare`, or demo:USERS")
    return recipe.with_paths(lambda path: str(Path(path).resolve()))


def has_own_store(recipe: Recipe) -> bool:
    """Is the store the synthetic population that lies in the run's folder?"""
    return recipe.data.store.startswith(SYNTHETIC)


def make_own_store(recipe: Recipe, run: RunFolder) -> None:
    """Write the synthetic population of a recipe that asks for one."""
    name = recipe.data.store
    if has_own_store(recipe):
        users = name.removeprefix(SYNTHETIC)
        if not users.isdecimal() or len(users) > 9 or int(users) < 1:
            raise SottoError(f"data.store={name!r} must be demo: and a number of users, for example demo:2000")
        prepare_demo(run.own_store, int(users))


def make_practice_store(recipe: Recipe, run: RunFolder) -> Recipe:
    """Write the made-up people of a practice into the run's folder; the recipe that trains on them.

    There are as many as the recipe declares. Of its store only what is public is used.
    """
    users = recipe.privacy.users
    if not users:
        raise SottoError("privacy.users is not set: a practice has as many made-up people as the recipe declares")
    vocabulary, tokens = public_facts(recipe)
    prepare_demo(run.own_store, users, vocabulary=vocabulary, tokens=tokens)
    mark_as_practice(run.own_store)
    return recipe.replace(data={"store": f"{SYNTHETIC}{users}"})


def public_facts(recipe: Recipe) -> tuple[Tokenizer, int]:
    """What is public of a recipe's store, for made-up users: the vocabulary, and the most tokens of a user.

    Without a store they are as `sotto prepare` has them.
    """
    if has_own_store(recipe):
        return demo_vocabulary(), DEMO_TOKENS_PER_USER
    if not recipe.data.store or not Path(recipe.data.store).is_dir():
        return Vocabulary.public(), USUAL_TOKENS_PER_USER
    store = Store.open(recipe.data.store)
    return store.vocabulary, store.tokens_per_user


def prepare_demo(
    out: Path, users: int, *, seed: int = 2018, vocabulary: Tokenizer | None = None, tokens: int = DEMO_TOKENS_PER_USER
) -> PreparationSummary:
    """The synthetic population as a store: about `users` to train on, and a tenth as many held out.

    People write between three quarters of `tokens` and half more, and are cut to it.
    """
    corpus = out.with_name(out.name + ".jsonl")
    try:
        write_demo(corpus, users=round(users / 0.9), seed=seed, tokens=(tokens * 3 // 4, tokens * 3 // 2))
        vocabulary = vocabulary or demo_vocabulary()
        return prepare([corpus], out, vocabulary, Grouping(tokens_per_user=tokens, test_users=0.1))
    finally:
        corpus.unlink(missing_ok=True)


def store_folder(recipe: Recipe, run: RunFolder) -> Path:
    """Where the users of a run are. A release does not say: the name in its recipe is no path of this machine."""
    if run.is_release:
        raise SottoError(f"{run.path} is a release, and has no users to measure on; give --corpus or --store")
    return run.own_store if has_own_store(recipe) else Path(recipe.data.store)


def open_users(recipe: Recipe, run: RunFolder, on_devices: bool = False) -> tuple[Store, Store | None]:
    """The users to train on, and those held out who are measured exactly, if any.

    Of users on devices only their number is known.
    """
    folder = store_folder(recipe, run)
    if on_devices and not is_federation(folder):
        raise SottoError(f"{folder} is no federation; make one with `sotto federate init`")
    if not on_devices and is_federation(folder):
        raise SottoError(
            f"{folder} is a federation; train with `sotto federate server`, go on with `sotto federate resume`"
        )
    if on_devices:
        rules.check(rules.device_rules(recipe))
        roster = Roster.open(folder)
        return roster.as_store(), roster.held_out_users()
    rules.check(rules.simulation_rules(recipe))
    if not folder.exists() and run.recipe_file.exists():
        raise SottoError(
            f"the store of this run, {folder}, is not there; put it back: it has what its people were charged"
        )
    train, test = Store.open(folder, "train"), held_out_of(folder)
    if recipe.privacy.mode == "private" and not train.people:
        raise SottoError(
            f"{folder} was prepared from plain text, and hiding a piece of it protects no person; train with "
            f"privacy.mode = 'none', or prepare records that name their users"
        )
    return with_public_text(recipe, train), test


def open_split(recipe: Recipe, run: RunFolder, split: str, *, privately: bool = False) -> Store:
    """The users of one split of a run's store; of a federation, those its server holds out."""
    folder = store_folder(recipe, run)
    if not is_federation(folder):
        return Store.open(folder, split, privately=privately)
    held_out = Roster.open(folder).held_out if split == "test" else None
    if held_out is None:
        raise SottoError(f"the text of {folder} is on its devices; give --corpus or --store to evaluate on")
    return Store.open(held_out, split, privately=privately)


def store_is_gone(recipe: Recipe, run: RunFolder) -> bool:
    return not store_folder(recipe, run).exists()


def held_out_users(recipe: Recipe, run: RunFolder) -> Store | None:
    """The held-out users of a run's store or federation who are measured exactly.

    None where there are none, where they were declared private, or the folder is gone.
    """
    folder = held_out_folder(recipe, run)
    return None if folder is None else held_out_of(folder)


def held_out_folder(recipe: Recipe, run: RunFolder) -> Path | None:
    """The store that holds out the users on whom a run is measured; None where there is none, or it is gone."""
    if run.is_release or store_is_gone(recipe, run):
        return None
    folder = store_folder(recipe, run)
    if not is_federation(folder):
        return folder
    held_out = Roster.open(folder).held_out
    return None if held_out is None else Path(held_out)


def with_public_text(recipe: Recipe, store: Store) -> Store:
    """The store, with the public text that its users rehearse if the recipe says so."""
    if recipe.local.public is None:
        return store
    return replace(store, public=Store.open(recipe.local.public).as_public())
