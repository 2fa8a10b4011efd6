"""Evidence of who was in: the likelihood ratio, gathered round by round, with teeth."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from family import Bigrams
from free import Free
from sottovoce.audit.bounds import best_one_run_bound, one_run_epsilon
from sottovoce.audit.canaries import choose, insert
from sottovoce.audit.one_run import (
    CanaryScorer,
    draw_membership,
    evidence,
    parts_of,
    scores_of_model,
    scores_of_weights,
    unexpected,
)
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm
from sottovoce_evidence.accounting import epsilon
from sottovoce_evidence.recipe import Audit

S, Z, ROUNDS, DELTA = 0.05, 4.0, 3, 1e-5
FRAME = Vocabulary.from_words(())
VOCABULARY = Vocabulary((*FRAME.words, *(f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60))))
# Updates of people with different words hardly touch one another in it, as in larger models.
MODEL = Bigrams(jnp.zeros((VOCABULARY.size, VOCABULARY.size)))
REGISTRY = choose(Audit(users=120, prefix=2, words=3), VOCABULARY, 28)
PEOPLE = Store.from_users([[0, 40, 41, 1], [0, 45, 1], []], VOCABULARY, tokens_per_user=28)
SECRETS = Secrets.seeded(11, "a test")
COINS = draw_membership(REGISTRY, SECRETS)
OPTIMISER = optax.sgd(0.0)  # the model stays: what is tested is what the rounds tell


def algorithm(rate: float = 1.0, estimator=None, z: float = Z) -> Algorithm:
    clip = FlatClip(S)
    mechanism = Mechanism(Poisson(rate), clip, estimator or FixedDenominator(40.0), z)
    return Algorithm(mechanism, FedAvg(clip, True, batch=2, unroll=7, learning_rate=10.0), Server(OPTIMISER))


def watched(given: Algorithm, rounds: int = ROUNDS, present: np.ndarray = COINS) -> tuple[CanaryScorer, np.ndarray]:
    assembly = SimpleNamespace(algorithm=given, sum_updates=SumInBlocks(4))
    watch = CanaryScorer.of(assembly, PEOPLE, REGISTRY, present)
    state = given.server.start(MODEL)
    for number in range(1, rounds + 1):
        keys = SECRETS.keys(number)
        state, _ = play_round(given, state, watch.inserted, Free(keys, round_number=number), watch.sum_updates, watch)
    return watch, present


def claim() -> float:
    return epsilon(algorithm().mechanism.events(ROUNDS), DELTA)


def test_coins_are_fair_and_belong_to_the_run_s_secrets():
    assert 0.35 < np.mean(draw_membership(REGISTRY, SECRETS)) < 0.65
    later = Secrets.fresh()
    assert np.array_equal(draw_membership(REGISTRY, later), draw_membership(REGISTRY, later.next()))  # to the end
    assert not np.array_equal(
        draw_membership(REGISTRY, SECRETS), draw_membership(REGISTRY, Secrets.seeded(12, "a test"))
    )


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_evidence_is_the_likelihood_ratio(rate):
    """Of a point x along the update: in with chance q, σ away from where it is without."""
    length, noise = 0.7, 0.4
    x = np.linspace(-1, 2, 7)
    out = stats.norm.pdf(x, 0, noise)
    in_ = (1 - rate) * out + rate * stats.norm.pdf(x, length, noise)
    found = evidence(x * length, length**2 * np.eye(7), noise, rate)
    np.testing.assert_allclose(found, np.log(in_ / out), rtol=1e-9)
    assert np.all(np.isfinite(evidence(np.array([1e6, -1e6]), 1e6 * np.eye(2), 1e-3, rate)))
    assert np.all(evidence(np.zeros(2), np.zeros((2, 2)), 0.0, rate) == 0)


def test_canaries_who_point_the_same_way_are_told_apart():
    """Others count as noise along their updates: the likelihood ratio of one is that of a Gaussian with all of them."""
    generator = np.random.default_rng(1)
    rate, noise, updates = 0.3, 0.2, generator.normal(size=(4, 6)) + 1
    left = generator.normal(size=6)
    found = evidence(updates @ left, updates @ updates.T, noise, rate)
    for one in range(4):
        others = np.delete(updates, one, axis=0)
        joins = rate / 2
        cover = joins * (1 - joins) * others.T @ others + noise**2 * np.eye(6)
        without = stats.multivariate_normal(joins * others.sum(axis=0), cover)
        ratio = np.exp(without.logpdf(left - updates[one]) - without.logpdf(left))
        assert found[one] == pytest.approx(np.log(1 - rate + rate * ratio))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [FixedDenominator(40.0), ClippedDenominator(40.0)])
def test_what_is_left_of_a_round_is_noise_and_canaries(estimator):
    """The others' part is taken away exactly: without noise only the canaries who joined are left."""
    given = algorithm(0.5, estimator, z=0.0)
    watch, _ = watched(given, rounds=0)
    seen = []
    payment = Free(SECRETS.keys(1))
    play_round(given, given.server.start(MODEL), watch.inserted, payment, watch.sum_updates, seen.append)
    left, scale = watch._rest(seen[0])
    joined = seen[0].task.cohort[seen[0].task.cohort >= PEOPLE.users]
    own = SumInBlocks(4)(given, seen[0].task._replace(cohort=joined), watch.inserted)
    for part, canaries in zip(jax.tree.leaves(left), jax.tree.leaves(own.total), strict=True):
        np.testing.assert_allclose(part, np.asarray(canaries) * scale, atol=1e-8)
    assert scale == pytest.approx(1 / 40)


