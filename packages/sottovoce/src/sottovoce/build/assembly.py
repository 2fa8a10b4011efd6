"""From a recipe to the objects of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.build import rules
from sottovoce.build.algorithm import (
    build_objective,
    build_server,
    build_strategy,
    build_user_update,
)
from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.build.rules import StoreFacts
from sottovoce.data.store import Store
from sottovoce.kernels.find import find_program
from sottovoce.local.keys import local_key
from sottovoce.local.objective import Objective, plain
from sottovoce.local.update import FedAvg, User, UserUpdate
from sottovoce.models import registry
from sottovoce.models.contract import LanguageModel, layer_names, logits_of, split
from sottovoce.models.lora import Adapters, Survey, adapt, clip_parts
from sottovoce.runs.budget import Budget
from sottovoce.training.blocks import block_size
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Strategy, Work, play_rounds
from sottovoce.training.types import Algorithm, Payments, RoundResult
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Json
from sottovoce_evidence.mechanism import accountant_of
from sottovoce_evidence.recipe import ADAPTER_KEYS, Recipe

_NO_SIZES = ("kind", "initial", "initial_is_public")


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
    before: accounting.Spent  # what was spent on the store's vocabulary, which every model of it is released with
    strategy: Strategy
    turns: str | None = None  # where users come in turn: a fingerprint of the names that say when

    @property
    def params(self) -> Any:
        """What is trained of the model, as initialised."""
        return split(self.model)[0]

    def with_frozen_of(self, model: LanguageModel) -> Assembly:
        """The same, for the frozen part of this model."""
        return replace(self, algorithm=self.algorithm.with_frozen_of(model))

    def with_frozen(self, arrays: dict[str, np.ndarray]) -> Assembly:
        """The same, for a frozen part by name."""
        frozen = load_model(self.algorithm.frozen, arrays)
        return replace(self, algorithm=replace(self.algorithm, frozen=frozen))

    @property
    def frozen_arrays(self) -> dict[str, np.ndarray]:
        """The frozen part by name; nothing where all is trained."""
        return weights_of(self.algorithm.frozen)

    @property
    def adapter(self) -> Json | None:
        """The adapters of the recipe's model, for its card."""
        adapters = None if self.own_model else adapters_of(self.recipe)
        return None if adapters is None else asdict(adapters)

    def start(self, model: LanguageModel) -> ServerState:
        """The state before the first round."""
        mechanism = self.algorithm.mechanism
        params = split(model)[0]
        state = self.algorithm.server.start(params, mechanism.start(), mechanism.init_noise(params))
        return self.strategy.start(state)

    def rounds(self, state: ServerState, payments: Payments, work: Work) -> Iterator[tuple[ServerState, RoundResult]]:
        """Play the rounds that are left."""
        return play_rounds(partial(self.strategy.play, self.algorithm, work), state, self.recipe.run.rounds, payments)

    @property
    def budget(self) -> Budget:
        """What the run may spend."""
        privacy = self.recipe.privacy
        return Budget(
            self.algorithm.mechanism,
            self.recipe.run.rounds,
            privacy.delta,
            self.accountant,
            self.is_private,
            privacy.epsilon,
            tuple(self.before),
        )

    def traffic(self, store: Store, rounds: int) -> dict[str, float] | None:
        """Bytes: to one device, from one, both in a round for the expected cohort, and in all rounds.

        A frozen part is sent once to each user who joins: `frozen` for one, and in the total for as many as may join.
        None where no device sends.
        """
        if not self.strategy.federated:
            return None
        update = self.algorithm.user_update
        params = self.params
        down = up = 4 * sum(leaf.size for leaf in jax.tree.leaves(params))  # in float32
        if isinstance(update, FedAvg) and update.user_share < 1:
            down += (2 if store.vocabulary.size < 2**16 else 4) * int(update.rehearsed(store.tokens_per_user))
        privacy = self.recipe.privacy
        a_round = (down + up) * privacy.cohort
        found = {"down": down, "up": up, "round": a_round, "total": a_round * rounds}
        if self.algorithm.frozen is None:
            return found
        frozen = sum(array.nbytes for array in self.frozen_arrays.values())
        once = frozen * min(float(privacy.users), privacy.cohort * rounds)
        return {**found, "total": found["total"] + once, "frozen": frozen}

    @property
    def is_private(self) -> bool:
        """Is anything promised?"""
        return self.algorithm.mechanism.is_private


