"""Starting from the model of another run, or from a file of weights: whether it fits, and whether it may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from sottovoce.accounting import rounded_up
from sottovoce.build.assembly import load_model, weights_of
from sottovoce.commands.stores import has_own_store
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import DamagedRun, SottoError
from sottovoce.files import read_sealed, sha256_of
from sottovoce.models.contract import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import VOCABULARY, WEIGHTS, RunFolder
from sottovoce.runs.ledger import StoreLedger, first_line
from sottovoce.runs.secrets import Secrets

PUBLIC = "public"  # in a card, under "trained_on"


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

    Where the weights of a model that was `given` come from, only its owner knows: the statement says so.

    Guarantee: a private run starts from a model only if its run, or its owner's word that it is public, shows that it
    does not depend on this run's users.
    """
    if recipe.model.initial is None:
        if not given:
            return Start(fresh)
        name = digest(weights_of(fresh))
        word = "declared public by the owner" if recipe.privacy.mode == "private" else "of unknown origin"
        return Start(fresh, {"weights": name, "source": f"weights given from Python: {name}, {word}"})
    path = Path(recipe.model.initial)
    if path.suffix == ".safetensors" or not RunFolder(path).recipe_file.is_file():
        file = path if path.suffix == ".safetensors" else path / WEIGHTS
        if file.is_file():
            return _from_file(recipe, store, fresh, file)
    run = RunFolder.open(path)
    vocabulary = Vocabulary.load(run.model_file(VOCABULARY))
    model = _fitted(fresh, run.load_weights(), vocabulary, store, f"the model of {run.path}")
    if recipe.privacy.mode == "private":
        _refuse_same_people(run, store)
    name = digest(weights_of(model))
    facts = {"weights": name, "run": _header(run)["run"], "source": _source(recipe, run.read_statement(), name)}
    if run.read_card().get("trained_on") == PUBLIC:
        facts["trained_on"] = PUBLIC
    return Start(model, facts)


def _fitted(
    fresh: LanguageModel, weights: dict[str, np.ndarray], vocabulary: Vocabulary, store: Store, source: str
) -> LanguageModel:
    """The fresh model with these weights; refused where vocabulary, kind or sizes are others."""
    if vocabulary.fingerprint != store.vocabulary.fingerprint:
        raise SottoError(
            f"{source} has another vocabulary than the store {store.path}; prepare both with the same words (sotto "
            f"prepare --vocabulary)"
        )
    try:
        return load_model(fresh, weights)
    except SottoError:
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in weights.items())
        raise SottoError(
            f"the weights of {source} ({sizes}) do not fit the recipe's [model]; give it the kind and the sizes that "
            f"they have"
        ) from None


def _from_file(recipe: Recipe, store: Store, fresh: LanguageModel, file: Path) -> Start:
    """A file of weights with `card.json` and `vocabulary.txt` in its folder, as `sotto release` writes them."""
    card = _read_card(file)
    kind = card.get("kind")
    if kind is not None and kind != recipe.model.kind:
        raise SottoError(f"the card of {file} says kind {kind!r}, and model.kind={recipe.model.kind!r}; use that kind")
    words = file.parent / VOCABULARY
    if not words.is_file():
        raise SottoError(f"{file} has no {VOCABULARY} in its folder: its words cannot be compared; put it there")
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DamagedRun(f"cannot read {file}: {error}") from None
    model = _fitted(fresh, weights, Vocabulary.load(words), store, str(file))
    name = digest(weights_of(model))
    public = card.get("trained_on") == PUBLIC and not _statement(card).get("private")
    if recipe.privacy.mode == "private" and not public:
        _refuse_people(file, card, store)
    trained_on = PUBLIC if public else "people or unknown"
    return Start(model, {"weights": name, "trained_on": trained_on, "source": _file_source(card, name, public)})


def _read_card(file: Path) -> dict[str, Any]:
    """The card of a file of weights; the files that it names must be those that were written."""
    path = file.parent / "card.json"
    if not path.is_file():
        raise SottoError(
            f"{file} has no card.json in its folder: what it was trained on cannot be told; put its card there, with "
            f'"trained_on": "public" if that is so, or name the folder of a run'
        )
    try:
        card = read_sealed(path)
    except (OSError, ValueError) as error:
        raise SottoError(f"cannot read {path} ({error}); put the card back that belongs to {file.name}") from None
    named = _statement(card).get("files", {})
    for name, sha256 in named.items():
        if (file.parent / name).is_file() and sha256_of(file.parent / name) != sha256:
            raise DamagedRun(f"{file.parent / name} is not the file that {path} names: it was changed; put it back")
    if named and file.name not in named:
        raise SottoError(f"{path} is the card of {WEIGHTS}, not of {file.name}; name that file")
    return card


def _statement(card: dict[str, Any]) -> dict[str, Any]:
    """The privacy statement in a card, if it has one."""
    statement = card.get("privacy", {})
    return statement if isinstance(statement, dict) else {}


def _refuse_people(file: Path, card: dict[str, Any], store: Store) -> None:
    """A private run starts from a file only if it is of public text: without its run, nothing shows whose text it saw.

    A released private model may be of the same people, and its ε would have to be added. Its run's secrets, by which
    stores are compared, are erased at release.
    """
    statement = _statement(card)
    if not statement.get("private"):
        raise SottoError(
            f'the card of {file} does not say "trained_on": "public": a private run that starts from it might promise '
            f"what is already broken; start from a model of public text, or name the folder of its run"
        )
    ledger = None if store.path is None else StoreLedger(store.path / "ledger.jsonl")
    if ledger is not None and ledger.spent(statement.get("run")):
        raise SottoError(
            f"{file} was trained on the users of {store.path} too, and its ε would have to be added to this run's; "
            f"start from a model of other people, or plan all rounds as one run"
        )
    raise SottoError(
        f"{file} is a released private model: without the secrets of its run it cannot be told whether it was trained "
        f"on the users of {store.path}; start from a model of public text"
    )


def _file_source(card: dict[str, Any], weights: str, public: bool) -> str:
    statement = _statement(card)
    if statement.get("private"):
        epsilon = rounded_up(statement["epsilon"])
        return f"private start: {weights}, with ε = {epsilon} at δ = {statement['delta']:g} for its own users"
    return f"public start: {weights}, of public text by its card" if public else f"start: {weights}, of a weights file"


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
        if "run" not in start:  # a file of weights
            if start.get("trained_on") == PUBLIC:
                return
            raise SottoError(
                f"{run.path} started from the weights in {before}, which are not of public text by their card: whose "
                f"text is in its model cannot be told; start from another run"
            )
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
