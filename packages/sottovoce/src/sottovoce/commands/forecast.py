"""Before a run begins: what it will charge its people, how long it will take, and what does not fit together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.commands.baselines import evaluated_users
from sottovoce.commands.clock import NOT_TIMED, Pace, evaluations
from sottovoce.commands.initial_model import Start
from sottovoce.commands.stores import has_own_store
from sottovoce.data.examples import example_rows
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import last_typed
from sottovoce.evaluation.figures import coarse_count
from sottovoce.evaluation.prediction import evaluate, users_at_once
from sottovoce.federation.roster import is_federation
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel, parameter_count, split
from sottovoce.planning.grid import Choice, fewest_rounds, is_long
from sottovoce.planning.plan import privacy_warnings
from sottovoce.runs.payments import store_ledger
from sottovoce.training.strategy import FederatedAveraging
from sottovoce.training.types import Task
from sottovoce.training.variants.example_level import ExampleLevel
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.files import Facts
from sottovoce_evidence.statement import store_total

SMALLEST_EPSILON = 0.1  # below it, no run that we measured learned anything


MADE_UP = "made-up people"  # whose store is made in the folder of the run
NOT_BEGUN = "the run was not begun: nobody was charged"


class Declined(SottoError):
    """The owner did not want the run: nobody was charged."""


@dataclass(frozen=True)
class Forecast(Facts):
    """What a run will cost. For the owner alone: warnings and the store's total are about people."""

    start: str
    store: str
    private: bool
    epsilon: float
    delta: float
    epsilon_store: float  # of all runs on the store, this one included
    users: int  # declared
    cohort: float
    rounds: int
    noise_std: float
    seconds: float | None  # of rounds and evaluations, if all people write as much as they may; None: not known
    shorter: Choice | None  # of a long run: a quarter of its rounds
    warnings: tuple[str, ...]
    mismatches: tuple[str, ...]  # beyond a factor of two
    pace: Pace = NOT_TIMED
    sampled: str = "users"  # what a cohort is of
    rounds_asked: int = 0  # by the recipe: more than `rounds` where the budget is spent before


Confirm = Callable[[Forecast], bool]


def forecast_run(
    assembly: Assembly,
    store: Store,
    test: Store | None,
    start: Start,
    planned: int,
    processes: int = 1,
    before_timing: Callable[[], None] | None = None,
) -> Forecast:
    """The forecast of a run that is about to begin. It reads the store's ledger, and writes nothing."""
    mechanism, privacy, accountant = assembly.algorithm.mechanism, assembly.recipe.privacy, assembly.accountant
    epsilon = epsilon_store = math.inf
    if assembly.is_private:
        charged = mechanism.events(planned)
        epsilon = accounting.epsilon([*assembly.before, *charged], privacy.delta, accountant)
        epsilon_store, _ = store_total([*store_ledger(store).spent(), *charged], privacy.delta, accountant)
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    noise_std = mechanism.noise_std(1, clip_norms)[0]
    pace, settings = NOT_TIMED, assembly.recipe.run
    if _trains_here(assembly, store):
        if before_timing is not None:
            before_timing()
        pace = _pace(assembly, store, test, start, processes)
    measured = evaluations(settings, 0, planned) + (start.facts is not None)  # the start is measured too
    seconds = pace.seconds(planned, measured)
    return Forecast(
        start=start.name,
        store=MADE_UP if has_own_store(assembly.recipe) else str(store.path),
        private=assembly.is_private,
        epsilon=epsilon,
        delta=privacy.delta,
        epsilon_store=epsilon_store,
        users=privacy.users,
        cohort=privacy.cohort,
        rounds=planned,
        noise_std=noise_std,
        seconds=seconds,
        shorter=_shorter(assembly, epsilon, seconds),
        warnings=tuple(_warnings(assembly, epsilon, noise_std)),
        mismatches=tuple(_mismatches(assembly, store)),
        pace=pace,
        sampled=sampled(assembly),
        rounds_asked=settings.rounds,
    )


def _shorter(assembly: Assembly, epsilon: float, seconds: float | None) -> Choice | None:
    """Only where ε is asked for, and all of it is the run's: otherwise fewer rounds would have another ε."""
    recipe, asked = assembly.recipe, assembly.recipe.privacy.epsilon
    if seconds is None or not is_long(seconds, recipe.run.rounds):
        return None
    if asked is None or assembly.before or not math.isclose(epsilon, asked, rel_tol=1e-2):
        return None
    return fewest_rounds(recipe)


