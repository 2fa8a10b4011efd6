"""From a recipe to the objects of a run; the one place that refuses a bad combination."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import equinox as eqx
import jax
import numpy as np
import optax

from sottovoce import recipe as recipes
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.kernels import cpu, cuda
from sottovoce.kernels.lstm_users import Products, fits
from sottovoce.local.objective import Objective, Penalised, plain
from sottovoce.local.update import FedAvg, FedSGD, User, UserUpdate
from sottovoce.models.language_model import LanguageModel, layer_names
from sottovoce.models.lstm import LSTM
from sottovoce.privacy import accounting
from sottovoce.privacy.adaptive import QuantileTracking
from sottovoce.privacy.clipping import Clipping, FlatClip, NoClip, PerLayerClip, joint_norm
from sottovoce.privacy.estimators import ClippedDenominator, Estimator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import HardenedNoise, StandardNoise, noise_key
from sottovoce.privacy.sampling import FixedSize, Poisson, Sampler
from sottovoce.privacy.schedule import CONSTANT, Schedule
from sottovoce.recipe import Privacy, Recipe
from sottovoce.runs.fingerprint import fingerprint, is_reproducible
from sottovoce.training import central, simulation
from sottovoce.training.central import Passes, PooledRound
from sottovoce.training.round import Algorithm, CohortSum, Keys, Spender, SumUpdates
from sottovoce.training.server import Server, ServerState
from sottovoce.training.simulation import SumInBlocks, block_size, latency

Played = CohortSum | PooledRound


@dataclass(frozen=True)
class Assembly:
    """The objects of a run. `recipe` is the one given, with the noise that was solved for filled in."""

    recipe: Recipe
    model: LanguageModel  # as initialised
    algorithm: Algorithm
    sum_updates: SumInBlocks
    accountant: str
    code: str  # what was trained and on which loss, in words
    layout: str  # how users are shared out
    fingerprint: str
    before: accounting.Spent  # what was spent on the store's vocabulary, which every model of it is released with
    reproducible: bool  # will the same round on the same machine give the same sum to the bit?
    passes: Passes | None = None  # of central training: whose text makes a round

    def rounds(
        self, state: ServerState, store: Store, keys_of: Callable[[int], Keys], ledger: Spender, sum_updates: SumUpdates
    ) -> Iterator[tuple[ServerState, Played]]:
        """Play the rounds that are left."""
        last = self.recipe.run.rounds
        if self.passes is not None:
            return central.rounds(self.algorithm, self.passes, state, store, last, keys_of, ledger)
        return simulation.rounds(self.algorithm, state, store, last, keys_of, ledger, sum_updates)

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
    code = f"{_name(model, f'the {recipe.model.kind} of the recipe')} and {_name(objective, 'the plain objective')}"
    own_code = model is not None or objective is not plain
    if model is None:
        model = build_model(recipe, store.vocabulary.size)
    _check_model(model, store.vocabulary.size)
    passes = _build_passes(recipe, store, processes)
    stream = store.tokens_per_user * (passes.users_a_round if passes else 1)
    if recipe.local.batch * recipe.local.unroll > 4 * stream:
        raise SottoError(
            f"local.batch={recipe.local.batch} lanes of local.unroll={recipe.local.unroll} are mostly empty: "
            f"{'a round of central training has' if passes else 'users of the store have'} at most {stream} tokens; "
            f"use fewer lanes or a shorter unroll"
        )
    mechanism = build_mechanism(recipe, layer_names(model))
    if passes is None:
        mechanism.sampler.check(store.users)
    algorithm = Algorithm(
        mechanism=mechanism,
        user_update=_build_user_update(recipe, mechanism.clipping, objective),
        server=Server(_build_optimiser(recipe.server)),
        weight_cap=recipe.privacy.weight_cap,
    )
    if own_code:
        _check_update(algorithm.user_update, model, store.tokens_per_user, mechanism.clip_norms(1, mechanism.start()))
    devices = 1 if passes else _count_devices(recipe)
    block = block_size(model, recipe.privacy.cohort / (devices * processes), recipe.run.block)
    products = _find_products(recipe, algorithm.user_update, model, block)
    kind = jax.local_devices()[0].device_kind
    layout = f"{block} users at once on {devices} devices ({kind}), {'kernels' if products else 'the general program'}"
    if passes:
        layout = "pooled text"
    if processes > 1:
        layout += f", {processes} processes"
    return Assembly(
        recipe=recipe,
        model=model,
        algorithm=algorithm,
        sum_updates=SumInBlocks(block, products, devices, latency(products)),
        accountant=accountant_of(recipe.privacy),
        code=code,
        layout=layout,
        before=tuple(before),
        fingerprint=fingerprint(recipe.sha256(), store.fingerprint, layout),
        # A caller's own model or objective may have changed between two processes in ways that no file here shows.
        reproducible=not own_code and is_reproducible(),
        passes=passes,
    )


def build_model(recipe: Recipe, vocabulary: int) -> LanguageModel:
    seed = hashlib.blake2b(f"initial weights {recipe.run.seed}".encode(), digest_size=8).digest()
    return LSTM(vocabulary, embedding=recipe.model.embedding, hidden=recipe.model.hidden, key=noise_key(seed))


def load_model(like: LanguageModel, weights: dict[str, np.ndarray]) -> LanguageModel:
    """A model shaped like another, with the weights of a run."""
    leaves, structure = jax.tree.flatten(like)
    names = layer_names(like)
    if set(names) != set(weights) or any(weights[n].shape != leaf.shape for n, leaf in zip(names, leaves, strict=True)):
        raise SottoError(f"the weights {sorted(weights)} do not fit the model {names}; pass the model they belong to")
    return structure.unflatten([jax.numpy.asarray(weights[name]) for name in names])


def weights_of(model: LanguageModel) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in zip(layer_names(model), jax.tree.leaves(model), strict=True)}


def resolve(recipe: Recipe, before: accounting.Spent = ()) -> Recipe:
    """Refuse what has no valid meaning; find the noise for an ε that was asked for, `before` counted in."""
    if recipe.run.algorithm == "central":
        recipe = _resolve_central(recipe)
    privacy = recipe.privacy
    if privacy.users < 1:
        raise SottoError("privacy.users is not set: declare the population, a public constant (it gives q and W)")
    if privacy.cohort <= 0:
        raise SottoError("privacy.cohort is not set: it is the expected number of users in a round")
    _build_sampler(privacy)
    _check_schedules(recipe)
    if privacy.layer_clip_norms:
        # One meaning of S everywhere: the bound on the whole update.
        recipe = recipe.replace(privacy={"clip_norm": joint_norm(privacy.layer_clip_norms)})
    if privacy.mode == "none":
        return recipe
    if privacy.mode == "experiment":
        if privacy.epsilon is not None:
            raise SottoError("privacy.epsilon has no meaning in experiment mode: its ε is infinite; remove it")
        if privacy.noise_std is None and privacy.noise_multiplier is None:
            raise SottoError("experiment mode needs privacy.noise_std or privacy.noise_multiplier (0 is allowed)")
        if privacy.noise_std is not None and privacy.noise_multiplier is not None:
            raise SottoError("privacy.noise_std and privacy.noise_multiplier are both given; keep one")
        return recipe
    return _resolve_private(recipe, before)


def _resolve_central(recipe: Recipe) -> Recipe:
    if recipe.privacy.mode == "private":
        raise SottoError(
            "run.algorithm='central' has no user-level guarantee: it trains on pooled text, where nobody's part is "
            "bounded; use fedavg or fedsgd for a private run, or say privacy.mode = 'none'"
        )
    if recipe.privacy.mode == "experiment":
        raise SottoError(
            "run.algorithm='central' has no clip and no noise to experiment with; say privacy.mode = 'none'"
        )
    # No clip is what is done, whatever the default says: record and statement are to show it.
    return recipe.replace(privacy={"clipping": "none"})


def _build_passes(recipe: Recipe, store: Store, processes: int) -> Passes | None:
    """Whose text makes a round of central training; nothing for the others, which draw cohorts."""
    if recipe.run.algorithm != "central":
        return None
    cohort = recipe.privacy.cohort
    if cohort != int(cohort):
        raise SottoError(
            f"privacy.cohort={cohort:g} must be a whole number in central training: the users whose text is a round"
        )
    if recipe.run.devices > 1 or processes > 1:
        raise SottoError("run.algorithm='central' trains on one device, in one process; leave the others out")
    if not store.users:
        raise SottoError("the store has nobody to train on; central training needs one user at least")
    return Passes(int(cohort), recipe.run.seed)


def _resolve_private(recipe: Recipe, before: accounting.Spent) -> Recipe:
    privacy = recipe.privacy
    if privacy.noise_std is not None:
        raise SottoError("privacy.noise_std is for experiment mode; a private run derives it from noise_multiplier")
    if privacy.estimator == "true_average":
        raise SottoError(
            "privacy.estimator='true_average' has no bounded sensitivity: use fixed_denominator or clipped_denominator "
            "(the true average is for mode 'none')"
        )
    if privacy.clipping == "none":
        raise SottoError("privacy.clipping='none' bounds nobody's update; use flat or per_layer, or mode 'none'")
    if privacy.noise_multiplier is None and privacy.epsilon is None:
        raise SottoError("a private run needs privacy.noise_multiplier or privacy.epsilon")
    if privacy.noise_multiplier == 0:
        raise SottoError('privacy.noise_multiplier=0 must be above 0 in a private run; without noise use mode = "none"')
    if privacy.delta >= 1 / privacy.users and not privacy.allow_large_delta:
        raise SottoError(
            f"privacy.delta={privacy.delta:g} must be below 1/users = {1 / privacy.users:.2g}, or the guarantee allows "
            f"giving one person away; lower it, or say --allow-large-delta"
        )
    if privacy.weight_cap > 1 and privacy.total_weight == 0:
        raise SottoError(
            f"privacy.weight_cap={privacy.weight_cap:g} gives users unequal weights: declare privacy.total_weight (W), "
            f"a public constant"
        )
    accountant = accountant_of(privacy)
    accounting.check(accountant, privacy.sampling)
    # Kept, so that a run is judged to its end by the one it began with, whatever the default of a later version is.
    recipe = recipe.replace(privacy={"accountant": accountant})
    if before:
        _check_room(before, privacy, accountant)
    if privacy.noise_multiplier is None:
        assert privacy.epsilon is not None
        # What a round charges depends on z alone, so a plain clip may stand for the model's own.
        shape = Mechanism(
            _build_sampler(privacy), FlatClip(1.0), FixedDenominator(1.0), 1.0,
            noise_schedule=_build_schedule(privacy.noise_schedule),
        ).events(recipe.run.rounds)  # fmt: skip
        found = accounting.calibrate(shape, privacy.epsilon, privacy.delta, accountant, before=before)
        recipe = recipe.replace(privacy={"noise_multiplier": found})
    return recipe


def _check_room(before: accounting.Spent, privacy: Privacy, accountant: str) -> None:
    """Refuse a budget that the vocabulary alone uses up. (A δ that it uses up is refused by the accountant.)"""
    words = accounting.epsilon(before, privacy.delta, accountant)
    if privacy.epsilon is not None and words >= privacy.epsilon:
        raise SottoError(
            f"privacy.epsilon={privacy.epsilon:g} is used up by the store's vocabulary, which cost {words:.4g} at "
            f"delta={privacy.delta:g}; raise it, or train on a store with a cheaper or a public vocabulary"
        )


def _check_schedules(recipe: Recipe) -> None:
    """Refuse schedules that contradict the rest of the recipe."""
    privacy = recipe.privacy
    schedules = {"clip_schedule": privacy.clip_schedule, "noise_schedule": privacy.noise_schedule}
    for name, points in schedules.items():
        try:
            last = _build_schedule(points).last_change
        except SottoError as error:
            raise SottoError(f"privacy.{name}: {error}") from None
        if points and last > recipe.run.rounds:
            raise SottoError(
                f"privacy.{name} changes at round {last}, and run.rounds={recipe.run.rounds}: what would be planned "
                f"is not what is done; end the schedule before, or train longer"
            )
    if privacy.clip_schedule and privacy.adaptive_quantile is not None:
        raise SottoError("privacy.clip_schedule and privacy.adaptive_quantile both move the clip norm; keep one")
    if privacy.clip_schedule and privacy.clipping == "none" and privacy.mode != "experiment":
        raise SottoError("privacy.clip_schedule has nothing to change: privacy.clipping='none'; remove one of them")
    if privacy.clip_path != "steps" and len(privacy.clip_schedule) < 2:
        raise SottoError(f"privacy.clip_path={privacy.clip_path!r} needs a clip_schedule of two pairs or more")
    if privacy.noise_schedule and privacy.mode == "none":
        raise SottoError("privacy.noise_schedule has no meaning in mode 'none', which adds no noise; remove it")
    if privacy.layer_clip_norms and privacy.clipping != "per_layer":
        raise SottoError(
            f"privacy.layer_clip_norms are for privacy.clipping='per_layer', not {privacy.clipping!r}; change one"
        )


def accountant_of(privacy: Privacy) -> str:
    if privacy.accountant == "auto":
        return accounting.default_accountant(privacy.sampling)
    return privacy.accountant


def build_mechanism(recipe: Recipe, layers: Sequence[str]) -> Mechanism:
    """What is private about a recipe, for a model of these layers."""
    privacy = recipe.privacy
    if privacy.layer_clip_norms and len(privacy.layer_clip_norms) != len(layers):
        raise SottoError(
            f"privacy.layer_clip_norms has {len(privacy.layer_clip_norms)} norms, and the model {len(layers)} layers: "
            f"{', '.join(layers)}"
        )
    experiment = privacy.mode == "experiment"
    if experiment and privacy.noise_multiplier and privacy.estimator == "true_average":
        raise SottoError("privacy.noise_multiplier needs an estimator of bounded sensitivity; give noise_std instead")
    return Mechanism(
        sampler=_build_sampler(privacy),
        clipping=_build_clipping(privacy, len(layers)),
        estimator=_build_estimator(privacy),
        noise_multiplier=0.0 if privacy.mode == "none" else privacy.noise_multiplier or 0.0,
        clip_schedule=_build_schedule(privacy.clip_schedule, privacy.clip_path),
        noise_schedule=_build_schedule(privacy.noise_schedule),
        tracking=_build_tracking(privacy),
        noise=HardenedNoise() if privacy.randomness == "hardened" else StandardNoise(),
        experiment=experiment,
        experiment_noise_std=privacy.noise_std if experiment else None,
        nominal_clip_norm=privacy.clip_norm,
    )


def _build_schedule(points: tuple[tuple[float, ...], ...], path: str = "steps") -> Schedule:
    if not points:
        return CONSTANT
    if any(len(point) != 2 for point in points):
        raise SottoError(f"{[list(point) for point in points]} must be pairs [round, factor]: [[1, 1.0], [1000, 0.5]]")
    whole = tuple((int(number) if number == int(number) else number, factor) for number, factor in points)
    return Schedule(whole, path)  # pyrefly: ignore


def _build_tracking(privacy: Privacy) -> QuantileTracking | None:
    if privacy.adaptive_quantile is None:
        return None
    bit_noise = privacy.adaptive_bit_noise or privacy.cohort / 20
    return QuantileTracking(privacy.adaptive_quantile, privacy.adaptive_rate, bit_noise, privacy.cohort)


def _build_sampler(privacy: Privacy) -> Sampler:
    if privacy.sampling == "poisson":
        rate = privacy.cohort / privacy.users
        if rate > 1:
            raise SottoError(
                f"user_rate={rate:g} must be in (0, 1]; it is the chance that a user joins a round "
                f"(cohort {privacy.cohort:g} of {privacy.users} users?)"
            )
        return Poisson(rate, hardened=privacy.randomness == "hardened")
    if privacy.cohort != int(privacy.cohort):
        raise SottoError(f"privacy.cohort={privacy.cohort:g} must be a whole number for fixed-size sampling")
    return FixedSize(int(privacy.cohort), privacy.users, hardened=privacy.randomness == "hardened")


def _build_clipping(privacy: Privacy, layers: int) -> Clipping:
    if privacy.clipping == "flat":
        return FlatClip(privacy.clip_norm, privacy.clip_weighted)
    if privacy.clipping == "per_layer":
        if privacy.layer_clip_norms:
            return PerLayerClip(privacy.layer_clip_norms, privacy.clip_weighted)
        return PerLayerClip.even(privacy.clip_norm, layers, privacy.clip_weighted)
    return NoClip()


def _build_estimator(privacy: Privacy) -> Estimator:
    rate = privacy.cohort / privacy.users
    total = privacy.total_weight or float(privacy.users)
    if privacy.estimator == "fixed_denominator":
        return FixedDenominator(rate * total)
    if privacy.estimator == "clipped_denominator":
        return ClippedDenominator(rate * (privacy.min_weight or total))
    return TrueAverage()


def _build_user_update(recipe: Recipe, clipping: Clipping, objective: Objective) -> UserUpdate:
    local = recipe.local
    if local.penalty:
        if recipe.run.algorithm == "central":
            raise SottoError(
                f"local.penalty={local.penalty:g} is on what one user changed, and central training has no users "
                f"apart; use fedavg, or 0"
            )
        if recipe.run.algorithm == "fedsgd":
            raise SottoError(
                f"local.penalty={local.penalty:g} does nothing with fedsgd, whose one gradient is taken before "
                f"anything has changed; use fedavg, or 0"
            )
        if 2 * local.penalty * local.learning_rate >= 1:
            raise SottoError(
                f"local.penalty={local.penalty:g} must be below {0.5 / local.learning_rate:.3g}, half of "
                f"1 / learning_rate: a step would take back more than the whole update"
            )
        objective = Penalised(objective, local.penalty)
    if recipe.run.algorithm == "fedavg":
        return FedAvg(
            clipping, recipe.privacy.clip_when == "every_step", epochs=local.epochs, batch=local.batch,
            unroll=local.unroll, learning_rate=local.learning_rate, objective=objective,
        )  # fmt: skip
    # Central training takes the steps of FedSGD, on other people's text each.
    return FedSGD(
        clipping, batch=local.batch, unroll=local.unroll, learning_rate=local.learning_rate, tokens=local.tokens,
        objective=objective,
    )  # fmt: skip


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


@lru_cache  # optimisers are compared by identity: the same one again spares a compilation
def _build_optimiser(server: recipes.Server) -> optax.GradientTransformation:
    if server.optimiser == "momentum":
        return optax.sgd(server.learning_rate, momentum=server.momentum)
    if server.optimiser == "adam":
        return optax.adam(server.learning_rate)
    return optax.sgd(server.learning_rate)


def _name(part: object, usual: str) -> str:
    """How a model or an objective is called where people read it."""
    if part is None or part is plain:
        return usual
    return f"{getattr(part, '__qualname__', type(part).__qualname__)} of the caller"


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
    try:
        scores = jax.eval_shape(lambda model, tokens: model.score(model.read(tokens, model.start())[0]), model, tokens)
    except Exception as error:
        raise SottoError(f"the model does not keep the contract (start, read, score): {_one_line(error)}") from error
    if scores.shape != (3, vocabulary):
        raise SottoError(
            f"the model's score of 3 outputs has shape {scores.shape}, not {(3, vocabulary)}: it must score every "
            f"word of the store's vocabulary"
        )
