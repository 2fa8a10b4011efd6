"""The model that a run starts from: of another run, a base, a release or a file, if it fits and keeps the guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from sottovoce.build.assembly import build_model, filled_model, load_model, model_settings, weights_of
from sottovoce.build.rules import NEEDS_START
from sottovoce.commands.stores import has_own_store
from sottovoce.data.store import Store
from sottovoce.data.subwords import TOKENIZER
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import FILES, find_tokenizer, load_tokenizer, option_of
from sottovoce.models import registry
from sottovoce.models.contract import LanguageModel
from sottovoce.models.hugging_face import (
    CONFIG,
    TABLES_OF_TOKENS,
    fit_rows,
    is_hugging_face,
    load_weights,
    read_config,
    tokens_of_file,
)
from sottovoce.models.lora import Adapted, merge, merge_weights, put_under
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.baselines import NOTHING
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import WEIGHTS, RunFolder, is_release
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence import bases, signature
from sottovoce_evidence.accounting import rounded_up
from sottovoce_evidence.bases import NO_BASE, PUBLIC
from sottovoce_evidence.errors import DamagedRun, SottoError, count_of
from sottovoce_evidence.files import Json, check_plain, read_sealed, sha256_of
from sottovoce_evidence.ledger import StoreLedger, first_line
from sottovoce_evidence.recipe import Model, Recipe
from sottovoce_evidence.release import RUN_NAME, largest
from sottovoce_evidence.statement_text import DECLARED
from sottovoce_evidence.verify import FAILED, OWN_CODE, verify_release

PRIVATE = "private"  # under "trained_on" of a start: it and all before it is private or of public text


@dataclass(frozen=True)
class Start:
    """The model a run begins with, and what its ledger and its statement keep of where it came from."""

    model: LanguageModel
    facts: Json | None = None
    name: str = NOTHING  # for people to read

    @property
    def weights(self) -> str:
        """A hash of the weights; empty for those that the seed gives."""
        return self.facts["weights"] if self.facts else ""


def find_start(recipe: Recipe, store: Store, fresh: LanguageModel, given: bool = False, again: bool = False) -> Start:
    """The model that `model.initial` names, or the fresh model. It is refused if it does not fit or breaks a guarantee.

    Under the adapters of the fresh model, the weights of that model are frozen. Adapters that it has are merged first.

    Only the owner knows where the weights of a `given` model come from: the statement says so. A run that is trained
    `again` has begun with its start, and the owner is not asked for a word on it.

    Guarantee: a private run starts from a model only if its card, or its owner's word that it is public, shows that it
    does not depend on this run's users; or if it and all before it is private, and no run of it was charged to these
    users. A person who is among its users all the same has at most the sum of both ε.
    """
    if recipe.model.initial in (None, NO_BASE):
        if not given and isinstance(fresh, Adapted):
            raise SottoError(f"model.adapter_rank={recipe.model.adapter_rank} {NEEDS_START}")
        if not given:
            return Start(fresh)
        weights = digest(weights_of(fresh))
        word = DECLARED if recipe.privacy.mode == "private" else "of unknown origin"
        given_weights = "weights given from Python"
        return Start(fresh, {"weights": weights, "source": f"{given_weights}: {weights}, {word}"}, given_weights)
    start = _find_start(recipe, store, merge(fresh), again)
    return replace(start, model=put_under(fresh, start.model))


def _find_start(recipe: Recipe, store: Store, fresh: LanguageModel, again: bool) -> Start:
    """The plain model that `model.initial` names."""
    assert recipe.model.initial is not None
    if folder := _hugging_face_folder(recipe):
        return _from_hugging_face(recipe, store, fresh, folder)
    path = bases.find(recipe.model.initial) or Path(recipe.model.initial)
    file = path if path.suffix == ".safetensors" else path / WEIGHTS
    if file.is_file() and (file == path or not RunFolder(path).recipe_file.is_file()):
        _refuse_word(recipe)
        return _from_file(recipe, store, fresh, file)
    if not RunFolder(path).recipe_file.is_file():
        wrong = "holds no model" if path.exists() else "does not exist"
        raise SottoError(
            f"{str(path)!r}, from which training shall start, {wrong}; name a base, a run, a release or a folder of "
            f"Hugging Face"
        )
    return _from_run(recipe, store, fresh, RunFolder.open(path), again)


def _refuse_word(recipe: Recipe) -> None:
    """The owner's word on a start whose own files say what it was trained on."""
    if recipe.model.initial_is_public:
        raise SottoError(
            f"model.initial_is_public is for a folder of Hugging Face and for a run without a guarantee, and "
            f"{recipe.model.initial} is neither: what it was trained on is in its own files; remove the key"
        )


