"""Do audits find a broken build? Lower bounds on ε beside the claimed one, for a correct build and for broken ones.

    python benchmarks/audit.py --seeds 5
    python benchmarks/audit.py --simulate

Trains a small model on made-up people for every build and seed, with canary users who are in or out by a coin, and
attacks it in four games: single rounds; one run from its noised updates; from its released weights; from its losses.
Prints a table in Markdown: ranges over the seeds, and in how many of them the claim is contradicted. The figures of
each seed go to stderr. A build is broken on purpose while it trains; what it claims is always that of the correct one.

With --simulate nothing is trained: how often is the claimed curve refuted by ideal canaries, which do not disturb one
another, where the noise is halved, and where it is not?
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.audit.bounds import best_one_run_bound, count_correct, noise_at_most, trials_bound, trials_mu
from sottovoce.audit.canaries import choose
from sottovoce.audit.one_run import CanaryScorer, draw_membership, scores_of_model, scores_of_weights
from sottovoce.audit.retrain import Retraining
from sottovoce.audit.rounds import RoundAudit
from sottovoce.audit.trade_off import SHARES, TradeOff, curve_bound, refutes
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.store import Store, made_up_names
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.privacy import mechanism
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.types import Algorithm, CohortSum, Task
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian, rounded_down, rounded_up
from sottovoce_evidence.recipe import Recipe

WORDS, PEOPLE, TOKENS, DELTA, CONFIDENCE = 120, 40, 28, 1e-5, 0.95
RATE, ROUNDS, MULTIPLIER, CLIP = 1.0, 8, 2.8, 0.1


class Bigrams(eqx.Module):
    """A model that knows which word follows which: canaries with other words hardly disturb one another in it."""

    table: jax.Array

    def initial_state(self) -> jax.Array:
        return jnp.zeros(())

    def read(self, tokens: jax.Array, state: jax.Array, key: Any = None) -> tuple[jax.Array, jax.Array]:
        return self.table[tokens], state

    def logits(self, hidden: jax.Array) -> jax.Array:
        return hidden


@dataclass(frozen=True)
class World:
    """What all builds share: people, canaries and their coins, and what is claimed."""

    assembly: Assembly
    store: Store
    canaries: int
    seed: int

    @staticmethod
    def make(canaries: int, seed: int) -> World:
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = [f"{letters[number // 26]}{letters[number % 26]}x" for number in range(WORDS)]
        vocabulary = Vocabulary((*Vocabulary.from_words(()).words, *words))
        generator = np.random.default_rng(seed)
        choices = np.flatnonzero(vocabulary.word_mask)
        texts = [generator.choice(choices, TOKENS) for _ in range(PEOPLE)]
        store = Store.from_users(texts, vocabulary, TOKENS, names=made_up_names(PEOPLE))
        privacy = {"users": PEOPLE, "cohort": RATE * PEOPLE, "clip_norm": CLIP, "noise_multiplier": MULTIPLIER}
        recipe = Recipe().replace(
            local={"batch": 1, "unroll": TOKENS, "learning_rate": 10.0},
            privacy={**privacy, "delta": DELTA, "secrets": "seeded"},
            run={"rounds": ROUNDS, "seed": seed, "block": 64, "devices": 1},
            audit={"users": canaries, "prefix": 2, "words": TOKENS - 4},
        )
        model = Bigrams(jnp.zeros((vocabulary.size, vocabulary.size)))
        return World(assemble(recipe, store, model=model), store, canaries, seed)


@dataclass(frozen=True)
class Row:
    """What one game shows of one build."""

    build: str
    game: str
    claimed: float
    shown: float  # whatever the mechanism is
    by_curve: float  # if it is of the claimed kind, with less noise
    noise: float  # of the claimed noise, at most
    right: int
    guesses: int
    contradicted: bool


def table_line(rows: Sequence[Row]) -> str:
    """One game of one build, over seeds: the least and the largest of each figure."""

    def span(figures: Sequence[float], written: Callable[[float], object]) -> str:
        ends = [str(written(end)) for end in (min(figures), max(figures))]
        return "–".join(dict.fromkeys(ends))

    first = rows[0]
    cells = (
        first.build,
        first.game,
        str(rounded_up(first.claimed)),
        span([row.shown for row in rows], rounded_down),
        span([row.by_curve for row in rows], rounded_down),
        span([row.noise for row in rows], lambda share: "no bound" if math.isinf(share) else rounded_up(share)),
        span([100 * row.right / row.guesses for row in rows], round) + " %",
        f"{sum(row.contradicted for row in rows)} of {len(rows)}",
    )
    return f"| {' | '.join(cells)} |"


HEADER = (
    "| build | game | claimed ε | ε at least | by the curve | share of the noise, at most | right | contradicted |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


# Builds: each is broken for as long as its context lasts.


@contextmanager
def less_noise(share: float) -> Iterator[None]:
    real = mechanism._noised
    less = lambda part, scale, *rest: real(part, scale._replace(std=share * scale.std), *rest)  # noqa: E731
    with mock.patch.object(mechanism, "_noised", less):
        yield


@contextmanager
def noise_used_again() -> Iterator[None]:
    """Every round has the noise of the same key."""
    real = mechanism._noised
    with mock.patch.object(mechanism, "_noised", lambda part, scale, key, *rest: real(part, scale, bytes(32), *rest)):
        yield


@contextmanager
def clip_at_twice_the_norm() -> Iterator[None]:
    with _other_sum(lambda task: task._replace(clip_norms=2 * task.clip_norms)):
        yield


@contextmanager
def users_counted_twice() -> Iterator[None]:
    with _other_sum(lambda task: task._replace(cohort=np.repeat(task.cohort, 2))):
        yield


@contextmanager
def denominator_of_those_who_came() -> Iterator[None]:
    real = FixedDenominator.estimate

    def average(self: FixedDenominator, total: Any, weight: Any) -> Any:
        few = jnp.maximum(weight, 1.0)
        return real(replace(self, expected_weight=1.0), jax.tree.map(lambda leaf: leaf / few, total), weight)

    with mock.patch.object(FixedDenominator, "estimate", average):
        yield


@contextmanager
def _other_sum(change: Callable[[Task], Task]) -> Iterator[None]:
    real = SumInBlocks.__call__

    def broken(self: SumInBlocks, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        return real(self, algorithm, change(task), store)

    with mock.patch.object(SumInBlocks, "__call__", broken):
        yield


BUILDS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "correct": nullcontext,
    "noise at z/2": lambda: less_noise(1 / 2),
    "noise at z/4": lambda: less_noise(1 / 4),
    "clip at 2S": clip_at_twice_the_norm,
    "users counted twice": users_counted_twice,
    "denominator of those who came": denominator_of_those_who_came,
    "the same noise in every round": noise_used_again,
}


def attack_rounds(build: str, world: World, rounds: int) -> Row:
    """Single rounds, for a user who surely joins: as `sotto audit rounds` judges them."""
    made = world.assembly
    audit = RoundAudit.prepare(made.algorithm, made.sum_updates, made.model, world.store.vocabulary)
    scores, present, noise = audit.play(rounds, Secrets.seeded(world.seed, "rounds"))
    each = 1 - (1 - CONFIDENCE) / 3
    bound, mu = trials_bound(scores, present, DELTA, each), trials_mu(scores, present, each)
    multiplier = min(noise_at_most(noise, each) / audit.largest_shift, 1 / mu if mu else math.inf)
    claimed = accounting.epsilon([(audit.event(), 1)], DELTA)
    share = multiplier / audit.multiplier
    shown = math.inf
    if multiplier > 1e-3:
        shown = accounting.epsilon([(replace(audit.event(), noise_multiplier=multiplier), 1)], DELTA)
    found = bound.epsilon > claimed or share < 1
    return Row(build, "single rounds", claimed, bound.epsilon, shown, share, bound.correct, bound.guesses, found)


def attack_run(build: str, world: World) -> list[Row]:
    """One run: from its noised updates, its released weights, its losses. Each bound has the confidence for itself."""
    made, vocabulary = world.assembly, world.store.vocabulary
    registry = choose(made.recipe.audit, vocabulary, world.store.tokens_per_user)
    secrets = Secrets.seeded(world.seed, "a run")
    present = draw_membership(registry, secrets)
    scorer = CanaryScorer.of(made, world.store, registry, present)
    model = Retraining(made, made.model, scorer.inserted, ROUNDS).train(secrets, scorer)
    games = {
        "one run, noised updates": scorer.scores,
        "one run, released weights": scores_of_weights(made, made.model, model, registry, vocabulary),
        "one run, losses": scores_of_model(model, registry, vocabulary, made.model),
    }
    spent = made.algorithm.mechanism.events(ROUNDS)
    claimed = accounting.epsilon(spent, DELTA)
    rows = []
    for game, scores in games.items():
        bound = best_one_run_bound(scores, present, DELTA, CONFIDENCE)
        curve = curve_bound(scores, present, spent, DELTA, confidence=CONFIDENCE)
        found = bound.epsilon > claimed or curve.refuted
        figures = (claimed, bound.epsilon, curve.epsilon, curve.noise)
        rows.append(Row(build, game, *figures, curve.correct, curve.guesses, found))
    return rows


def simulate(repeats: int = 20) -> None:
    """The power of the test of the curve, and its false alarms."""
    print("| rounds | q | z | claimed ε | canaries | refuted at z/2 | refuted at z |\n" + "| --- " * 7 + "|")
    for rounds, rate, z in ((10, 1.0, 3.2), (10, 1.0, 6.0), (10, 0.5, 2.0)):
        spent = [(SampledGaussian(z, "poisson", rate), rounds)]
        curve, claimed = TradeOff.of(spent), rounded_up(accounting.epsilon(spent, DELTA))
        for canaries in (500, 1000, 2000, 4000):
            found = [
                sum(_ideal_game(curve, (rounds, rate, z), share * z, canaries, seed) for seed in range(repeats))
                for share in (0.5, 1.0)
            ]
            cells = (rounds, rate, z, claimed, f"{canaries:,}", *(f"{count} of {repeats}" for count in found))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _ideal_game(curve: TradeOff, claim: tuple[int, float, float], noise: float, canaries: int, seed: int) -> bool:
    """Is the curve refuted by the likelihood ratios of independent canaries?"""
    rounds, rate, z = claim
    generator = np.random.default_rng([seed, canaries])
    present = generator.random(canaries) < 0.5
    joined = (generator.random((canaries, rounds)) < rate) & present[:, None]
    seen = joined + noise * generator.normal(size=joined.shape)
    with np.errstate(divide="ignore"):
        scores = np.logaddexp(np.log1p(-rate), np.log(rate) + (seen - 0.5) / z**2).sum(axis=1)
    each, counts = 1 - (1 - CONFIDENCE) / len(SHARES), [int(share * canaries) for share in SHARES]
    return any(refutes(curve, canaries, n, count_correct(scores, present, n), each) for n in counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=120, help="single rounds that are played")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--builds", nargs="*", default=list(BUILDS), choices=list(BUILDS))
    parser.add_argument("--simulate", action="store_true", help="the power of the test of the curve; trains nothing")
    given = parser.parse_args()
    if given.simulate:
        simulate()
        return
    print(HEADER)
    for build in given.builds:
        jax.clear_caches()  # a fault may be in a compiled program
        seeds = [attack(build, given, given.seed + number) for number in range(given.seeds)]
        print(*map(table_line, zip(*seeds, strict=True)), sep="\n", flush=True)


def attack(build: str, given: argparse.Namespace, seed: int) -> list[Row]:
    """All games of one build with one seed."""
    clock = time.process_time()
    world = World.make(given.canaries, seed)
    with BUILDS[build]():
        rows = [attack_rounds(build, world, given.rounds), *attack_run(build, world)]
    print(f"seed {seed}, {time.process_time() - clock:.0f} s of processor time", file=sys.stderr)
    print(*(table_line([row]) for row in rows), sep="\n", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
