"""ε by the PLD accountant of dp-accounting alone: it shares no code with `pld.py`."""

from __future__ import annotations

import math

from sottovoce.accounting.composition import Spent, composition_of, counted

_MOST_ROUNDS = 10**5  # beyond, rounding errors of dp-accounting pass its figures
_LEAST_NOISE, _MOST_KINDS = 0.1, 50  # beyond, its distributions need more memory and time than a check is worth


def dp_accounting_epsilon(spent: Spent, delta: float) -> float | None:
    """ε at `delta` of everything in `spent`, by dp-accounting.

    None where dp-accounting has no answer: sampled rounds under replace-one, more than 100,000 rounds, more than 50
    kinds of rounds, or a noise multiplier below 0.1.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    made = composition_of(counted(spent), "pld")
    if made is None:
        return math.inf
    least = min((event.noise_multiplier for event in made.rounds), default=_LEAST_NOISE)
    if sum(made.rounds.values()) > _MOST_ROUNDS or len(made.rounds) > _MOST_KINDS or least < _LEAST_NOISE:
        return None
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, count in made.rounds.items():
        # Replacing a user moves a sum twice as far as adding one.
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier / (2 if made.replaced else 1))
        if event.user_rate < 1 and made.replaced:
            return None
        one = gaussian if event.user_rate == 1 else dp_accounting.PoissonSampledDpEvent(event.user_rate, gaussian)
        accountant.compose(one, count)
    answer = accountant.get_epsilon(made.left(delta)) if made.rounds else 0.0
    return float(answer) + made.unlikely