def with_base(recipe: Recipe, store: Store) -> Recipe:
    """The recipe of a new run, which names what it starts from.

    A private run whose recipe does not say starts from the shipped base that fits its model and its vocabulary.
    """
    if recipe.model.initial is not None or recipe.privacy.mode != "private":
        return recipe
    filled = filled_model(recipe)
    words = store.vocabulary.without_contexts().fingerprint
    base = bases.fitting(filled.model.kind, model_settings(filled), words)
    return recipe if base is None else recipe.replace(model={"initial": base})


def with_sizes(recipe: Recipe) -> Recipe:
    """The recipe with kind and sizes of the model that `model.initial` names, where that is a folder of Hugging Face.

    Only the context is the recipe's to choose: how much a token sees of what was read is a question of memory.
    """
    folder = _hugging_face_folder(recipe)
    if folder is None:
        return recipe
    described, given = read_config(folder), model_settings(recipe)
    said = f"and {folder / CONFIG} says"
    if recipe.model.kind not in (described.kind, Model().kind):
        raise SottoError(f"model.kind={recipe.model.kind!r}, {said} {described.kind!r}; leave it out")
    for name, value in described.settings.items():
        if name in given and given[name] != value:
            raise SottoError(f"model.{name}={given[name]!r}, {said} {value!r}; leave it out")
    most = described.longest - 1
    context = given.get("context", min(registry.defaults(described.kind)["context"], most))
    if context > most:
        raise SottoError(f"model.context={context}, {said} that the longest text has {most + 1} tokens; lower it")
    return recipe.replace(model={"kind": described.kind, **described.settings, "context": context})


def _hugging_face_folder(recipe: Recipe) -> Path | None:
    """The folder that `model.initial` names, if it is in the layout of Hugging Face. A run's folder is a run."""
    initial = recipe.model.initial
    if initial in (None, NO_BASE) or bases.find(initial):
        return None
    folder = Path(initial)
    return folder if is_hugging_face(folder) and not RunFolder(folder).recipe_file.is_file() else None


def _from_hugging_face(recipe: Recipe, store: Store, fresh: LanguageModel, folder: Path) -> Start:
    """Weights that were not made here. A private run needs the owner's word that their text was public."""
    public = _is_declared_public(recipe, folder)
    if recipe.privacy.mode == "private" and not public:
        raise SottoError(
            f"it is not known what {folder} was trained on, so a private run must not start from it; if its text was "
            f"public, say so: model.initial_is_public = true"
        )
    tokenizer, own = store.vocabulary, find_tokenizer(folder)
    if own.is_file() and load_tokenizer(own).fingerprint != tokenizer.fingerprint:
        raise SottoError(f"{folder} has another tokenizer than {store.path}; prepare the store with --tokenizer {own}")
    model = _with_weights_of(folder, fresh, tokenizer, store.path)
    name = digest(weights_of(model))
    source = f"public start: {name}, {DECLARED}" if public else f"start: {name}, of unknown origin"
    facts: Json = {"weights": name, "trained_on": PUBLIC if public else "people or unknown", "source": source}
    return Start(model, facts, f"folder {folder.name}")


