"""Is the whole claim of a run refuted by guesses about its canary users? A test of its trade-off curve.

An ε at one δ is one line of what is claimed. A run with Gaussian noise claims an ε at every δ, and these lines together
are its trade-off curve: how much likelier anything can be if one user is in. Guesses that (ε, δ) allows may still be
better than the curve allows, so the curve is refuted by fewer guesses (Mahloujifar, Melis and Chaudhuri 2025).

**The test.** m canaries are in by fair coins, c of them are guessed about, and C guesses are right. Let p_j be the
chance of C = j, r_i = Σ_{j≥i} p_j·j/m and h_i = Σ_{j≥i} p_j·(c-j)/m. Take one canary and the event that it is guessed
right and C ≥ i. With its coin turned the same outputs are those where it is guessed wrong and C ≥ i - 1. So the curve
relates the two chances, and averaged over coins and canaries, as it is concave, it gives r_i ≤ f(h_{i-1}).

Suppose that C ≥ k had a chance of τ. Then r_k ≥ τk/m, and the rule above asks for some chance of C = k - 1, then of
C = k - 2, and so on: h_{i-1} is at least the inverse of f at r_i, and what it lacks must come from p_{i-1}. If that
adds up to more than 1, the chance of C ≥ k is below τ. To begin with r_k = τk/m and h_k = τ(c-k)/m is the least that
this asks for: by induction from k downwards, any law with a larger r_k, or with h larger than it has to be, has an r_i
larger by at least i/(c-i) times the excess of h_i, so every later r and h is no smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.audit.bounds import CONFIDENCE, count_correct
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Event, Spent

# Where lines of the curve are taken: guesses are about chances of 1/m and more, and further lines change little.
DELTAS = (*np.geomspace(1e-6, 0.05, 16).tolist(), *np.linspace(0.08, 0.96, 23).tolist())
SHARES = (1 / 2, 1 / 4, 1 / 8)  # of the canaries that are guessed about: a curve is refuted by guesses that are sure
FACTORS = (1 / 16, 16.0)  # of the claimed noise: where the most noise that is not refuted is looked for
_LARGEST = 300.0  # ε beyond which e^ε is no longer a number; its line is far below the others
CLOSE = 1.005  # to that factor


@dataclass(frozen=True)
class TradeOff:
    """What is claimed: P(any output | in) <= δ + e^ε P(it | out) for each pair, and with in and out exchanged."""

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @staticmethod
    def of(spent: Spent, accountant: str = accounting.DEFAULT_ACCOUNTANT) -> TradeOff:
        """The curve of everything in `spent`."""
        given = sum(count * event.giveaway for event, count in spent)
        deltas = [delta for delta in DELTAS if delta > given]
        return TradeOff(tuple(accounting.epsilons(spent, deltas, accountant)), tuple(deltas))

    def least(self, chance: float) -> float:
        """How likely something is at least on one side of a coin, if it has this chance on the other."""
        offsets, slopes = self._lines
        return max(float(np.max(offsets + slopes * chance)), 0.0)

    @cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """(chance - δ) e^-ε, and 1 - δ - e^ε (1 - chance)."""
        deltas, factors = np.array(self.deltas), np.exp(np.minimum(self.epsilons, _LARGEST))
        offsets = np.concatenate([-deltas / factors, 1 - deltas - factors])
        return offsets, np.concatenate([1 / factors, factors])


@dataclass(frozen=True)
class CurveBound:
    """What guesses show of a run whose noise is `noise` times the claimed one, at most, if it is of the claimed kind.

    `epsilon` is that of the run with so much noise. `refuted`: the claimed noise is more than that.
    """

    epsilon: float
    noise: float
    refuted: bool
    correct: int
    guesses: int


def refutes(curve: TradeOff, canaries: int, guesses: int, correct: int, confidence: float = CONFIDENCE) -> bool:
    """Are so many right guesses, or more, less likely under the curve than the confidence leaves?

    Guarantee: true for a run that keeps to the curve with probability 1 - confidence at most, whatever the scores are,
    if `guesses` was fixed before anything was seen.
    """
    level = 1 - confidence
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries  # r and h
    enough = guesses / canaries
    for number in range(correct - 1, -1, -1):
        needed = max(curve.least(right), wrong)
        right, wrong = right + number / (guesses - number) * (needed - wrong), needed
        if right + wrong > enough:  # chances that add up to more than 1
            return True
    return False


def curve_bound(
    scores: np.ndarray,
    present: np.ndarray,
    spent: Spent,
    delta: float,
    accountant: str = accounting.DEFAULT_ACCOUNTANT,
    confidence: float = CONFIDENCE,
) -> CurveBound:
    """The most noise that the guesses do not refute, and the ε at `delta` that the run has with it.

    Guesses are about a half, a quarter and an eighth of the canaries, and share the confidence. Rounds with less
    noise keep to a lower curve, so all that is refuted lies above one factor.
    """
    canaries, each = len(scores), 1 - (1 - confidence) / len(SHARES)
    counts = [max(1, int(share * canaries)) for share in SHARES]
    right = [count_correct(scores, present, guesses) for guesses in counts]

    def refuted_by(factor: float) -> int | None:
        """Which of the numbers of guesses refutes this factor, if any."""
        curve = TradeOff.of(scaled(spent, factor), accountant)
        found = (refutes(curve, canaries, *pair, each) for pair in zip(counts, right, strict=True))
        return next((number for number, is_refuted in enumerate(found) if is_refuted), None)

    factor, which = _least_refuted(refuted_by)
    epsilon = accounting.epsilon(scaled(spent, factor), delta, accountant) if math.isfinite(factor) else 0.0
    return CurveBound(epsilon, factor, factor < 1, right[which], counts[which])


def scaled(spent: Spent, factor: float) -> Spent:
    """The same rounds with another amount of noise."""
    return [(_with_noise(event, factor) if event.scalable else event, count) for event, count in spent]


def _with_noise(event: Event, factor: float) -> Event:
    rounds: Any = event  # a dataclass
    return replace(rounds, noise_multiplier=factor * event.noise_multiplier)


def _least_refuted(refuted_by: Callable[[float], int | None]) -> tuple[float, int]:
    """The least factor that is refuted, from above, and by which number of guesses; infinite where none is."""
    low, high = FACTORS
    which = refuted_by(high)
    if which is None:
        return math.inf, 0
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        found = refuted_by(middle)
        low, high, which = (middle, high, which) if found is None else (low, middle, found)
    return high, which