def _warnings(assembly: Assembly, epsilon: float, noise_std: float) -> Iterator[str]:
    """What the recipe alone shows."""
    privacy = assembly.recipe.privacy
    if not assembly.is_private:
        return
    all_join = privacy.rate > 0.5
    length = noise_std * math.sqrt(parameter_count(assembly.params))
    signal = privacy.clip_norm / length if length else None
    yield from privacy_warnings(privacy.users, privacy.delta, epsilon, signal)
    if epsilon < SMALLEST_EPSILON:
        yield f"ε = {accounting.rounded_up(epsilon)} is so small that noise hides all there is to learn"
    if all_join:
        yield (
            f"more than half of the declared {sampled(assembly)} ({privacy.cohort:g} of {privacy.places:,}) join "
            f"every round: a larger cohort of the same users gains little, and takes longer"
        )


def sampled(assembly: Assembly) -> str:
    """What a cohort is of."""
    return "examples" if isinstance(assembly.strategy, ExampleLevel) else "users"


def _mismatches(assembly: Assembly, store: Store) -> Iterator[str]:
    """What is declared against what is in the store, of whose numbers only two digits count."""
    if isinstance(assembly.strategy, ExampleLevel):
        weight, length, most = assembly.recipe.privacy.declared_weight, assembly.strategy.length, assembly.strategy.most
        found = coarse_count(example_rows(store, length, most).with_text)
        if not 0.5 < found / weight < 2:
            yield (
                f"the store has about {count_of(found, 'example')} with text, and {weight:,.0f} are declared "
                f"(privacy.total_weight, or users · examples_per_user): steps will be {found / weight:.2g} times as "
                f"long as they should be; correct privacy.total_weight, or take the store that was meant"
            )
    declared, people = assembly.recipe.privacy.users, coarse_count(store.users)
    cohort = assembly.recipe.privacy.cohort
    if not isinstance(assembly.strategy, FederatedAveraging) or 0.5 < people / declared < 2:
        return
    joining = coarse_count(round(cohort * people / declared))
    yield (
        f"the store has about {count_of(people, 'user')} to train on, and privacy.users declares "
        f"{declared:,}: a round will have about {count_of(joining, 'user')}, not {cohort:g}, with the noise "
        f"for {cohort:g}; correct privacy.users, or take the store that was meant"
    )


def _trains_here(assembly: Assembly, store: Store) -> bool:
    """Can its rounds be timed? Users on devices train there, in a time that nobody knows."""
    on_devices = store.path is not None and is_federation(store.path)
    return isinstance(assembly.strategy, FederatedAveraging) and store.public is None and not on_devices


def _pace(assembly: Assembly, store: Store, test: Store | None, start: Start, processes: int) -> Pace:
    """How long a round and an evaluation take here."""
    measured_on = len(evaluated_users(assembly.recipe, test))
    an_evaluation = _seconds_an_evaluation(start.model, store, measured_on) if measured_on else 0.0
    return Pace(_seconds_a_round(assembly, store, start) / processes, an_evaluation)


def _full_users(store: Store, count: int) -> Store:
    """Made-up users who write as much as users may."""
    tokens = np.full(store.tokens_per_user, last_typed(store.vocabulary))
    return Store.from_users([tokens] * count, store.vocabulary, store.tokens_per_user)


def _seconds(work: Callable[[], object]) -> float:
    """Timed at the second time: the first compiles. Programs that are compiled are those of the run."""
    for _ in range(2):
        begun = time.perf_counter()
        jax.block_until_ready(work())
    return time.perf_counter() - begun


def _seconds_an_evaluation(model: LanguageModel, store: Store, users: int) -> float:
    count = min(users, users_at_once())
    people = _full_users(store, count)
    return _seconds(lambda: evaluate(model, people).top1) * math.ceil(users / count)


def _seconds_a_round(assembly: Assembly, store: Store, start: Start) -> float:
    summing, algorithm = assembly.sum_updates, assembly.algorithm
    count = max(1, min(summing.block * summing.devices, round(assembly.recipe.privacy.cohort)))
    people = _full_users(store, count)
    clip_norms = algorithm.mechanism.clip_norms(1, algorithm.mechanism.start())
    task = Task(split(start.model)[0], np.arange(count), clip_norms, local_key(bytes(8)))
    seconds = _seconds(lambda: summing(algorithm, task, people).total)
    return seconds * assembly.recipe.privacy.cohort / count