def _with_weights_of(folder: Path, fresh: LanguageModel, tokenizer: Tokenizer, where: Path | None) -> LanguageModel:
    """The fresh model with the weights of a folder; `where` the tokenizer is from, for an error."""
    rows, wanted = read_config(folder).rows, tokens_of_file(tokenizer)
    if rows < wanted:
        raise SottoError(
            f"the embedding of {folder} has {rows:,} rows, and the tokenizer of {where} {wanted:,} tokens: each "
            f"needs a row; take the tokenizer of that model"
        )
    weights = load_weights(folder, fresh)
    tables = {name: fit_rows(weights[name], tokenizer) for name in TABLES_OF_TOKENS if name in weights}
    return load_model(fresh, {**weights, **tables})


class FromHuggingFace(NamedTuple):
    """A model as its folder has it: nothing was trained here."""

    recipe: Recipe
    model: LanguageModel
    tokenizer: Tokenizer


def find_hugging_face(path: str | Path) -> Path | None:
    """The folder, if it is in the layout of Hugging Face. A run, a release and a base are what they are."""
    folder = Path(path)
    ours = (
        bases.find(str(path)) or bases.is_base(folder) or is_release(folder) or RunFolder(folder).recipe_file.is_file()
    )
    return folder if not ours and is_hugging_face(folder) else None


def open_hugging_face(folder: Path) -> FromHuggingFace:
    """The model of a folder with its own tokenizer, which must lie in it."""
    file = find_tokenizer(folder)
    if not file.is_file():
        raise SottoError(f"{folder} has no {TOKENIZER}: its tokens are not known; put the one of that model there")
    tokenizer = load_tokenizer(file)
    recipe = with_sizes(Recipe().replace(model={"initial": str(folder)}))
    model = _with_weights_of(folder, build_model(recipe, tokenizer.size), tokenizer, file)
    return FromHuggingFace(recipe, model, tokenizer)


def _is_declared_public(recipe: Recipe, folder: Path) -> bool:
    """By the recipe, or by a card in the folder; a card that says something else is not overruled."""
    if not (folder / bases.CARD).is_file():
        return bool(recipe.model.initial_is_public)
    return read_card_of(folder / WEIGHTS).get("trained_on") == PUBLIC


def _from_run(recipe: Recipe, store: Store, fresh: LanguageModel, run: RunFolder, again: bool) -> Start:
    """A private run needs the owner's word on a run without a guarantee, or that began with a model without one."""
    model = _fitted(fresh, run.load_weights(), run.tokenizer_file(), store, f"the model of {run.path}")
    weights = digest(weights_of(model))
    statement, name = run.read_statement(), _checked(run.path, [first_line(run.ledger_file)["run"]])[0]
    public, protects = run.read_card().get("trained_on") == PUBLIC, _protects(run)
    safe = public or (protects and _is_safe(statement.get("start")))
    if safe:
        _refuse_word(recipe)
    source = _private_source(statement, weights) or f"start: {weights}, of a run without a guarantee"
    if recipe.privacy.mode == "private":
        _refuse_same_people(run, store, again)
        if not safe and not again and not recipe.model.initial_is_public:
            raise SottoError(_needs_word(run, protects))
        if not protects:
            source = f"public start: {weights}, {DECLARED}"
        elif not safe:
            source += f", what it began with {DECLARED}"
    facts: Json = {"weights": weights, "run": name, "source": source}
    if public:
        facts["trained_on"] = PUBLIC
    elif safe:
        facts |= {"trained_on": PRIVATE, "runs": _checked(run.path, _runs_of(statement))}
    return Start(model, facts, f"run {run.path.name}")


def _protects(run: RunFolder) -> bool:
    """Does a run have a guarantee for its users? Who knows the seed of a seeded run can undo its noise."""
    statement = read_statement(run)
    return statement.has_guarantee and statement.secrets != "seeded"


def _needs_word(run: RunFolder, protects: bool) -> str:
    why = "began with a model without a guarantee" if protects else "gives its users no guarantee"
    return (
        f"{run.path} {why}, so a private run must not start from it; if all of that text was public, say so: "
        f"model.initial_is_public = true; otherwise start from a base, or from a private run of other people"
    )


