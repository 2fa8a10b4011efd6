"""How private can a mechanism be at most? Lower bounds on ε and on μ, from who was in and what was released.

Whether a user is present is a fair coin, and a good score is higher where the user was present. If guesses from the
scores come out better than (ε, δ) allows, then ε is refuted, at a confidence. A bound below a claim proves nothing: a
better attack may find more, and a number of guesses can show an ε of `most` at most.

- **A Gaussian of multiplier z** is the claim of a round: (ε, δ) is only what follows from it, and a bound on ε from
  guesses hardly ever finds half the noise. `trials_mu` bounds μ = 1/z from the same two error rates, whatever the
  noise is; `noise_at_most` bounds σ from the noise itself, if that is Gaussian as claimed.
- **Trials that are independent of one another** (`trials_bound`, `trials_mu`): the mechanism is run afresh for each. A
  threshold is chosen on some of them and judged on the others, by Clopper-Pearson intervals of both error rates.
- **Many at once in one run** (`one_run_bound`; Steinke, Nasr and Jagielski 2023): their scores may depend on one
  another in any way. Users whom no guess is about do not count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import optimize, special

from sottovoce_evidence.errors import SettingError, SottoError

CONFIDENCE = 0.95
CHOOSING = 0.25  # share of the trials that choose the threshold: it needs to be good, not the best
SHARES = (1, 1 / 2, 1 / 4, 1 / 8)  # of those in one run: how many are guessed about
POWER = 0.99  # chance with which an audit finds the fault that it claims it would have noticed
FEWEST = 40  # trials: with fewer, even perfect guesses show next to nothing


@dataclass(frozen=True)
class Bound:
    """ε is at least `epsilon` at `delta`, but for a chance of 1 - `confidence`."""

    epsilon: float
    delta: float
    confidence: float
    trials: int  # that were judged
    correct: int  # guesses of them
    guesses: int
    most: float  # what as many guesses show when all are correct


def trials_bound(scores: np.ndarray, present: np.ndarray, delta: float, confidence: float = CONFIDENCE) -> Bound:
    """From independent trials, in the order they were run, with one fixed mechanism and one present or absent.

    Guarantee: above the true ε with probability 1 - confidence at most, whatever the scores are. The trials that
    choose the threshold are not among those that are judged.
    """
    scores, present = _checked(scores, present, delta, confidence)
    errors = _errors(scores, present, partial(epsilon_of_errors, delta=delta, confidence=CONFIDENCE))
    missed, there, taken, away = errors
    trials = there + away
    return Bound(
        epsilon=float(epsilon_of_errors(*errors, delta, confidence)),
        delta=delta,
        confidence=confidence,
        trials=trials,
        correct=trials - missed - taken,
        guesses=trials,
        most=float(epsilon_of_errors(0, there, 0, away, delta, confidence)),
    )


def trials_mu(scores: np.ndarray, present: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """From trials as for `trials_bound`: a μ for which they are not told apart less easily than N(0, 1) and N(μ, 1).

    Guarantee: above the true μ of a Gaussian mechanism, or of any that is μ-GDP, with probability 1 - confidence at
    most, whatever the scores are (Nasr et al. 2023; Dong, Roth and Su 2022).
    """
    scores, present = _checked(scores, present, 0.0, confidence)
    errors = _errors(scores, present, partial(mu_of_errors, confidence=CONFIDENCE))
    return float(mu_of_errors(*errors, confidence))


def mu_of_errors(missed: _Counts, there: int, taken: _Counts, away: int, confidence: float) -> _Real:
    """The least μ for which these numbers of errors are likely: no rule has rates below Φ(Φ⁻¹(1 - taken) - μ)."""
    miss, take = (at_most(*errors, (1 - confidence) / 2) for errors in ((missed, there), (taken, away)))
    # Rates that add up to 1 are those of a coin.
    return np.where(miss + take < 1, -special.ndtri(miss) - special.ndtri(take), 0.0)


def noise_at_most(noise: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """The σ of independent Gaussian draws is no larger, but for a chance of 1 - `confidence`."""
    check_trials(len(noise))
    check_level(0.0, confidence)
    spread = float(np.sum(np.square(noise - np.mean(noise))))
    return math.sqrt(spread / special.chdtri(len(noise) - 1, confidence))


def would_notice(trials: int, confidence: float = CONFIDENCE, power: float = POWER) -> float:
    """`noise_at_most` of `trials` draws stays below σ, with chance `power`, if theirs is at most this part of σ."""
    return math.sqrt(special.chdtri(trials - 1, confidence) / special.chdtri(trials - 1, 1 - power))


def epsilon_of_errors(missed: _Counts, there: int, taken: _Counts, away: int, delta: float, confidence: float) -> _Real:
    """The least ε for which these errors are likely: `missed` of those `there`, `taken` for there of those `away`.

    One rule and two rates, each within its interval at half of what the confidence leaves. Both directions of
    P(rule | one) <= e^ε P(rule | other) + δ must hold, so the larger ε counts.
    """
    miss, take = (at_most(*errors, (1 - confidence) / 2) for errors in ((missed, there), (taken, away)))
    with np.errstate(divide="ignore"):
        forth = np.log(np.maximum(1 - miss - delta, 0)) - np.log(take)
        back = np.log(np.maximum(1 - take - delta, 0)) - np.log(miss)
    return np.maximum(np.maximum(forth, back), 0.0)


def at_most(count: _Counts, trials: int, level: float) -> _Real:
    """Clopper-Pearson: a chance below which `count` of `trials` or fewer are no less likely than `level`."""
    count = np.asarray(count)
    inside = special.betaincinv(count + 1, np.maximum(trials - count, 1), 1 - level)
    return np.where(count < trials, inside, 1.0)


def one_run_bound(
    scores: np.ndarray, present: np.ndarray, guesses: int, delta: float, confidence: float = CONFIDENCE
) -> Bound:
    """From many who were each in or out of one run by a coin of their own.

    Guessed about are as many as `guesses` says, half with the highest scores ("in") and half with the lowest.

    Guarantee: above the true ε with probability 1 - confidence at most, if `guesses` was fixed before anything was
    seen, or depends on the scores alone: never on who was present.
    """
    scores, present = _checked(scores, present, delta, confidence)
    correct = count_correct(scores, present, guesses)
    return Bound(
        epsilon=one_run_epsilon(len(scores), guesses, correct, delta, confidence),
        delta=delta,
        confidence=confidence,
        trials=len(scores),
        correct=correct,
        guesses=guesses,
        most=one_run_epsilon(len(scores), guesses, guesses, delta, confidence),
    )


def count_correct(scores: np.ndarray, present: np.ndarray, guesses: int) -> int:
    """How many guesses are right: "in" for half of them, with the highest scores, "out" for half, with the lowest."""
    if not 1 <= guesses <= len(scores):
        raise SottoError(f"guesses={guesses} must be from 1 to {len(scores)}, the canaries there are")
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(np.sum(present[high]) + np.sum(~present[low]))


def best_one_run_bound(scores: np.ndarray, present: np.ndarray, delta: float, confidence: float = CONFIDENCE) -> Bound:
    """As `one_run_bound`, with the best of a few numbers of guesses, among which the confidence is shared out.

    A strong attack shows the most when it guesses about all users, a weak one when it guesses where it is surest.
    """
    each = 1 - (1 - confidence) / len(SHARES)
    bounds = [one_run_bound(scores, present, max(1, int(share * len(scores))), delta, each) for share in SHARES]
    best, most = max(bounds, key=lambda bound: bound.epsilon), max(bound.most for bound in bounds)
    return replace(best, confidence=confidence, most=most)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The least ε for which `correct` guesses are no less likely than the confidence leaves.

    >>> round(one_run_epsilon(1000, 1000, 1000, delta=0.0), 2)
    5.81
    """
    level = 1 - confidence

    def unlikely(epsilon: float) -> float:
        return level - one_run_p_value(canaries, guesses, correct, epsilon, delta)

    if unlikely(0.0) <= 0:
        return 0.0
    # From below, and no further than the first ε that is not refuted: δ can make the p-value fall again beyond it.
    refuted = next(low for low in itertools.count(0.0, 0.25) if unlikely(low + 0.25) <= 0)
    return float(optimize.brentq(unlikely, refuted, refuted + 0.25, xtol=1e-9))  # pyrefly: ignore


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely `correct` right guesses are at most under (ε, δ) (Steinke et al. 2023, theorem 5.2).

    Under δ = 0 no guess is right more often than a coin of chance e^ε / (1 + e^ε), whatever the others are. δ may
    move some outcomes upwards: by i guesses with a chance of 2 m δ / i at most, and the worst i counts.
    """
    chance = special.expit(epsilon)
    beaten = special.bdtrc(correct - 1, guesses, chance)  # correct or more
    by = np.arange(1, correct + 1)
    nearly = special.bdtrc(correct - 1 - by, guesses, chance) - beaten
    return float(min(beaten + 2 * canaries * delta * np.max(nearly / by, initial=0.0), 1.0))


_Counts = int | np.ndarray
_Real = float | np.ndarray


def _errors(scores: np.ndarray, present: np.ndarray, shown: Callable[..., _Real]) -> tuple[int, int, int, int]:
    """Errors of the trials that are judged: missed, and how many were there; taken for there, and how many were away.

    Where the others show the most at a usual confidence: at a higher one so few of them often show nothing anywhere.
    """
    choosing = round(CHOOSING * len(scores))
    threshold = _best_threshold(scores[:choosing], present[:choosing], shown)
    scores, present = scores[choosing:], present[choosing:]
    guessed = scores >= threshold
    there = int(np.sum(present))
    return int(np.sum(present & ~guessed)), there, int(np.sum(~present & guessed)), len(present) - there


def _best_threshold(scores: np.ndarray, present: np.ndarray, shown: Callable[..., _Real]) -> float:
    """Where these trials alone show the most; half-way between two scores, so that no trial stands on it."""
    if present.all() or not present.any():
        return float(np.median(scores))
    ordered = np.unique(scores)
    middles = (ordered[1:] + ordered[:-1]) / 2
    if not len(middles):
        return float(ordered[0])
    missed = np.searchsorted(np.sort(scores[present]), middles)
    taken = np.sum(~present) - np.searchsorted(np.sort(scores[~present]), middles)
    return float(middles[np.argmax(shown(missed, int(np.sum(present)), taken, int(np.sum(~present))))])


def _checked(scores: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    scores, present = np.asarray(scores, np.float64), np.asarray(present, bool)
    check_trials(len(scores))
    if scores.shape != present.shape or scores.ndim != 1:
        raise SottoError(f"{scores.shape} scores and {present.shape} coins: there must be one of each for every trial")
    if not np.all(np.isfinite(scores)):
        raise SottoError("a score is not a number: the model of a round has diverged")
    check_level(delta, confidence)
    return scores, present


def check_trials(trials: int, name: str = "trials") -> None:
    if trials < FEWEST:
        text = f"must be at least {FEWEST}: fewer show next to nothing, however they end"
        if name.isidentifier():
            raise SettingError(f"{{{name}}} {text}", **{name: trials})
        raise SottoError(f"{name}={trials} {text}")  # a key of a recipe


def check_level(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise SettingError("{delta:g} must be in [0, 1); it is the δ of the claim that is put to the test", delta=delta)
    if not 0.5 <= confidence < 1:
        raise SettingError(
            "{confidence:g} must be in [0.5, 1), often 0.95; the rest is the chance of an error", confidence=confidence
        )
