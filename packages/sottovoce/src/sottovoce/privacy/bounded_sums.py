"""Sums of predictions over users, of whom each counts for a bounded number of tokens, with rounded Gaussian noise."""

from __future__ import annotations

import math
import secrets as os_entropy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.privacy.noise import LEAST_SCALE, rounded_gaussian
from sottovoce_evidence.accounting.events import HELD_OUT, MOST_TOKENS, GaussianRelease
from sottovoce_evidence.errors import SettingError

LOSS_STEPS = 256  # in which a loss between 0 and its bound is counted
RANKS = 4  # the target is the first of the model's guesses, the second or third, the fourth or fifth, or none of them


class Part(NamedTuple):
    """Some of the sums: how far one user moves them (L2), and their share of what is paid for all."""

    columns: slice
    sensitivity: int
    share: float

    def noise_std(self, noise_multiplier: float) -> float:
        return max(LEAST_SCALE, noise_multiplier * self.sensitivity / math.sqrt(self.share))


class NoisySums(NamedTuple):
    """What is released, in whole numbers."""

    ranks: tuple[int, ...]  # targets by the rank of the guess that hits them: they add up to the number of targets
    loss: int  # in `LOSS_STEPS` of the loss bound
    squares: tuple[int, ...]  # Σ h², Σ h·m and Σ m² over users with h hits and m misses
    users: int


@dataclass(frozen=True)
class BoundedSums:
    """Nine sums over users. A user has T = `tokens_per_user` targets at most.

    Guarantee: one user added or removed moves every part by its sensitivity at most, in whole numbers. The ranks of a
    user are counts of different targets, so their L2 norm is at most their sum, T. The loss is T steps of its bound at
    most. The norm of (h², hm, m²) is at most h² + m² <= T². Noise of z·Δ/√share on each part, with shares that add up
    to one, costs what one Gaussian of noise multiplier z costs.
    """

    noise_multiplier: float
    tokens_per_user: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens_per_user <= MOST_TOKENS:
            text = f"{{tokens_per_user}} must be from 1 to {MOST_TOKENS}: the tokens for which one user counts"
            raise SettingError(text, tokens_per_user=self.tokens_per_user)

    @property
    def parts(self) -> dict[str, Part]:
        most = self.tokens_per_user
        return {
            "ranks": Part(slice(0, RANKS), most, 0.5),
            "loss": Part(slice(RANKS, RANKS + 1), LOSS_STEPS * most, 0.3),
            "squares": Part(slice(RANKS + 1, RANKS + 4), most**2, 0.1),
            "users": Part(slice(RANKS + 4, RANKS + 5), 1, 0.1),
        }

    def event(self) -> GaussianRelease:
        return GaussianRelease(self.noise_multiplier, people=HELD_OUT)

    def bounded(self, ranks: np.ndarray, loss: np.ndarray) -> np.ndarray:
        """What each user adds to the sums, a row each: within the bounds whatever was measured, NaN included.

        Args:
            ranks: targets of each user by rank, `RANKS` columns.
            loss: of each user, over the loss bound of one token.
        """
        wanted = np.clip(np.nan_to_num(ranks, nan=0.0), 0, self.tokens_per_user).astype(np.int64)
        kept = np.diff(np.minimum(np.cumsum(wanted, axis=1), self.tokens_per_user), axis=1, prepend=0)
        targets = kept.sum(axis=1)
        steps = np.clip(np.nan_to_num(loss, nan=np.inf), 0, targets) * LOSS_STEPS
        hits = kept[:, 0]
        misses = targets - hits
        columns = [np.rint(steps).astype(np.int64), hits**2, hits * misses, misses**2, np.ones_like(hits)]
        return np.concatenate([kept, np.stack(columns, axis=1)], axis=1)

    def draw(self, rows: np.ndarray) -> NoisySums:
        """The sums of these rows with noise, keyed by the entropy of the operating system: one release."""
        total, key = rows.sum(axis=0), os_entropy.token_bytes(32)
        noisy = {}
        for stream, (name, part) in enumerate(self.parts.items()):
            exact = total[part.columns]
            noise = np.asarray(rounded_gaussian(key, len(exact), part.noise_std(self.noise_multiplier), stream))
            noisy[name] = tuple(int(value) for value in exact + noise)
        return NoisySums(noisy["ranks"], noisy["loss"][0], noisy["squares"], noisy["users"][0])
