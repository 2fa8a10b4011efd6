"""Was this user among those the model was trained on? Attacks on users, by how well the model predicts their text.

An attack gives every user a score, higher where it believes more that the user was in. In users are of the train
split, out users were held out; the split is random, so that an attack that learns nothing has an AUC of 1/2.

- **Loss threshold**: a model predicts its own training users better. The score is minus a user's mean loss.
- **Shadow models** (LiRA; Carlini et al. 2022): some users are easy to predict for any model. Models trained with and
  without each user say what loss to expect in either case. *Offline*, the score is how far the loss lies below that of
  models without the user; *online*, the log of the likelihood ratio of the two cases.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import special, stats

from sottovoce.audit.bounds import CONFIDENCE, at_most
from sottovoce.audit.results import AttackResult, Rate
from sottovoce_evidence.errors import SettingError, SottoError, count_of

RATES = (0.001, 0.01)  # of false alarms: an attack that is right about few, but sure of them, is one too
FEWEST = 5  # users on either side
FEWEST_REFERENCES = 4  # two with a user and two without: with one of each there is no spread to see
_DRAWN = 60  # points of a curve that are kept


def evaluate_attack(name: str, inside: np.ndarray, outside: np.ndarray, confidence: float = CONFIDENCE) -> AttackResult:
    """How well an attack that gives these scores distinguishes in users from out users."""
    inside, outside = np.asarray(inside, np.float64), np.asarray(outside, np.float64)
    check_users(len(inside), len(outside))
    if not (np.all(np.isfinite(inside)) and np.all(np.isfinite(outside))):
        raise SottoError("a user's score is not a number: the model has diverged")
    rates = tuple(rate_at(fpr, inside, outside, confidence) for fpr in RATES)
    roc = tuple(zip(*(shares.tolist() for shares in curve(inside, outside)), strict=True))
    return AttackResult(name, *area(inside, outside, confidence), rates, roc)


def with_few_points(attack: AttackResult) -> AttackResult:
    """The same with some points of the ROC curve, for a file."""
    kept = np.unique(np.append(np.geomspace(1, len(attack.roc), _DRAWN).astype(int) - 1, 0))
    return replace(attack, roc=tuple(attack.roc[place] for place in kept))


def area(inside: np.ndarray, outside: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The chance that an in user scores above an out user (ties are halves), and its interval over users.

    DeLong's variance, on the logit scale, which keeps the interval in [0, 1]. Where all of one side lie above all of
    the other that variance is 0: then the interval is Clopper-Pearson's of as many pairs as can be independent.
    """
    m, n = len(inside), len(outside)
    together = stats.rankdata(np.concatenate([inside, outside]))
    above = (together[:m] - stats.rankdata(inside)) / n  # of each in user: the share of out users below
    below = 1 - (together[m:] - stats.rankdata(outside)) / m  # of each out user: the share of in users above
    auc = float(np.mean(above))
    tail = (1 - confidence) / 2
    if not 1e-12 < auc < 1 - 1e-12:
        edge = tail ** (1 / min(m, n))
        return (1.0, edge, 1.0) if auc > 0.5 else (0.0, 0.0, 1 - edge)
    error = math.sqrt(np.var(above, ddof=1) / m + np.var(below, ddof=1) / n) / (auc * (1 - auc))
    reach = -float(special.ndtri(tail)) * error
    low, high = (float(special.expit(special.logit(auc) + side * reach)) for side in (-1, 1))
    return auc, low, high


def rate_at(fpr: float, inside: np.ndarray, outside: np.ndarray, confidence: float = CONFIDENCE) -> Rate:
    """Threshold: no more than a share `fpr` of these out users lie above it."""
    m, n = len(inside), len(outside)
    allowed = math.floor(fpr * n + 1e-9)
    cut = np.sort(outside)[::-1][min(allowed, n - 1)]
    found, alarms = int(np.sum(inside > cut)), int(np.sum(outside > cut))
    tail = (1 - confidence) / 2
    return Rate(
        fpr=fpr,
        tpr=found / m,
        low=float(1 - at_most(m - found, m, tail)),
        high=float(at_most(found, m, tail)),
        false_alarms=alarms,
        fpr_at_most=float(at_most(alarms, n, 1 - confidence)),
        too_few=allowed < 1,
    )


def curve(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of out and of in users above each threshold."""
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    shares = [1 - np.searchsorted(np.sort(side), cuts, side="left") / len(side) for side in (outside, inside)]
    fprs, tprs = (np.concatenate([[0.0], share]) for share in shares)
    return fprs, tprs


def draw_halves(users: int, references: int, generator: np.random.Generator) -> np.ndarray:
    """Who is in which shadow model [references, users]: half of the users in one, the other half in the next.

    So every user is in exactly half of the shadow models.
    """
    check_references(references)
    rows = []
    for _ in range(references // 2):
        half = np.zeros(users, bool)
        half[generator.permutation(users)[: users // 2]] = True
        rows += [half, ~half]
    return np.array(rows)


def offline_scores(losses: np.ndarray, reference_losses: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """How far each user's loss lies below its mean over shadow models without the user."""
    without, _ = _moments(reference_losses, ~inside)
    return without - losses


def online_scores(losses: np.ndarray, reference_losses: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """log P(loss | in) - log P(loss | out), both normal with means of each user's own.

    All users share the spreads: a few shadow models say little about the spread of a single user. They are those of
    one more loss, so they include the uncertainty of the mean.
    """
    (mean_in, spread_in), (mean_out, spread_out) = (_moments(reference_losses, some) for some in (inside, ~inside))
    return stats.norm.logpdf(losses, mean_in, spread_in) - stats.norm.logpdf(losses, mean_out, spread_out)


def _moments(losses: np.ndarray, some: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean over some of the shadow models, by user, and the spread of one more loss about it, for all users."""
    count = some.sum(axis=0)
    mean = np.sum(losses, axis=0, where=some) / count
    squares = np.sum((losses - mean) ** 2, axis=0, where=some)
    variance = squares.sum() / (count - 1).sum() * np.mean(1 + 1 / count)
    return mean, max(math.sqrt(variance), 1e-12)


def check_users(inside: int, outside: int) -> None:
    if min(inside, outside) < FEWEST:
        found = f"{count_of(inside, 'user')} to train on and {outside} held out have any text"
        raise SottoError(f"{found}; an attack needs {FEWEST} of each: prepare the store with --test-users 0.1")


def check_references(references: int) -> None:
    if references and (references < FEWEST_REFERENCES or references % 2):
        text = f"{{references}} must be 0 or an even number from {FEWEST_REFERENCES} on: every user is in half of them"
        raise SettingError(text, references=references)