@pytest.mark.slow
def test_a_sound_run_stays_below_its_claim_and_yet_tells_something():
    watch, present = watched(algorithm())
    assert claim() < 2.5
    bound = best_one_run_bound(watch.scores, present, DELTA)
    assert bound.epsilon < claim()
    assert np.mean(watch.scores[present]) > np.mean(watch.scores[~present])
    # 3 rounds of a likelihood ratio with |Δ|/σ = 1/4: means 3/32 apart from zero on either side
    assert np.mean(watch.scores[present]) == pytest.approx(ROUNDS / 2 / Z**2, abs=0.15)
    assert np.mean(watch.scores[~present]) == pytest.approx(-ROUNDS / 2 / Z**2, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_noise_off_or_at_a_tenth_shows_in_one_run(monkeypatch, share):
    honest = claim()
    real = Mechanism.noise_std
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (share * real(*args)[0], None))
    watch, present = watched(algorithm())
    assert best_one_run_bound(watch.scores, present, DELTA).epsilon > honest


@pytest.mark.slow
def test_a_score_knows_neither_the_coin_nor_who_was_drawn():
    """The coin of somebody who did not join changes no score: all that is told is in what the round released."""
    given = algorithm(0.5)
    first, present = watched(given, rounds=1)
    cohort = given.mechanism.sampler.sample(first.inserted, SECRETS.keys(1).sampling)
    (absent, *_) = np.setdiff1d(first.rows, cohort) - PEOPLE.users
    flipped = present.copy()
    flipped[absent] = ~flipped[absent]
    second, _ = watched(given, 1, flipped)
    np.testing.assert_allclose(second.scores, first.scores, atol=1e-5)
    assert np.ptp(first.scores) > 0.1


