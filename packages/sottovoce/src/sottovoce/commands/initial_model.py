"""The model that a run starts from: that of another run, a base, a release or a folder of Hugging Face.

`find_start` is called once, when a run begins, and again where an audit trains a copy of it. One rule says from which
models a private run may start (`_facts_of`); `docs/explanation/guarantees.md` says why it is sound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sottovoce.build.assembly import filled_model, load_model, model_settings, weights_of
from sottovoce.build.rules import NEEDS_START
from sottovoce.commands.bases import check_name, fitting
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import load_tokenizer, option_of
from sottovoce.models.contract import LanguageModel
from sottovoce.models.hugging_face import CONFIG, load_rows, read_config
from sottovoce.models.lora import Adapted, merge, merge_weights, put_under
from sottovoce.runs.baselines import NOTHING
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import HUGGING_FACE, kind_of
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence import bases, signature
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.bases import NO_BASE, PUBLIC
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.recipe import Model, Recipe
from sottovoce_evidence.release import RUN_NAME, largest
from sottovoce_evidence.statement import PRIVATE, UNKNOWN, EarlierRun, StartFacts
from sottovoce_evidence.verify import FAILED, OWN_CODE, verify_release


@dataclass(frozen=True)
class Start:
    """The model a run begins with, and what its ledger and its statement keep of where it came from."""

    model: LanguageModel
    facts: StartFacts | None = None
    name: str = NOTHING  # for people to read

    @property
    def weights(self) -> str:
        """A hash of the weights; empty for those that the seed gives."""
        return self.facts.weights if self.facts else ""


def find_start(recipe: Recipe, store: Store, fresh: LanguageModel, given: bool = False, again: bool = False) -> Start:
    """The model that `model.initial` names, or the fresh model. It is refused if it does not fit or breaks a guarantee.

    Under the adapters of the fresh model, the weights of that model are frozen. Adapters that it has are merged first.

    Only the owner knows where the weights of a `given` model come from: the statement says so. A run that is trained
    `again` has begun with its start, and the owner is not asked for a word on it.

    Guarantee: a private run starts from a public model; or from private runs that were all charged to its own people,
    and its ε is that of all of them together; or from private runs none of which was, and its statement lists them with
    their ε.
    """
    private = recipe.privacy.mode == "private"
    if (source := _source_of(recipe)) is None:
        if not given and isinstance(fresh, Adapted):
            raise SottoError(f"model.adapter_rank={recipe.model.adapter_rank} {NEEDS_START}")
        if not given:
            return Start(fresh)
        facts = StartFacts(digest(weights_of(fresh)), PUBLIC if private else UNKNOWN, declared=private)
        return Start(fresh, facts, "weights given from Python")
    model = _fitted(source, merge(fresh), store)
    facts = replace(_facts_of(source, recipe, store, again=again), weights=digest(weights_of(model)))
    return Start(put_under(fresh, model), facts, source.title)


def _source_of(recipe: Recipe) -> ModelFolder | None:
    """The folder that `model.initial` names. The name of a base in the package is no path."""
    initial = recipe.model.initial
    return None if initial in (None, NO_BASE) else ModelFolder.open(bases.find(initial) or initial)


def _facts_of(source: ModelFolder, recipe: Recipe, store: Store, *, again: bool) -> StartFacts:
    """What a source says of itself, by the one rule for starts. Its weights are named later.

    A start is public, by its card or by its owner's word; or its runs are private. Of these, either all were charged to
    the people of this store, and are part of the ε of the new run; or none was, and the statement lists them. Without a
    guarantee a run may start from anything.
    """
    signer = _signer(source)
    if source.is_public:
        if source.base:
            check_name(source.path, source.base.name)
        if (base := source.base) is None:
            return StartFacts("", PUBLIC, signer=signer)
        return StartFacts("", PUBLIC, name=source.title, signer=signer, text=base.text, licence=base.licence)
    private = recipe.privacy.mode == "private"
    word = bool(recipe.model.initial_is_public) and not source.base  # whose card says what it is of
    if (runs := _runs_of(source)) and source.statement:
        if private:
            _check_release(source)
        start = source.statement.start
        return StartFacts(
            "",
            PRIVATE,
            declared=start is not None and start.declared,
            signer=signer,
            runs=runs,
            charged=tuple(charges_of_start(recipe, store)),
        )
    if private and not again and not word:
        raise SottoError(
            f"{source.path} gives no guarantee to the people whose text it was trained on, so a private run must not "
            f"start from it; if all of that text was public, say so: model.initial_is_public = true; otherwise start "
            f"from a base, or from a private run"
        )
    if private and word and _is_of(source, store):
        raise SottoError(
            f"{source.path} comes from the users of {store.path}, whose text is not public; remove "
            f"model.initial_is_public, and start from another model"
        )
    return StartFacts("", PUBLIC if word else UNKNOWN, declared=word)


def _is_of(source: ModelFolder, store: Store) -> bool:
    """Does a run without a guarantee come from this store? Then the owner's word that its text is public is wrong."""
    if store.path is None or source.statement is None:
        return False
    people, start = StoreLedger(store.path / "ledger.jsonl"), source.statement.start
    runs = [source.statement.run, *(run.run for run in (start.runs if start else ()))]
    return any(map(people.spent, runs)) or Path(source.recipe.data.store) == store.path.resolve()


