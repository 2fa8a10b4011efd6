"""The best of a random, secret number of private runs: what choosing costs, by Rényi divergence.

Papernot and Steinke (2022), Theorems 2 and 6, which refine Liu and Talwar (2019). A run is drawn anew every time, with
its settings; each has a score, which is computed from what the run released; only the best is looked at.
"""

from __future__ import annotations

import math
import secrets as os_entropy
from collections.abc import Sequence
from typing import Any

import numpy as np

from sottovoce_evidence.errors import SettingError, did_you_mean

# Shapes of the truncated negative binomial distribution; that of Poisson is its limit, and may be 0 runs.
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
MOST_RUNS = 10_000  # expected
_DRAWN = 2**53  # uniform numbers: as many as a float tells apart


def check(expected_runs: float, distribution: str) -> None:
    if distribution not in SHAPES:
        known = f"{', '.join(SHAPES)}{did_you_mean(str(distribution), SHAPES)}"
        raise SettingError(f"{{distribution!r}} must be one of {known}", distribution=distribution)
    if not 1 < expected_runs <= MOST_RUNS:
        text = f"{{expected_runs:g}} must be above 1 and at most {MOST_RUNS}: how many runs there are on average"
        raise SettingError(text, expected_runs=expected_runs)


def best_of(orders: Sequence[float], one: np.ndarray, expected_runs: float, distribution: str) -> np.ndarray:
    """The divergence of the best of many runs at each order, from that of one run (`one`): by dp-accounting.

    Its `RepeatAndSelectDpEvent` takes an event of its own, and has none for one user replaced under Poisson sampling.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    check(expected_runs, distribution)
    found = rdp._compute_rdp_repeat_and_select(orders, one.tolist(), expected_runs, SHAPES[distribution])
    return np.asarray(found)


def numbers_of_runs(expected_runs: float, distribution: str) -> Any:
    """The distribution of the number of runs, as scipy has it, with the parameter by which a choice is charged."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp
    from scipy.stats import geom, logser, poisson

    check(expected_runs, distribution)
    if distribution == "poisson":
        return poisson(expected_runs)
    gamma = rdp._gamma_truncated_negative_binomial(SHAPES[distribution], expected_runs)
    return geom(gamma) if distribution == "geometric" else logser(1 - gamma)


def runs_at_most(expected_runs: float, distribution: str, chance: float = 0.95) -> int:
    """The least number that there are no more runs than with this chance."""
    return int(numbers_of_runs(expected_runs, distribution).ppf(chance))


def draw_runs(expected_runs: float, distribution: str) -> int:
    """A number of runs, from the entropy of the operating system. It is a secret, as the runs are that are not shown.

    Guarantee: it has the distribution of `numbers_of_runs`, to the rounding of a float.
    """
    uniform = (os_entropy.randbelow(_DRAWN) + 1) / (_DRAWN + 1)  # neither 0 nor 1
    return int(numbers_of_runs(expected_runs, distribution).ppf(uniform))