@pytest.mark.slow
def test_the_confidence_is_shared_out_among_the_numbers_of_guesses():
    present = np.arange(200) % 2 == 0
    perfect = best_one_run_bound(present.astype(float), present, 0.0)
    assert perfect.epsilon == pytest.approx(one_run_epsilon(200, 200, 200, 0.0, 1 - 0.05 / 4))
    assert (perfect.guesses, perfect.confidence) == (200, 0.95)
    few = np.zeros(200)
    few[:25] = np.where(present[:25], 1, -1)  # sure of some, and nothing known of the others
    assert best_one_run_bound(few, present, 0.0).guesses < 200
    assert best_one_run_bound(few, present, 0.0).most == perfect.most == perfect.epsilon
    generator = np.random.default_rng(0)
    wrong = sum(
        best_one_run_bound(generator.normal(size=200), generator.random(200) < 0.5, 0.0).epsilon > 0 for _ in range(200)
    )
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_the_model_alone_tells_who_wrote_what_it_was_taught():
    taught = np.zeros((VOCABULARY.size, VOCABULARY.size), np.float32)
    taught[:, REGISTRY.encode(REGISTRY.users[7], VOCABULARY)] = 3
    scores = scores_of_model(Bigrams(taught), REGISTRY, VOCABULARY)
    assert scores.shape == (120,)
    assert np.argmax(scores) == 7


def test_a_text_that_is_easy_for_the_first_model_too_gives_nothing_away():
    """Canary 7 was taught; the words of canary 3 were likely from the start."""
    first, taught = np.zeros((2, VOCABULARY.size, VOCABULARY.size), np.float32)
    first[:, REGISTRY.encode(REGISTRY.users[3], VOCABULARY)] = 5
    taught[:, REGISTRY.encode(REGISTRY.users[7], VOCABULARY)] = 2
    plain = scores_of_model(Bigrams(first + taught), REGISTRY, VOCABULARY)
    calibrated = scores_of_model(Bigrams(first + taught), REGISTRY, VOCABULARY, Bigrams(first))
    assert np.argmax(plain) == 3
    assert np.argmax(calibrated) == 7


def test_what_is_expected_of_a_loss_is_taken_away():
    generator = np.random.default_rng(2)
    easy, signal = generator.normal(size=(2, 400))
    left = unexpected(3 * easy + 5 + signal, easy)
    assert abs(np.corrcoef(left, easy)[0, 1]) < 1e-9
    assert np.corrcoef(left, signal)[0, 1] > 0.99
    np.testing.assert_allclose(unexpected(signal), signal - signal.mean())
    np.testing.assert_allclose(unexpected(signal, np.ones(400)), signal - signal.mean(), atol=1e-12)


def test_the_parts_of_a_sum_are_found_though_vectors_share_a_direction():
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(30, 200)) + 2 * generator.normal(size=200)
    present = generator.random(30) < 0.5
    moved = present @ vectors + 0.1 * generator.normal(size=200)
    found = parts_of(vectors @ moved, vectors @ vectors.T, 0.01)
    assert np.min(found[present]) > 0.5 > np.max(found[~present])
    assert np.all(parts_of(np.zeros(3), np.zeros((3, 3)), 0.0) == 0)


@pytest.mark.slow
def test_the_weights_tell_who_was_in_where_the_noise_is_small_and_little_where_it_is_not():
    """The released weights and those at the start, of rounds that all canaries who are in join."""
    optimiser = optax.sgd(1.0)
    shown = {}
    for z in (0.2, 40.0):
        given = replace(algorithm(z=z), server=Server(optimiser))
        assembly = SimpleNamespace(
            algorithm=given, sum_updates=SumInBlocks(4), recipe=SimpleNamespace(run=SimpleNamespace(rounds=ROUNDS))
        )
        store, state = insert(PEOPLE, REGISTRY, COINS), given.server.start(MODEL)
        for number in range(1, ROUNDS + 1):
            payment = Free(SECRETS.keys(number), round_number=number)
            state, _ = play_round(given, state, store, payment, SumInBlocks(4))
        scores = scores_of_weights(assembly, MODEL, state.params, REGISTRY, VOCABULARY)
        shown[z] = best_one_run_bound(scores, COINS, DELTA).epsilon
    assert shown[0.2] > 1.5
    assert shown[40.0] < epsilon(algorithm(z=40.0).mechanism.events(ROUNDS), DELTA) + 0.3
