"""From a recipe to the objects of a run. With `promise`, the one place that refuses a bad combination."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sottovoce import accounting
from sottovoce.build.algorithm import (
    build_objective,
    build_passes,
    build_queue,
    build_server,
    build_transfer,
    build_user_update,
    check_canaries,
)
from sottovoce.build.mechanism import accountant_of, build_mechanism, resolve
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.kernels import cpu, cuda
from sottovoce.kernels.lstm_users import Products, fits
from sottovoce.local.objective import Objective, plain
from sottovoce.local.quantise import plain_size
from sottovoce.local.update import FedAvg, User, UserUpdate
from sottovoce.models import registry
from sottovoce.models.contract import LanguageModel, layer_names
from sottovoce.privacy.noise import noise_key
from sottovoce.privacy.sampling import InTurn
from sottovoce.recipe import Recipe
from sottovoce.runs.fingerprint import fingerprint, is_reproducible
from sottovoce.training import cohort_sum
from sottovoce.training.cohort_sum import SumInBlocks, block_size, latency
from sottovoce.training.round import Algorithm, CohortSum, Keys, Spender, SumUpdates, Watch
from sottovoce.training.server import ServerState
from sottovoce.training.variants import central, distillation, stale_updates
from sottovoce.training.variants.central import Passes, PooledRound
from sottovoce.training.variants.distillation import Transfer, TransferRound
from sottovoce.training.variants.stale_updates import Queue

Played = CohortSum | PooledRound | TransferRound


@dataclass(frozen=True)
class Assembly:
    """The objects of a run. `recipe` is the one given, with the noise that was solved for filled in."""

    recipe: Recipe
    model: LanguageModel  # as initialised
    algorithm: Algorithm
    sum_updates: SumInBlocks
    accountant: str
    code: str  # what was trained and on which loss, in words
    own_model: bool  # the model is the caller's, not the recipe's
    layout: str  # how users are shared out
    fingerprint: str
    before: accounting.Spent  # what was spent on the store's vocabulary, which every model of it is released with
    reproducible: bool  # will the same round on the same machine give the same sum to the bit?
    passes: Passes | None = None  # of central training: whose text makes a round
    transfer: Transfer | None = None  # where the server learns by imitation: from which text
    queue: Queue | None = None  # where devices are behind: which model they have
    turns: str | None = None  # where users come in turn: a fingerprint of the names that say when

    def start(self, model: LanguageModel) -> ServerState:
        """Before the first round."""
        state = self.algorithm.server.start(model, self.algorithm.mechanism.start())
        return state if self.queue is None else state._replace(deployed=self.queue.start(state.model))

    def rounds(
        self, state: ServerState, store: Store, keys_of: Callable[[int], Keys], ledger: Spender,
        sum_updates: SumUpdates, watch: Watch | None = None,
    ) -> Iterator[tuple[ServerState, Played]]:  # fmt: skip
        """Play the rounds that are left. `watch` is told of all that is in a round of Algorithm 1."""
        last = self.recipe.run.rounds
        if self.passes is not None:
            return central.rounds(self.algorithm, self.passes, state, store, last, keys_of, ledger)
        if self.transfer is not None:
            return distillation.rounds(self.algorithm, self.transfer, state, store, last, keys_of, ledger)
        if self.queue is not None:
            return stale_updates.rounds(self.algorithm, self.queue, state, store, last, keys_of, ledger, sum_updates)
        return cohort_sum.rounds(self.algorithm, state, store, last, keys_of, ledger, sum_updates, watch)

    def traffic(self, store: Store, rounds: int) -> dict[str, float] | None:
        """Bytes: to one device, from one, both in a round for as many as are expected, and in so many rounds.

        None where nobody sends.
        """
        if self.passes is not None:
            return None
        update = self.algorithm.user_update
        down = plain_size(self.model)
        if isinstance(update, FedAvg) and update.user_share < 1:
            down += (2 if store.vocabulary.size < 2**16 else 4) * int(update.rehearsed(store.tokens_per_user))
        up = update.compression.size(self.model) if update.compression else plain_size(self.model)
        a_round = (down + up) * self.recipe.privacy.cohort
        return {"down": down, "up": up, "round": a_round, "total": a_round * rounds}

    @property
    def is_private(self) -> bool:
        """Is anything promised?"""
        return not isinstance(self.algorithm.mechanism.event(1), accounting.NonPrivate)


def assemble(
    recipe: Recipe, store: Store, *, model: LanguageModel | None = None, objective: Objective = plain,
    before: accounting.Spent = (), processes: int = 1,
) -> Assembly:  # fmt: skip
    """Check the recipe as a whole and build what it describes, for the users of `store`.

    `model` and `objective` may be a researcher's own; the recipe's [model] section is then not used. `before` was
    spent on the store's vocabulary, and counts towards the recipe's ε. `processes` share out every cohort.
    """
    recipe = resolve(recipe, before)
    if model is None:
        recipe = _fill_model(recipe)
    own_model = model is not None
    own_code = own_model or objective is not plain
    if objective is plain:
        objective = build_objective(recipe, store)
    elif recipe.local.objective != "plain":
        raise SottoError(
            f"local.objective={recipe.local.objective!r} is in the recipe, and an objective of your own was given; "
            f"keep one"
        )
    code = f"{_name(model, f'the {recipe.model.kind} of the recipe')} and {_objective_name(objective, recipe, store)}"
    if model is None:
        model = build_model(recipe, store.vocabulary.size)
    _check_model(model, store.vocabulary.size)
    check_canaries(recipe, processes)
    passes, imitated = build_passes(recipe, store, processes), build_transfer(recipe, store, processes)
    if imitated:
        code += f", transfer learning on {_text_name(store) if not imitated.generated else 'generated text'}"
    stream = store.tokens_per_user * (passes.users_a_round if passes else 1)
    if recipe.local.batch * recipe.local.unroll > 4 * stream:
        raise SottoError(
            f"local.batch={recipe.local.batch} lanes of local.unroll={recipe.local.unroll} are mostly empty: "
            f"{'a round of central training has' if passes else 'users of the store have'} at most {stream} tokens; "
            f"use fewer lanes or a shorter unroll"
        )
    mechanism = build_mechanism(recipe, layer_names(model))
    # A store that does not know its users by name is refused here.
    turns = store.names_fingerprint if passes is None and isinstance(mechanism.sampler, InTurn) else None
    algorithm = Algorithm(
        mechanism=mechanism,
        user_update=build_user_update(recipe, mechanism.clipping, objective),
        server=build_server(recipe),
        weight_cap=recipe.privacy.weight_cap,
    )
    if own_code:
        _check_update(algorithm.user_update, model, store.tokens_per_user, mechanism.clip_norms(1, mechanism.start()))
    devices = 1 if passes or imitated else _count_devices(recipe)
    block = block_size(model, recipe.privacy.cohort / (devices * processes), recipe.run.block)
    products = _find_products(recipe, algorithm.user_update, model, block)
    kind = jax.local_devices()[0].device_kind
    layout = f"{block} users at once on {devices} devices ({kind}), {'kernels' if products else 'the general program'}"
    if passes:
        layout = "pooled text"
    if imitated:
        layout = "one user after another"
    if processes > 1:
        layout += f", {processes} processes"
    return Assembly(
        recipe=recipe,
        model=model,
        algorithm=algorithm,
        sum_updates=SumInBlocks(block, products, devices, latency(products)),
        accountant=accountant_of(recipe.privacy),
        code=code,
        own_model=own_model,
        layout=layout,
        before=tuple(before),
        fingerprint=fingerprint(recipe.sha256(), f"{store.fingerprint} {turns or ''}{code}", layout),
        # A caller's own model or objective may have changed between two processes in ways that no file here shows.
        reproducible=not own_code and is_reproducible(),
        passes=passes,
        transfer=imitated,
        queue=build_queue(recipe),
        turns=turns,
    )


def build_model(recipe: Recipe, vocabulary: int) -> LanguageModel:
    seed = hashlib.blake2b(f"initial weights {recipe.run.seed}".encode(), digest_size=8).digest()
    return registry.build(recipe.model.kind, vocabulary, _model_settings(recipe), noise_key(seed))


def _model_settings(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.to_dict()["model"].items() if name not in ("kind", "initial")}


def _fill_model(recipe: Recipe) -> Recipe:
    """With what was not set as the kind has it: a run's recipe tells its sizes, whatever the defaults become."""
    settings = _model_settings(recipe)
    registry.check_settings(recipe.model.kind, settings)
    return recipe.replace(model={**registry.defaults(recipe.model.kind), **settings})


