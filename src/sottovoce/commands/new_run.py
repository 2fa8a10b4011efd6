"""A new run: its folder with recipe, ledger and first checkpoint, and its people charged for what is planned."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce.accounting import Spent
from sottovoce.build.assembly import Assembly
from sottovoce.commands.budget import charge_store, planned_rounds, store_folder, vocabulary_charges
from sottovoce.commands.helper import assemble_for
from sottovoce.commands.initial_model import Start, find_start
from sottovoce.commands.insert_canaries import choose_canaries, initial_scores
from sottovoce.commands.saving import save_checkpoint
from sottovoce.commands.stores import make_own_store, open_users, with_absolute_paths
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.objective import Objective
from sottovoce.models.contract import LanguageModel
from sottovoce.multiprocess.group import Group
from sottovoce.recipe import Recipe
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.lease import take_up
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.secrets import Secrets


def begin(
    recipe: Recipe | str | Path, out: Path, model: LanguageModel | None, objective: Objective, group: Group | None,
    beside: Store | None, across_devices: bool,
) -> None:  # fmt: skip
    """Make the folder of a run that has done no round. A run that cannot be made leaves none behind."""
    if not isinstance(recipe, Recipe):
        recipe = Recipe.load(recipe)
    recipe = with_absolute_paths(recipe)
    check_beside(recipe, beside)
    with RunFolder.making(out) as draft:
        make_own_store(recipe, draft)
        store, _ = open_users(recipe, draft, across_devices)
        words = owed_for_words(recipe, store)
        assembly = assemble_for(group, recipe, store, model=model, objective=objective, before=words)
        planned = planned_rounds(assembly)
        start = find_start(assembly.recipe, store, assembly.model, given=model is not None)
        secrets = _new_secrets(assembly, store, start)
        draft.recipe_file.write_text(assembly.recipe.to_toml(), encoding="utf-8")
        header: dict[str, Any] = {
            "run": secrets.name(),
            "recipe": assembly.recipe.sha256(),
            "store": secrets.blind(store.fingerprint),
            "code": assembly.code,
            "planned": planned,
        }
        if assembly.turns:
            header["turns"] = secrets.blind(assembly.turns)
        if start.facts:
            header["start"] = start.facts
        registry = choose_canaries(assembly.recipe, store)
        if registry:
            header["canaries"] = registry.summary().to_json()
            draft.write_json(draft.registry_file, registry.to_json())
        ledger = Ledger.create(draft.ledger_file, header)
        draft.record.path.touch()
        mechanism = assembly.algorithm.mechanism
        state = assembly.start(start.model)
        # From here on the start is in the checkpoint: the folder it came from may go.
        save_checkpoint(draft, state, secrets, start.weights, initial_scores(registry))
        # The store is charged for all planned rounds before the first: stopping early earns nothing back. A crash
        # right after this line charges for a run that never was, which errs on the safe side.
        for event, count in mechanism.events(planned):
            charge_store(store, secrets.name(), "training", event, count)
        if assembly.is_private:
            take_up(draft.secrets, store_folder(store), ledger.state)


def check_beside(recipe: Recipe, beside: Store | None) -> None:
    """What is measured beside a private run goes into its public record, exactly."""
    if beside is not None and beside.people and recipe.privacy.mode == "private":
        raise SottoError(
            f"beside={beside.path or 'a store in memory'} holds people's text, and how well a private run predicts it "
            f"would be in the public record without noise; give public text (`sotto prepare --plain-text`), or use "
            f"`sotto evaluate` after training"
        )


def owed_for_words(recipe: Recipe, store: Store) -> Spent:
    """What a private run owes for the words of its store."""
    return vocabulary_charges(store) if recipe.privacy.mode == "private" else ()


def _new_secrets(assembly: Assembly, store: Store, start: Start) -> Secrets:
    recipe = assembly.recipe
    if recipe.privacy.secrets == "seeded":
        # Store and start by what they hold, not by where they lie: a reproduction comes out alike in any folder.
        anywhere = recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None})
        # Runs of one recipe from two models, or by two objectives, must not share their noise.
        begun = hashlib.sha256(assembly.code.encode())
        for leaf in jax.tree.leaves(start.model):
            begun.update(np.asarray(leaf).tobytes())
        return Secrets.seeded(recipe.run.seed, f"{anywhere.sha256()} {store.fingerprint} {begun.hexdigest()}")
    return Secrets.fresh()