def _runs_of(source: ModelFolder) -> tuple[EarlierRun, ...]:
    """The private runs that a model comes from, its own first; none where one of them has no guarantee."""
    statement = source.statement
    if statement is None or not source.has_guarantee:
        return ()
    start = statement.start
    if start is not None and start.trained_on not in (PUBLIC, PRIVATE):
        return ()
    # The people of the best of several runs were charged under the name of the choice.
    name = (statement.chosen.run if statement.chosen else None) or statement.run
    runs = (EarlierRun(name, statement.epsilon, statement.delta), *(start.runs if start else ()))
    if not all(RUN_NAME.fullmatch(run.run) for run in runs):  # they are part of this run's statement
        raise DamagedRun(f"{source.path} has a run whose name is none that a run has; get it again")
    return runs


def charges_of_start(recipe: Recipe, store: Store) -> Spent:
    """What the people of a store were charged for the private runs from which a private run starts.

    Raises:
        SottoError: some of these runs were charged to them and others were not, or their ε cannot be added up.
    """
    source = _source_of(recipe) if recipe.privacy.mode == "private" else None
    if source is None or source.is_public or store.path is None:
        return ()
    people, runs = StoreLedger(store.path / "ledger.jsonl"), {run.run for run in _runs_of(source)}
    charged = {run: spent for run in sorted(runs) if (spent := people.spent(run))}
    if charged and len(charged) < len(runs):
        raise SottoError(
            f"{source.path} comes from runs on the users of {store.path} ({', '.join(charged)}) and from runs on "
            f"others ({', '.join(sorted(runs - charged.keys()))}), and no ε is of both together; start from a model of "
            f"one of them"
        )
    if charged and recipe.federation.noise == "devices":
        raise SottoError(
            f"{source.path} was trained on the users of {store.path} too, and what the server saw of them then is not "
            f"in the ε against it; start from a model of other people, or set federation.noise = 'server'"
        )
    return [pair for spent in charged.values() for pair in spent]


def _check_release(source: ModelFolder) -> None:
    """A private run starts from a release that verifies. Without its run, nothing else is known of it."""
    if source.kind != "release":
        return
    found = verify_release(source.path, unsigned=True)
    if failed := [f"{check.name}: {check.found}" for check in found.checks if check.result == FAILED]:
        raise SottoError(f"{source.path} is not a release to start from ({'; '.join(failed)}); get it again")
    if unknown := [check.found for check in found.checks if check.name == OWN_CODE]:
        raise SottoError(
            f"{source.path} cannot be checked ({'; '.join(unknown)}); register that code first, and train from Python"
        )


def _signer(source: ModelFolder) -> str | None:
    """Who signed the folder of a release or a base; None where it is not signed."""
    if source.kind not in ("release", "base"):
        return None
    if not any((source.path / name).exists() for name in (signature.MANIFEST, signature.SIGNATURE)):
        return None
    purpose = signature.RELEASE if source.kind == "release" else signature.BASE
    signed = signature.check_folder(source.path, purpose, largest)
    if faults := [*signed.file_faults, *signed.signature_faults]:
        raise DamagedRun(f"{source.path} is not as its owner signed it ({'; '.join(faults)}); get it again")
    return signed.signer


def _fitted(source: ModelFolder, fresh: LanguageModel, store: Store) -> LanguageModel:
    """The fresh model with the weights of a source; refused where tokens, kind or sizes are others.

    A start without the contexts of the store gets them. A folder of Hugging Face may lack its tokenizer: the store has
    it.
    """
    own, file, foreign = store.vocabulary, source.tokenizer_file, source.kind == HUGGING_FACE
    theirs = own if foreign and not file.is_file() else load_tokenizer(file)
    if theirs.fingerprint not in (own.fingerprint, (own if foreign else own.without_contexts()).fingerprint):
        raise SottoError(
            f"{source.path} has other tokens than {store.path}; prepare the store with {option_of(file)} {file}"
        )
    if foreign:
        return load_model(fresh, load_rows(source.path, fresh, own))
    weights = merge_weights(source.weights)
    try:
        return load_model(fresh, with_contexts(weights, fresh, theirs, own))
    except SottoError:
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in weights.items())
        raise SottoError(
            f"the weights of {source.path} ({sizes}) do not fit the recipe's [model]; change its sizes"
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


def with_base(recipe: Recipe, store: Store) -> Recipe:
    """The recipe of a new run, which names what it starts from.

    A private run whose recipe does not say starts from the shipped base that fits its model and its vocabulary.
    """
    if recipe.model.initial is not None or recipe.privacy.mode != "private":
        return recipe
    filled = filled_model(recipe)
    words = store.vocabulary.without_contexts().fingerprint
    base = fitting(filled.model.kind, model_settings(filled), words)
    return recipe if base is None else recipe.replace(model={"initial": base})


def with_sizes(recipe: Recipe) -> Recipe:
    """The recipe with kind and sizes of the model that `model.initial` names, where that is a folder of Hugging Face.

    Only the context is the recipe's to choose: how much a token sees of what was read is a question of memory.
    """
    initial = recipe.model.initial
    if initial in (None, NO_BASE) or bases.find(initial) or kind_of(Path(initial)) != HUGGING_FACE:
        return recipe
    folder, given = ModelFolder.open(initial), model_settings(recipe)
    described, theirs = read_config(folder.path), model_settings(folder.recipe)
    said = f"and {folder.path / CONFIG} says"
    if recipe.model.kind not in (described.kind, Model().kind):
        raise SottoError(f"model.kind={recipe.model.kind!r}, {said} {described.kind!r}; leave it out")
    for name, value in described.settings.items():
        if name in given and given[name] != value:
            raise SottoError(f"model.{name}={given[name]!r}, {said} {value!r}; leave it out")
    context, most = given.get("context", theirs["context"]), described.longest - 1
    if context > most:
        raise SottoError(f"model.context={context}, {said} that the longest text has {most + 1} tokens; lower it")
    return recipe.replace(model={"kind": described.kind, **described.settings, "context": context})