def load_model(like: LanguageModel, weights: dict[str, np.ndarray]) -> LanguageModel:
    """A model shaped like another, with the weights of a run."""
    leaves, structure = jax.tree.flatten(like)
    names = layer_names(like)
    if set(names) != set(weights) or any(weights[n].shape != leaf.shape for n, leaf in zip(names, leaves, strict=True)):
        raise SottoError(f"the weights {sorted(weights)} do not fit the model {names}; pass the model they belong to")
    return structure.unflatten([jax.numpy.asarray(weights[name]) for name in names])


def weights_of(model: LanguageModel) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in zip(layer_names(model), jax.tree.leaves(model), strict=True)}


def _count_devices(recipe: Recipe) -> int:
    there = len(jax.local_devices())
    if recipe.run.devices > there:
        raise SottoError(f"run.devices={recipe.run.devices} is more than the {there} there are; 0 takes all")
    return recipe.run.devices or there


def _find_products(recipe: Recipe, update: UserUpdate, model: LanguageModel, block: int) -> Products | None:
    """Kernels for this model on this device, if there are any."""
    if recipe.run.kernels == "off" or not fits(update, model):
        return None
    if jax.default_backend() == "cpu":
        return cpu.ONE_USER if block == 1 else None
    return cuda.products(update, model)  # pyrefly: ignore


