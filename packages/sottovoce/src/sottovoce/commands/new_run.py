"""A new run: its folder with recipe, ledger and first checkpoint, and its people charged for what is planned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypedDict, Unpack

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.commands.baselines import measure_baselines
from sottovoce.commands.clock import NOT_TIMED, Pace
from sottovoce.commands.forecast import NOT_BEGUN, Confirm, Declined, Forecast, forecast_run
from sottovoce.commands.helper import assemble_for
from sottovoce.commands.initial_model import Start, charges_of_start, find_start, with_base, with_sizes
from sottovoce.commands.insert_canaries import SCORES, choose_canaries, initial_scores
from sottovoce.commands.stores import (
    has_own_store,
    make_own_store,
    make_practice_store,
    open_users,
    with_absolute_paths,
)
from sottovoce.data.store import Store
from sottovoce.federation.frozen import check_size
from sottovoce.federation.rounds import Coordinator
from sottovoce.local.objective import Objective, plain
from sottovoce.models.contract import LanguageModel
from sottovoce.multiprocess.group import Group
from sottovoce.runs.checkpoint import Checkpoint, check_room, digest, save_draft
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger, first_line
from sottovoce.runs.payments import begin_run, planned_rounds, store_ledger, vocabulary_charges
from sottovoce.runs.secrets import Secrets, new_name
from sottovoce.training.seats import check_seats
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Strategy
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.bases import PUBLIC
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Json, sealed
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import StartFacts

Stop = Callable[[], bool]


def never() -> bool:
    return False


class Given(TypedDict, total=False):
    """The fields of `Context`, as a caller gives them."""

    model: LanguageModel | None
    objective: Objective
    strategy: Strategy | None
    group: Group | None
    also_evaluate_on: Store | None
    coordinator: Coordinator | None
    confirm: Confirm | None
    before_timing: Callable[[], None] | None
    practice: bool


@dataclass(frozen=True)
class Context:
    """What a run takes from its caller, apart from the recipe."""

    model: LanguageModel | None = None
    objective: Objective = plain
    strategy: Strategy | None = None
    group: Group | None = None
    also_evaluate_on: Store | None = None  # public text
    coordinator: Coordinator | None = None  # where users are on devices
    confirm: Confirm | None = None  # asked before anybody is charged
    before_timing: Callable[[], None] | None = None  # called before a forecast times this machine
    practice: bool = False  # on made-up people

    @property
    def across_devices(self) -> bool:
        return self.coordinator is not None


class Opened(NamedTuple):
    """The users of a run, those held out, the objects of its recipe, and its pace, if it was measured."""

    store: Store
    test: Store | None
    assembly: Assembly
    pace: Pace = NOT_TIMED


def open_run(recipe: Recipe, run: RunFolder, context: Context, new: bool = False) -> Opened:
    if context.across_devices and context.strategy is not None:
        raise SottoError("a strategy of your own trains on a store, and these users are on devices; leave it out")
    store, test = open_users(recipe, run, context.across_devices)
    if new and context.model is None:
        recipe = with_base(recipe, store)
    before = _charged_before(recipe, run, store, new=new)
    own = {"model": context.model, "objective": context.objective, "strategy": context.strategy}
    assembly = assemble_for(context.group, recipe, store, **own, before=before)
    if assembly.is_private and not context.across_devices:  # devices train elsewhere
        check_seats(assembly.sum_updates, assembly.algorithm, assembly.params, store)
    return Opened(store, test, assembly)


def _charged_before(recipe: Recipe, run: RunFolder, store: Store, *, new: bool) -> Spent:
    """What the people of a private run were charged before its first round, and its ε includes.

    It is the charge for the vocabulary, and those of the runs that it starts from. A run that goes on has them in its
    ledger: what these were charged since is for other models.
    """
    if recipe.privacy.mode != "private":
        return ()
    if new:
        return [*vocabulary_charges(store), *charges_of_start(recipe, store)]
    start = start_in(first_line(run.ledger_file))
    return [*vocabulary_charges(store), *(start.charged if start else ())]


def start_in(header: Json) -> StartFacts | None:
    """What the ledger of a run keeps of the model that it began with."""
    return StartFacts.from_json(header["start"]) if "start" in header else None


def begin(recipe: Recipe | str | Path, out: Path, context: Context, stop: Stop = never) -> Opened:
    """Make the folder of a run that has done no round. A run that cannot be made leaves none behind.

    The folder has its name, on disk, before anybody is charged. If the charge fails or is cut off, `resume` makes it.
    Where the owner is asked, `stop` is asked once more right before people are charged: measuring takes a while.
    """
    if not isinstance(recipe, Recipe):
        recipe = Recipe.load(recipe)
    check_also(recipe, context.also_evaluate_on)
    with RunFolder.making(out) as draft:
        if context.practice:
            recipe = make_practice_store(recipe, draft)
        else:
            make_own_store(recipe, draft)
        recipe = with_sizes(with_absolute_paths(recipe))
        store, test, assembly, _ = open_run(recipe, draft, context, new=True)
        planned = planned_rounds(assembly.budget, assembly.recipe.privacy.noise_multiplier)
        start = find_start(assembly.recipe, store, assembly.model, given=context.model is not None)
        assembly = assembly.with_frozen_of(start.model)
        pace = _confirm(context, Opened(store, test, assembly), start, planned)
        if context.across_devices:
            check_size(assembly.frozen_arrays)
        if is_for_owner_alone(assembly, store, start.facts):
            draft.path.chmod(0o700)
        secrets = _new_secrets(assembly, store, start)
        draft.recipe_file.write_text(assembly.recipe.to_toml(), encoding="utf-8")
        header: Json = {
            "run": new_name(),
            "recipe": assembly.recipe.sha256(),
            "store": secrets.blind(store.fingerprint),
            "code": assembly.code,
            "planned": planned,
        }
        if assembly.turns:
            header["turns"] = secrets.blind(assembly.turns)
        if start.facts:
            header["start"] = start.facts.to_json()
        if assembly.algorithm.frozen is not None:
            frozen = assembly.frozen_arrays
            draft.save_frozen(frozen)
            header["frozen"] = digest(frozen)
        registry = choose_canaries(assembly.recipe, store)
        if registry:
            header["canaries"] = registry.summary().to_json()
            draft.write_json(draft.registry_file, registry.to_json())
        baselines = measure_baselines(assembly.recipe, start, test)
        draft.write_json(draft.baselines_file, sealed(baselines.to_json()))
        Ledger.create(draft.ledger_file, header)
        draft.record.path.touch()
        # From here on the start is in the checkpoint: the folder it came from may go.
        state = assembly.start(start.model)
        named = secrets.save(draft.secrets, state.noise_arrays())
        save_draft(draft.checkpoints, checkpoint_of(state, initial_scores(registry), named))
        check_room(draft)
        if context.confirm is not None and stop():
            raise Declined(NOT_BEGUN)
    run = RunFolder(out)
    if has_own_store(recipe):  # it moved with the folder
        store = replace(store, path=run.own_store, named=store.fingerprint)
    _pay(run, store, assembly, "sotto federate resume" if context.across_devices else "sotto resume")
    return Opened(store, test, assembly, pace)


def _pay(run: RunFolder, store: Store, assembly: Assembly, command: str) -> None:
    """Charge the people of a run that has its name, if anything is promised to them."""
    try:
        begin_run(run, Ledger.open(run.ledger_file), store_ledger(store), assembly.budget)
    except (OSError, SottoError) as error:
        then = f"go on with `{command} {run.path}`, which charges its people once"
        raise SottoError(f"{error}; the run is there: {then}") from error


def _confirm(context: Context, opened: Opened, start: Start, planned: int) -> Pace:
    """Ask the owner, if anyone is to be asked. Returns the pace, if it was measured.

    Raises:
        Declined: the run is not wanted. Nobody was charged.
    """
    if context.confirm is None:
        return NOT_TIMED
    store, test, assembly, _ = opened
    processes = context.group.count if context.group else 1
    forecast = forecast_run(assembly, store, test, start, planned, processes, context.before_timing)
    if not context.confirm(forecast):
        raise Declined(NOT_BEGUN)
    return forecast.pace


def forecast(recipe: Recipe | str | Path, out: str | Path | None = None, **given: Unpack[Given]) -> Forecast:
    """What a run of a recipe would charge and how long it would take. Nobody is charged, and no folder is made.

    Args:
        recipe: as for `train`.
        out: if named, it must be free for a run.
        given: as for `train`.
    """
    found: list[Forecast] = []

    def keep(forecast: Forecast) -> bool:
        found.append(forecast)
        return False

    context = replace(Context(**given), confirm=keep)
    with TemporaryDirectory() as work, suppress(Declined):
        begin(recipe, Path(work) / "run" if out is None else Path(out), context)
    return found[0]


def checkpoint_of(state: ServerState, scores: np.ndarray | None, facts: Json) -> Checkpoint:
    """A checkpoint of a state, with the scores of canaries."""
    arrays = state.to_arrays()
    if scores is not None:
        arrays[SCORES] = scores  # with the state they belong to: a round done again is not counted twice
    return Checkpoint(state.round, arrays, facts)


def check_also(recipe: Recipe, text: Store | None) -> None:
    """Refuse to evaluate a private run on people's text: the figures go into its public record, exactly."""
    if text is not None and text.people and recipe.privacy.mode == "private":
        raise SottoError(
            f"also_evaluate_on={text.path or 'a store in memory'} holds people's text, and its figures would be in the "
            f"public record without noise; give public text, or use `sotto evaluate` after training"
        )


def is_of_public_text(store: Store, start: StartFacts | None) -> bool:
    """Does a run on this store, from such a start, hold nothing of people?"""
    return not store.people and (start is None or start.trained_on == PUBLIC)


def is_for_owner_alone(assembly: Assembly, store: Store, start: StartFacts | None) -> bool:
    """Is nobody protected whose text is in the model? Then other accounts may not read it."""
    promised = assembly.is_private and assembly.recipe.privacy.secrets != "seeded"
    return not promised and not is_of_public_text(store, start)


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
