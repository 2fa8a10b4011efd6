"""An audit of rounds has teeth: whatever is broken in a round shows, and nothing shows where nothing is broken."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sottovoce.audit.bounds import noise_at_most, trials_bound, trials_mu
from sottovoce.audit.rounds import N_BACKGROUND, RoundAudit
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM
from sottovoce.privacy import clipping
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import FixedSize, Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training import cohort_sum
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm
from sottovoce_evidence.accounting import epsilon
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.schedule import Schedule

# 80 people of whom 40 are expected: for a user who joins, a round has ε = 1.82 at δ = 0.01. Sums cut every coordinate
# at the next power of two, and this S is far below one: else they would take away much of what the faults do.
S, Z, COHORT, DELTA = 0.065, 1.2, 40.0, 1e-2
FRAME = Vocabulary.from_words(())
VOCABULARY = Vocabulary((*FRAME.words, "milk", "tea", "kettle"))
MODEL = LSTM(VOCABULARY.size, embedding=2, hidden=2, key=jax.random.key(7))
SECRETS = Secrets.seeded(8, "a test")
FAULTY_ROUNDS = 240  # of which perfect guesses show an ε of 3


def algorithm(learning_rate: float = 10.0, sampler=None, **options) -> Algorithm:
    clip = FlatClip(S)
    mechanism = Mechanism(sampler or Poisson(0.5), clip, FixedDenominator(COHORT), Z, **options)
    update = FedAvg(clip, True, batch=2, unroll=4, learning_rate=learning_rate)
    return Algorithm(mechanism, update, Server(optax.adam(0.1)))


def audit_of(given: Algorithm, **options) -> RoundAudit:
    return RoundAudit.prepare(given, SumInBlocks(4), MODEL, VOCABULARY, **options)


def audited(given: Algorithm, rounds: int) -> tuple[float, float]:
    """The ε that is claimed for a round, and the one that is shown at least."""
    audit = audit_of(given)
    claim = epsilon([(audit.event(), 1)], DELTA)
    assert 1.5 < claim < 2  # whatever is broken, the claim is the honest one
    scores, present, _ = audit.play(rounds, SECRETS)
    return claim, trials_bound(scores, present, DELTA).epsilon


def shown_multiplier(given: Algorithm, rounds: int) -> float:
    """z at most, from the noise of rounds and how far one user may move them."""
    audit = audit_of(given)
    assert audit.multiplier == pytest.approx(Z)
    return noise_at_most(audit.play(rounds, SECRETS).noise, 0.999) / audit.largest_shift


@pytest.mark.slow  # end_to_end/test_auditing_rounds.py has it of a run
def test_a_sound_round_stays_below_its_claim_and_the_canary_moves_it_as_far_as_any_user_may():
    audit = audit_of(algorithm())
    assert 0.99 < audit.relative_norm <= 1
    scores, present, noise = audit.play(200, SECRETS)
    claim = epsilon([(audit.event(), 1)], DELTA)
    assert claim == pytest.approx(1.82, abs=0.01)
    assert 0 <= trials_bound(scores, present, DELTA).epsilon < claim
    # What is scored is the canary's S/qW, and noise of Z times as much.
    assert np.mean(scores[present]) - np.mean(scores[~present]) == pytest.approx(S / COHORT, rel=0.5)
    for some in (scores[present], scores[~present], noise):
        assert np.std(some) == pytest.approx(Z * S / COHORT, rel=0.2)
    assert audit.shift == pytest.approx(S / COHORT, rel=0.01)
    assert audit.largest_shift == pytest.approx(S / COHORT, rel=1e-5)
    assert abs(np.corrcoef(noise, present)[0, 1]) < 0.2  # what the canary sends is no part of it
    assert Z < noise_at_most(noise, 0.999) / audit.largest_shift < 1.35 * Z
    assert trials_mu(scores, present, 0.999) < 1 / Z


@pytest.mark.slow
def test_no_noise_shows(monkeypatch):
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (0.0, None))
    claim, shown = audited(algorithm(), FAULTY_ROUNDS)
    assert shown > claim


@pytest.mark.slow
def test_noise_at_three_quarters_shows_in_the_noise_that_was_added(monkeypatch):
    real = Mechanism.noise_std
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (0.75 * real(*args)[0], None))
    assert shown_multiplier(algorithm(), FAULTY_ROUNDS) < Z


@pytest.mark.slow
def test_noise_at_a_tenth_shows(monkeypatch):
    real = Mechanism.noise_std
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (real(*args)[0] / 10, None))
    claim, shown = audited(algorithm(), FAULTY_ROUNDS)
    assert shown > claim


# The faults below are in compiled programs. Another learning rate makes another program, which no other test has.


@pytest.mark.slow
def test_no_clip_shows(monkeypatch):
    monkeypatch.setattr(clipping, "project", lambda update, bound: (update, jnp.array(False)))
    claim, shown = audited(algorithm(learning_rate=11.0), FAULTY_ROUNDS)
    assert shown > claim
    assert shown_multiplier(algorithm(learning_rate=11.0), FAULTY_ROUNDS) < Z


@pytest.mark.slow
def test_a_canary_of_ten_times_the_weight_shows(monkeypatch):
    """Of all users, the canary alone: it has the last seat."""
    real = cohort_sum.user_weight

    def unbounded(tokens, weight_cap):
        return real(tokens, weight_cap) * jnp.where(jnp.arange(len(tokens)) == N_BACKGROUND, 10.0, 1.0)

    monkeypatch.setattr(cohort_sum, "user_weight", unbounded)
    claim, shown = audited(algorithm(learning_rate=12.0), FAULTY_ROUNDS)
    assert shown > claim
    assert shown_multiplier(algorithm(learning_rate=12.0), FAULTY_ROUNDS) < Z


@pytest.mark.slow
def test_a_denominator_of_those_who_came_shows(monkeypatch):
    """Four came of forty expected, and one has a quarter of the say instead of a fortieth."""
    real = FixedDenominator.estimate

    def average(self, total, weight):
        return real(replace(self, expected_weight=1.0), jax.tree.map(lambda leaf: leaf / weight, total), weight)

    monkeypatch.setattr(FixedDenominator, "estimate", average)
    given = algorithm()
    # The estimate is a compiled program too, and belongs to the denominator.
    mechanism = replace(given.mechanism, estimator=FixedDenominator(COHORT + 1))
    claim, shown = audited(replace(given, mechanism=mechanism), FAULTY_ROUNDS)
    assert shown > claim
    assert shown_multiplier(replace(given, mechanism=mechanism), FAULTY_ROUNDS) < Z


@pytest.mark.slow
def test_cohorts_of_fixed_size_have_the_canary_replaced_by_an_empty_user():
    audit = audit_of(algorithm(sampler=FixedSize(40, 80)))
    assert audit.event().relation == "replace-one-user"
    assert len(audit.present) == len(audit.absent) == N_BACKGROUND + 1
    assert len(audit.absent[N_BACKGROUND]) == 0
    scores, present, _ = audit.play(40, SECRETS)
    assert np.mean(scores[present]) > np.mean(scores[~present])


@pytest.mark.slow
def test_the_round_that_is_asked_for_is_played():
    given = algorithm(noise_schedule=Schedule(((1, 1.0), (5, 0.5))), clip_schedule=Schedule(((1, 1.0), (5, 0.3))))
    audit = audit_of(given, round_number=5)
    assert audit.event().noise_multiplier == pytest.approx(0.6)
    assert 0.99 < audit.relative_norm <= 1
    scores, present, _ = audit.play(120, SECRETS)
    assert np.std(scores[present]) == pytest.approx(0.6 * 0.3 * S / COHORT, rel=0.3)


@pytest.mark.slow
def test_rounds_follow_the_secrets_and_share_no_noise():
    audit = audit_of(algorithm())
    scores, present, _ = audit.play(30, SECRETS)
    again, same, _ = audit.play(30, SECRETS)
    other, _, _ = audit.play(30, Secrets.seeded(9, "a test"))
    assert np.array_equal(scores, again)
    assert np.array_equal(present, same)
    assert len({*scores.tolist(), *other.tolist()}) == 60


@pytest.mark.slow
def test_weights_that_are_unequal_are_given_a_canary_of_full_weight():
    audit = audit_of(replace(algorithm(), weight_cap=20.0))
    assert len(audit.present[N_BACKGROUND]) >= 20
    assert 0.99 < audit.relative_norm <= 1


@pytest.mark.slow
def test_a_model_that_has_diverged_is_told():
    broken = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), MODEL)
    with pytest.raises(SottoError, match="diverged"):
        RoundAudit.prepare(algorithm(), SumInBlocks(4), broken, VOCABULARY)