def _name(part: object, usual: str) -> str:
    """How a model or an objective is called where people read it."""
    if part is None or part is plain:
        return usual
    return f"{getattr(part, '__qualname__', type(part).__qualname__)} of the caller"


def _objective_name(objective: Objective, recipe: Recipe, store: Store) -> str:
    """How what is minimised is called. Public text is named by what it holds: a run goes on with the same."""
    if recipe.local.objective == "plain":
        return _name(objective, "the plain objective")
    kind = recipe.local.objective.replace("_", " ")
    text = f" of {_text_name(store)}" if recipe.local.objective == "rehearsal" else ""
    return f"{kind}{text}, λ = {recipe.local.user_share:g}"


def _text_name(store: Store) -> str:
    assert store.public is not None
    return f"text {store.public.fingerprint[:8]}"


def _check_update(update: UserUpdate, model: LanguageModel, length: int, clip_norms: np.ndarray) -> None:
    """Trace a caller's own code before anybody is charged for it."""
    user = User(jax.ShapeDtypeStruct((length,), "int32"), jax.ShapeDtypeStruct((), "int32"))  # pyrefly: ignore
    try:
        jax.eval_shape(update, model, user, jax.random.key(0), clip_norms, 1)
    except Exception as error:
        raise SottoError(f"the model or objective of your own cannot be traced: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) < 300 else text[:300] + " …"


def _check_model(model: LanguageModel, vocabulary: int) -> None:
    for name, leaf in zip(layer_names(model), jax.tree.leaves(model), strict=True):
        if not (eqx.is_array(leaf) and leaf.dtype == np.float32):
            kind = leaf.dtype if eqx.is_array(leaf) else type(leaf).__name__
            raise SottoError(
                f"the model's leaf {name} is {kind}, not an array of float32; make it one, or mark what is not trained "
                f"with eqx.field(static=True)"
            )
    tokens = jax.ShapeDtypeStruct((3,), "int32")

    def score(model: LanguageModel, tokens: Any, key: Any) -> Any:
        model.read(tokens, model.start(), key)  # as it is trained
        return model.score(model.read(tokens, model.start())[0])

    try:
        scores = jax.eval_shape(score, model, tokens, jax.random.key(0))
    except Exception as error:
        contract = "start(), read(tokens, state, key=None), score(outputs)"
        raise SottoError(f"the model does not keep the contract ({contract}): {_one_line(error)}") from error
    if scores.shape != (3, vocabulary):
        raise SottoError(
            f"the model's score of 3 outputs has shape {scores.shape}, not {(3, vocabulary)}: it must score every "
            f"word of the store's vocabulary"
        )