def assemble(
    recipe: Recipe, store: Store, *, model: LanguageModel | None = None, objective: Objective = plain,
    strategy: Strategy | None = None, before: accounting.Spent = (), processes: int = 1,
) -> Assembly:  # fmt: skip
    """Check the recipe as a whole and build what it describes, for the users of `store`.

    `model`, `objective` and `strategy` may be a researcher's own; with an own model the recipe's [model] section is not
    used. `before` was spent on the store's vocabulary, and counts towards the recipe's ε. `processes` share out every
    cohort.
    """
    recipe = resolve(recipe, before, processes)
    if model is None:
        recipe = filled_model(recipe)
    own_model, own_objective = model is not None, objective is not plain
    rules.check(rules.store_rules(recipe, StoreFacts.of(store), own_objective))
    if not own_objective:
        objective = build_objective(recipe)
    code = f"{_name(model, _recipes_model(recipe))} and {_objective_name(objective, recipe, store)}"
    if model is None:
        model, recipe = _with_adapters(recipe, _plain_model(recipe, store.vocabulary.size))
    _check_model(model, store.vocabulary.size)
    params, frozen = split(model)
    layers, devices_here = clip_parts(params), len(jax.local_devices())
    rules.check(rules.model_rules(recipe, list(layers), devices_here))
    if strategy is None:
        strategy = build_strategy(recipe)
    else:
        rules.check(rules.strategy_rules(recipe, processes))
        code = f"{code}, {strategy}"
    mechanism = build_mechanism(recipe, layers)
    # A store that does not know its users by name is refused here.
    # The users of a federation are named on their devices.
    in_turn = recipe.run.algorithm != "central" and not mechanism.sampler.amplifies and store.named is None
    turns = store.names_fingerprint if in_turn else None
    algorithm = Algorithm(
        mechanism=mechanism,
        user_update=build_user_update(recipe, mechanism.clipping, objective, store.vocabulary.specials.begins),
        server=build_server(recipe),
        weight_cap=recipe.privacy.weight_cap,
        frozen=frozen,
    )
    if own_model or own_objective:
        _check_update(algorithm.user_update, model, store.tokens_per_user, mechanism.clip_norms(1, mechanism.start()))
    devices = 1 if strategy.layout else recipe.run.devices or devices_here
    share, varies = recipe.privacy.cohort / (devices * processes), mechanism.sampler.varies
    block = block_size(model, share, recipe.run.block, algorithm.user_update, varies)
    products = find_program(recipe.run.kernels, algorithm.user_update, model, block)
    kind = jax.local_devices()[0].device_kind
    program = products.name if products else "the general program"
    layout = strategy.layout or f"{block} users at once on {devices} devices ({kind}), {program}"
    if processes > 1:
        layout += f", {processes} processes"
    return Assembly(
        recipe=recipe,
        model=model,
        algorithm=algorithm,
        sum_updates=SumInBlocks(block, products, devices),
        accountant=accountant_of(recipe.privacy),
        code=code,
        own_model=own_model,
        layout=layout,
        before=tuple(before),
        strategy=strategy,
        turns=turns,
    )


def build_model(recipe: Recipe, vocabulary: int) -> LanguageModel:
    """The model of a recipe with fresh weights, and with its adapters."""
    return _with_adapters(recipe, _plain_model(recipe, vocabulary))[0]


def _plain_model(recipe: Recipe, vocabulary: int) -> LanguageModel:
    return registry.build(recipe.model.kind, vocabulary, model_settings(recipe), _initial_key(recipe, "weights"))


