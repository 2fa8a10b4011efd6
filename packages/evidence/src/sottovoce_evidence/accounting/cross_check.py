"""ε by the PLD accountant of dp-accounting alone: it shares no code with `pld.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sottovoce_evidence.accounting.composition import Spent, composition_of, counted
from sottovoce_evidence.accounting.events import SampledExamples, SampledGaussian
from sottovoce_evidence.accounting.mixture import components

_MOST_ROUNDS = 10**5  # beyond, rounding errors of dp-accounting pass its figures
# Beyond, its distributions need more memory and time than a check is worth.
_LEAST_NOISE, _MOST_KINDS, _MOST_EXAMPLES = 0.1, 50, 100
_LEFT_OUT = 1e-4  # of δ
# Steps of its grid of losses. It solves for every point of a mixture, and for every point where a user is replaced, by
# itself, which takes up to a minute at the last of them: the first that changes the answer by little is enough. Each
# answer is an upper bound.
_COARSE_FIRST, _SETTLED = (1e-2, 2.5e-3, 6e-4, 1e-4), 0.998


def dp_accounting_epsilon(spent: Spent, delta: float, *, replaced: bool = False) -> float | None:
    """ε at `delta` of everything in `spent`, by dp-accounting; for one user `replaced` if asked.

    None where dp-accounting has no answer: the best of several runs, cohorts of fixed size, sampled examples under
    replace-one, more than 100,000 rounds, more than 50 kinds of rounds, a noise multiplier below 0.1, or more than 100
    examples of a user.
    """
    if any("pld" not in event.accountants for event, _ in spent):
        return None
    made = composition_of(counted(spent), "pld", replaced)
    if made is None:
        return math.inf
    least = min((event.noise_multiplier for event in made.rounds), default=_LEAST_NOISE)
    if sum(made.rounds.values()) > _MOST_ROUNDS or len(made.rounds) > _MOST_KINDS or least < _LEAST_NOISE:
        return None
    if not made.rounds:
        return made.unlikely
    left, events = made.left(delta), []
    for event, count in made.rounds.items():
        if isinstance(event, SampledExamples):
            if made.replaced or event.examples_per_user > _MOST_EXAMPLES:
                return None
            # It would take minutes over numbers of examples that never join together: their chance is taken off δ.
            one, left_out = _of_examples(event, _LEFT_OUT * delta / count)
            left -= count * left_out
        elif event.user_rate < 1 and event.sampling == "fixed":
            return None
        else:
            one = _of_users(event)
        events.append((one, count))
    slow = made.replaced or any(isinstance(event, SampledExamples) for event in made.rounds)
    steps = _COARSE_FIRST if slow else _COARSE_FIRST[-1:]
    answer = before = math.inf
    for step in steps:
        answer = _composed(events, left, step, made.replaced)
        if answer > _SETTLED * before:
            break
        before = answer
    return answer + made.unlikely


def _composed(events: list[tuple[Any, int]], delta: float, step: float, replaced: bool) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    accountant = PLDAccountant(relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE, step)
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _of_users(event: SampledGaussian) -> Any:
    """Its noise is over how far one user added moves a sum: under replace-one dp-accounting doubles that itself."""
    import dp_accounting

    gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    return gaussian if event.user_rate == 1 else dp_accounting.PoissonSampledDpEvent(event.user_rate, gaussian)


def _of_examples(event: SampledExamples, least: float) -> tuple[Any, float]:
    """The mixture of Gaussians of a user's examples, and the chance of more examples than it has."""
    import dp_accounting

    most = event.examples_per_user
    if event.example_rate == 1:
        return dp_accounting.GaussianDpEvent(event.noise_multiplier / most), 0.0
    parts = components(event.example_rate, most, least)
    chances = np.exp(parts.logs)
    sensitivities, shares = range(len(chances)), (chances / chances.sum()).tolist()
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(event.noise_multiplier, sensitivities, shares)
    return mixture, parts.left_out
