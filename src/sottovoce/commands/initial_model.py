"""Starting from the model of another run: do its words and sizes fit, and may a private run start from it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.accounting import rounded_up
from sottovoce.build.assembly import load_model, weights_of
from sottovoce.commands.stores import has_own_store
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import DamagedRun, SottoError
from sottovoce.models.contract import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import VOCABULARY, RunFolder
from sottovoce.runs.ledger import first_line
from sottovoce.runs.secrets import Secrets


@dataclass(frozen=True)
class Start:
    """The model a run begins with, and what its ledger and its statement keep of where it came from."""

    model: LanguageModel
    facts: dict[str, str] | None = None

    @property
    def weights(self) -> str:
        """A hash of the weights; nothing for those that the seed gives."""
        return self.facts["weights"] if self.facts else ""


def find_start(recipe: Recipe, store: Store, fresh: LanguageModel, given: bool = False) -> Start:
    """What `model.initial` names, or the fresh model; refused where it does not fit or would break a promise.

    Where the weights of a model that was `given` come from, only its owner knows: the statement says that.
    """
    if recipe.model.initial is None:
        if not given:
            return Start(fresh)
        name = digest(weights_of(fresh))
        word = "declared public by the owner" if recipe.privacy.mode == "private" else "of unknown origin"
        return Start(fresh, {"weights": name, "source": f"weights given from Python: {name}, {word}"})
    run = RunFolder.open(recipe.model.initial)
    weights = run.load_weights()
    if Vocabulary.load(run.model_file(VOCABULARY)).fingerprint != store.vocabulary.fingerprint:
        raise SottoError(
            f"the model of {run.path} has another vocabulary than the store {store.path}; prepare both with the same "
            f"words (sotto prepare --vocabulary)"
        )
    try:
        model = load_model(fresh, weights)
    except SottoError:
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in weights.items())
        raise SottoError(
            f"the weights of {run.path} ({sizes}) do not fit the recipe's [model]; give it the kind and the sizes of "
            f"that run"
        ) from None
    if recipe.privacy.mode == "private":
        _refuse_same_people(run, store)
    name = digest(weights_of(model))
    facts = {"weights": name, "run": _header(run)["run"], "source": _source(recipe, run.read_statement(), name)}
    return Start(model, facts)


def _source(recipe: Recipe, statement: dict[str, Any], weights: str) -> str:
    """What the statement says of a start: a promise of its own, or the owner's word."""
    if statement["private"]:
        epsilon = rounded_up(statement["epsilon"])
        return f"private start: {weights}, with ε = {epsilon} at δ = {statement['delta']:g} for its own users"
    if recipe.privacy.mode == "private":
        return f"public start: {weights}, declared public by the owner"
    return f"start: {weights}, of a run without a guarantee"


def _refuse_same_people(source: RunFolder, store: Store) -> None:
    """A private run promises its users that the model hardly depends on them: its start must not, either."""
    for run in _ancestors(source):
        if not _trained_on(run, store):
            continue
        if run.read_statement()["private"]:
            raise SottoError(
                f"{run.path} was trained on the users of {store.path} too, and its ε would have to be added to this "
                f"run's; start from a model of other people, or plan all rounds as one run"
            )
        raise SottoError(
            f"{run.path} was trained on the users of {store.path} without privacy: a private run that starts from it "
            f"would promise what is already broken; start from a model of public text, or of other people"
        )


def _ancestors(run: RunFolder) -> Iterator[RunFolder]:
    """A run, the one it started from, and so on."""
    while True:
        yield run
        start, before = _header(run).get("start"), Recipe.of(run).model.initial
        if start is None or before is None:
            return
        earlier = RunFolder(Path(before))
        if not earlier.recipe_file.is_file() or _header(earlier)["run"] != start["run"]:
            raise SottoError(
                f"{run.path} started from the run {start['run']}, which is no longer at {before}: whose text is in its "
                f"model cannot be told; put it back, or start from another run"
            )
        run = earlier


def _trained_on(run: RunFolder, store: Store) -> bool:
    """Did a run use this store, or what lay in its place?"""
    recipe = Recipe.of(run)
    if not has_own_store(recipe) and store.path is not None and Path(recipe.data.store) == store.path.resolve():
        return True
    try:
        secrets = Secrets.load_any(run.secrets)
    except DamagedRun:
        raise SottoError(
            f"the secrets of {run.path} are gone, and without them it cannot be told whom it was trained on; a private "
            f"run must start from another one"
        ) from None
    return _header(run)["store"] == secrets.blind(store.fingerprint)


def _header(run: RunFolder) -> dict[str, Any]:
    """The first line of a run's ledger, which may be in use."""
    return first_line(run.ledger_file)