def _with_adapters(recipe: Recipe, model: LanguageModel) -> tuple[LanguageModel, Recipe]:
    """The model with the adapters of a recipe, and the recipe, which then names the matrices that have one."""
    adapters = adapters_of(recipe)
    if adapters is None:
        return model, recipe
    survey = Survey(model, adapters)
    rules.check(rules.adapter_rules(survey))
    filled = recipe.replace(model={"adapter_scale": adapters.scale, "adapter_matrices": survey.patterns})
    return adapt(survey, _initial_key(recipe, "adapters")), filled


def _initial_key(recipe: Recipe, of: str) -> PRNGKeyArray:
    """The key of initial weights: public."""
    return local_key(hashlib.blake2b(f"initial {of} {recipe.run.seed}".encode(), digest_size=8).digest())


def adapters_of(recipe: Recipe) -> Adapters | None:
    """The adapters that a recipe asks for."""
    model = recipe.model
    if model.adapter_rank is None:
        return None
    scale = 1.0 if model.adapter_scale is None else model.adapter_scale
    return Adapters(model.adapter_rank, scale, model.adapter_matrices or (), model.adapter_trains or ())


def model_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of the recipe's kind of model: those of its adapters are not among them."""
    settings = recipe.to_dict()["model"].items()
    return {name: value for name, value in settings if name not in (*_NO_SIZES, *ADAPTER_KEYS)}


def filled_model(recipe: Recipe) -> Recipe:
    """With what was not set as the kind has it: a run's recipe tells its sizes, whatever the defaults become."""
    settings = model_settings(recipe)
    registry.check_settings(recipe.model.kind, settings)
    return recipe.replace(model={**registry.defaults(recipe.model.kind), **settings})


def load_model(like: Any, weights: dict[str, np.ndarray]) -> Any:
    """A model, or a part of one, shaped like another, with the weights of a run."""
    leaves, structure = jax.tree.flatten(like)
    names = layer_names(like)
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in zip(names, leaves, strict=True)}
    if {name: (array.shape, array.dtype) for name, array in weights.items()} != wanted:
        raise SottoError(f"the weights {sorted(weights)} do not fit the model {names}; pass the model they belong to")
    return structure.unflatten([jax.numpy.asarray(weights[name]) for name in names])


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """The arrays of a model, or of a part of one, by name."""
    return {name: np.asarray(leaf) for name, leaf in zip(layer_names(model), jax.tree.leaves(model), strict=True)}


def _recipes_model(recipe: Recipe) -> str:
    kind, rank = f"the {recipe.model.kind} of the recipe", recipe.model.adapter_rank
    return kind if rank is None else f"adapters of rank {rank} on {kind}"


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
    params, frozen = split(model)
    for part, of_float32 in ((params, True), (frozen, False)):
        for name, leaf in zip(layer_names(part), jax.tree.leaves(part), strict=True):
            if not eqx.is_array(leaf) or (of_float32 and leaf.dtype != np.float32):
                kind = leaf.dtype if eqx.is_array(leaf) else type(leaf).__name__
                raise SottoError(
                    f"the model's leaf {name} is {kind}, not an array{' of float32' if of_float32 else ''}; make it "
                    f"one, leave it out of `trained()`, or mark it with eqx.field(static=True)"
                )
    if not jax.tree.leaves(params):
        raise SottoError("the model has no trained array; let `trained()` be True for one")
    tokens = jax.ShapeDtypeStruct((3,), "int32")
    try:
        logits = jax.eval_shape(logits_of, model, tokens, jax.random.key(0))
    except Exception as error:
        contract = "initial_state(), read(tokens, state, key=None), logits(outputs)"
        raise SottoError(f"the model does not keep the contract ({contract}): {_one_line(error)}") from error
    if logits.shape != (3, vocabulary):
        raise SottoError(
            f"the model's logits of 3 outputs have shape {logits.shape}, not {(3, vocabulary)}: it must have a logit "
            f"for every token of the store's vocabulary"
        )