def _from_file(recipe: Recipe, store: Store, fresh: LanguageModel, file: Path) -> Start:
    """From a file of weights with `card.json` and its tokenizer in its folder, as `sotto release` writes them."""
    card = read_card_of(file)
    kind = card.get("kind")
    if kind is not None and kind != recipe.model.kind:
        raise SottoError(f"the card of {file} says kind {kind!r}, and model.kind={recipe.model.kind!r}; use that kind")
    words = find_tokenizer(file.parent)
    if not words.is_file():
        raise SottoError(
            f"{file} has no {' or '.join(FILES)} in its folder: its words cannot be compared; put it there"
        )
    model = _fitted(fresh, load_base_weights(file), words, store, str(file))
    weights, statement, signer = digest(weights_of(model)), _statement(card), _check_signature(file.parent)
    public = card.get("trained_on") == PUBLIC and not statement.get("private")
    if recipe.privacy.mode == "private" and not public:
        _check_people(file, statement, store)
    source = f"public start: {weights}, public by its own card" if public else f"start: {weights}, of a weights file"
    facts = {
        "weights": weights,
        "trained_on": PUBLIC if public else "people or unknown",
        "source": (_private_source(statement, weights) or source) + signer,
    }
    if public and {"name", "text"} <= card.keys():  # the card of a base; weights may have a shorter one
        bases.check_name(file.parent, card["name"])
        facts["name"] = f"base {card['name']}"
    name = f"base {file.parent.name}" if public else f"file {file.name}"
    if is_release(file.parent) and statement.get("private") and _is_safe(statement.get("start")):
        facts |= {"trained_on": PRIVATE, "runs": _checked(file.parent, _runs_of(statement))}
        name = f"release {file.parent.name}"
    return Start(model, facts, name)


def load_base_weights(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of weights. Those of a base are float16 on disk and float32 in training."""
    try:
        arrays = load_file(check_plain(file))
    except (SafetensorError, OSError) as error:
        raise DamagedRun(f"cannot read {file}: {error}") from None
    return {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in arrays.items()}


def _private_source(statement: Json, weights: str) -> str:
    """What the statement of a run says of a start that has a guarantee of its own; empty for others."""
    if not statement.get("private"):
        return ""
    epsilon = rounded_up(statement["epsilon"])
    own = f"with ε = {epsilon} at δ = {statement['delta']:g} for its own users"
    return f"private start: {weights}, {own} (a person who is among both has at most the sum of both ε)"


def _fitted(
    fresh: LanguageModel, weights: dict[str, np.ndarray], tokens: Path, store: Store, source: str
) -> LanguageModel:
    """The fresh model with these weights; refused where tokens, kind or sizes are others.

    A start without the contexts of the store gets them.
    """
    theirs, own = load_tokenizer(tokens), store.vocabulary
    if theirs.fingerprint not in (own.fingerprint, own.without_contexts().fingerprint):
        raise SottoError(
            f"{source} has other tokens than {store.path}; prepare the store with {option_of(tokens)} {tokens}"
        )
    try:
        whole = merge_weights(weights)
        return load_model(fresh, with_contexts(whole, fresh, theirs, own))
    except SottoError:
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in weights.items())
        raise SottoError(
            f"the weights of {source} ({sizes}) do not fit the recipe's [model]; change its sizes"
        ) from None


def with_contexts(
    weights: dict[str, np.ndarray], fresh: LanguageModel, theirs: Tokenizer, own: Tokenizer
) -> dict[str, np.ndarray]:
    """Weights with rows for the contexts of our own tokenizer, where theirs has none: copies of the row of BOS.

    Guarantee: after the token of any context the model says what it says after BOS.
    """
    wanted, sizes = weights_of(fresh), (theirs.size, own.size)
    if theirs.contexts == own.contexts:
        return weights

    def extended(name: str, array: np.ndarray) -> np.ndarray:
        for axis, both in enumerate(zip(array.shape, np.shape(wanted.get(name, array)), strict=False)):
            if both == sizes:
                row = array.take([theirs.specials.bos], axis)
                array = np.concatenate([array, np.repeat(row, len(own.contexts), axis)], axis)
        return array

    return {name: extended(name, array) for name, array in weights.items()}


def read_card_of(file: Path) -> Json:
    """The card of a file of weights; the files that it names must be those that were written."""
    path = file.parent / "card.json"
    if not path.is_file():
        raise SottoError(
            f"{file} has no card.json in its folder: it is not known what it was trained on; put its card there, with "
            f'"trained_on": "public" if that is so, or name the folder of a run'
        )
    try:
        card = read_sealed(path)
    except (OSError, ValueError) as error:
        raise SottoError(f"cannot read {path} ({error}); put the card back that belongs to {file.name}") from None
    named = _statement(card).get("files") or card.get("files", {})
    for name, sha256 in named.items():
        if (file.parent / name).is_file() and sha256_of(file.parent / name) != sha256:
            raise DamagedRun(f"{file.parent / name} is not the file that {path} names: it was changed; put it back")
    if named and file.name not in named:
        raise SottoError(f"{path} is the card of {WEIGHTS}, not of {file.name}; name that file")
    return card


def _statement(card: Json) -> Json:
    """The privacy statement in a card, if it has one."""
    statement = card.get("privacy", {})
    return statement if isinstance(statement, dict) else {}


def _check_signature(folder: Path) -> str:
    """Who signed the folder of a release or a base, for the statement; empty where it is not signed."""
    if not any((folder / name).exists() for name in (signature.MANIFEST, signature.SIGNATURE)):
        return ""
    purpose = signature.RELEASE if is_release(folder) else signature.BASE
    signed = signature.check_folder(folder, purpose, largest)
    if faults := [*signed.file_faults, *signed.signature_faults]:
        raise DamagedRun(f"{folder} is not as its owner signed it ({'; '.join(faults)}); get it again")
    return f", signed by {signed.signer}"


def _check_people(file: Path, statement: Json, store: Store) -> None:
    """A private run starts from a file of public text, or from a release: without its run, nothing else is known of it.

    A release is private towards its own people, whoever they are: a person who is in this store too has at most the sum
    of both ε. That holds for all that it started from, if that is public or private too.
    """
    if not is_release(file.parent):
        raise SottoError(
            f'the card of {file} does not say "trained_on": "public", so a private run must not start from it; take a '
            f"model of public text or a release, or name the folder of its run"
        )
    found = verify_release(file.parent, unsigned=True)
    if failed := [f"{check.name}: {check.found}" for check in found.checks if check.result == FAILED]:
        raise SottoError(f"{file.parent} is not a release to start from ({'; '.join(failed)}); get it again")
    if unknown := [check.found for check in found.checks if check.name == OWN_CODE]:
        raise SottoError(
            f"{file.parent} cannot be checked ({'; '.join(unknown)}); register that code first, and train from Python"
        )
    if not _is_safe(statement.get("start")):
        raise SottoError(
            f"{file.parent} is a release that started from a model without a guarantee, which may have seen the users "
            f"of {store.path}; start from another model"
        )
    _refuse_charged(file.parent, _runs_of(statement), store)


def _is_safe(start: Json | None) -> bool:
    """Is a start, and all that came before it, of public text or private?"""
    return start is None or start.get("trained_on") in (PUBLIC, PRIVATE)


def _runs_of(statement: Json) -> list[str]:
    """What people may have been charged for: a private run, the choice that it is of, and runs from which it came."""
    chosen = (statement.get("chosen") or {}).get("run")
    return [statement["run"], *([chosen] if chosen else []), *(statement.get("start") or {}).get("runs", ())]


def _checked(source: Path, runs: list[str]) -> list[str]:
    """The names of runs in files that somebody else may have written: they are part of this run's statement."""
    if not all(isinstance(run, str) and RUN_NAME.fullmatch(run) for run in runs):
        raise DamagedRun(f"{source} has a run whose name is none that a run has; get it again")
    return runs


def _refuse_charged(source: Path, runs: Iterable[str], store: Store) -> None:
    """Refuse a start for which the same people were charged."""
    if store.path is not None and any(StoreLedger(store.path / "ledger.jsonl").spent(run) for run in runs):
        raise SottoError(_of_same_people(source, store))


def _of_same_people(source: Path, store: Store) -> str:
    return (
        f"{source} was trained on the users of {store.path} too, and its ε would have to be added to this run's; "
        f"start from a model of other people, or plan all rounds as one run"
    )


def _refuse_same_people(source: RunFolder, store: Store, again: bool) -> None:
    """The start of a private run must not depend on its users: neither the run it comes from nor any run before it."""
    for run in _ancestors(source, store):
        if not _trained_on(run, store):
            if not again and not _protects(run) and (shared := _shared_ids(run, store)):
                raise SottoError(
                    f"{count_of(shared, 'user')} of {run.path}, which gives them no guarantee, and of {store.path} "
                    f"have the same id; start from a model of other people, or, if these are others, give them "
                    f"other ids"
                )
            continue
        if run.read_statement()["private"]:
            raise SottoError(_of_same_people(run.path, store))
        raise SottoError(
            f"{run.path} was trained on the users of {store.path} without privacy, so a private run must not start "
            f"from it; start from a model of public text, or of other people"
        )


def _shared_ids(run: RunFolder, store: Store) -> int:
    """How many users of a store are, by their ids, users of a run on another one, as far as both stores tell."""
    recipe = Recipe.of(run)
    if has_own_store(recipe):
        return 0  # synthetic people
    try:
        other = Store.open(recipe.data.store, check=False)
    except SottoError:  # it is gone, or on devices
        return 0
    if first_line(run.ledger_file)["store"] != Secrets.load_any(run.secrets).blind(other.fingerprint):
        raise SottoError(
            f"{other.path} is not the store that {run.path} was trained on, which gives its users no guarantee: it is "
            f"not known whether they are users of {store.path} too; put that store back, or start from another model"
        )
    if not (other.people and store.people) or other.practice:
        return 0
    theirs, own = other.rows.names, store.rows.names
    return 0 if theirs is None or own is None else len(np.intersect1d(theirs, own))


def _ancestors(run: RunFolder, store: Store) -> Iterator[RunFolder]:
    """A run, the one it started from, and so on, until all before is public, or private towards others."""
    while run.read_card().get("trained_on") != PUBLIC:
        yield run
        start, before = first_line(run.ledger_file).get("start"), Recipe.of(run).model.initial
        if start is None or before is None:
            return
        earlier = RunFolder(Path(before))
        there = "run" in start and earlier.recipe_file.is_file()
        if not there or first_line(earlier.ledger_file)["run"] != start["run"]:
            if not _is_safe(start):
                gone = f"started from a run that is no longer at {before}; put it back, or start anew"
                unknown = "started from weights that are not of public text by their card; start from another run"
                raise SottoError(f"{run.path} {gone if 'run' in start else unknown}")
            _refuse_charged(run.path, start.get("runs", ()), store)
            return
        run = earlier


def _trained_on(run: RunFolder, store: Store) -> bool:
    """Did a run use this store, or another one at its path?"""
    recipe, header = Recipe.of(run), first_line(run.ledger_file)
    if not has_own_store(recipe) and store.path is not None and Path(recipe.data.store) == store.path.resolve():
        return True
    try:
        secrets = Secrets.load_any(run.secrets)
    except DamagedRun:
        if _protects(run):
            # A release erased them. The ledger of a store says which runs its people were charged for.
            _refuse_charged(run.path, [header["run"]], store)
            return False
        text = f"the secrets of {run.path} are gone, so it is not known whom it was trained on; start from another run"
        raise SottoError(text) from None
    return header["store"] == secrets.blind(store.fingerprint)
