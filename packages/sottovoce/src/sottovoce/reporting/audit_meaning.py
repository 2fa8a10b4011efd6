"""What the figures of an audit mean, in sentences for a reader who does not know the attacks."""

from __future__ import annotations

import math
from functools import singledispatch

from sottovoce.audit.results import (
    CanariesResult,
    Guesses,
    MembershipResult,
    OneRunResult,
    Proved,
    RoundsResult,
    TailsResult,
)
from sottovoce_evidence.accounting import rounded_down
from sottovoce_evidence.statement_text import epsilon_text, percent, plain

_MOST = 20.0  # ε beyond which a factor is no longer written out


@singledispatch
def meaning(found: object) -> str:
    """What the figures of a result say and do not say; empty for what has none."""
    del found
    return ""


@meaning.register
def _(found: Proved) -> str:
    if not found.private or not math.isfinite(found.epsilon):
        return "nothing limits what the releases say of one user"
    return (
        f"with any one user left out, nothing that was released becomes more than {_factor(found.epsilon)} times "
        f"likelier or less likely, but for a chance of {plain(found.delta)}"
    )


@meaning.register
def _(found: RoundsResult) -> str:
    if not found.judged:
        return ""
    said = (
        f"a made-up user was in about half of {found.judged:,} rounds, and an attacker who knows all but the noise "
        f"guessed {_share(found.correct, found.judged)} of them right; a coin gets 50%, and the claim allows "
        f"{_allowed(found.claimed)}"
    )
    ratio = found.shown_multiplier / found.claimed_multiplier if found.claimed_multiplier else math.inf
    return f"{said}. {_noise(ratio, found.confidence)}"


@meaning.register
def _(found: OneRunResult) -> str:
    name, best = max(found.attacks.items(), key=lambda attack: attack[1].shown)
    if not best.guesses:
        return ""
    return f"{_guessed(best, name)}. {_of_noise(found)}"


@meaning.register
def _(found: CanariesResult) -> str:
    bits = [one.bits for one in found.exposure if math.isfinite(one.bits)]
    if not bits:
        return ""
    most = max(bits)
    luck = f". It is the best of {len(bits)} secrets, so partly the luckiest" if len(bits) > 1 else ""
    return (
        f"the best known secret ranks first among about {2**most:,.0f} of its kind; a model that never saw it would "
        f"do so once in as many times{luck}"
    )


@meaning.register
def _(found: TailsResult) -> str:
    return (
        "an estimate from texts that models with and without a user wrote: neither a proof nor a bound, and about the "
        "users who were left out alone"
        if found.pairs
        else ""
    )


@meaning.register
def _(found: MembershipResult) -> str:
    if not found.attacks:
        return ""
    best = max(attack.auc for attack in found.attacks)
    return (
        f"given one user who was in and one who was not, the best attack picks the right one {100 * best:.0f} times "
        f"in 100; 50 is a guess. It is one attack on average users, and no bound"
    )


def _guessed(guesses: Guesses, source: str) -> str:
    chance = "even a run with ε = 0 may do so by chance"
    if guesses.shown > 0:
        chance = f"a run with an ε below {rounded_down(guesses.shown)} hardly ever does so by chance"
    share = _share(guesses.correct, guesses.guesses)
    return (
        f"an attacker with the {source} guessed {share} of {guesses.guesses:,} coins of made-up users right; a coin "
        f"gets 50%, and {chance}"
    )


def _of_noise(found: OneRunResult) -> str:
    if all(math.isnan(one.noise) for one in found.attacks.values()):
        return "No noise is claimed"
    if math.isinf(found.noise):
        return "The guesses are too few or too weak to say how much noise there is at most"
    return _noise(found.noise)


def _noise(ratio: float, confidence: float = math.nan) -> str:
    """`ratio`: the most noise that is possible, over the claimed noise."""
    sure = "" if math.isnan(confidence) else f", with {100 * confidence:.4g}% confidence"
    shown = epsilon_text(ratio)
    if ratio < 1:
        return f"The noise is at most {shown} of what is claimed{sure}: less than is claimed"
    return f"The noise is at most {shown} times what is claimed{sure}: from 1 on this agrees with the claim"


def _share(correct: int, guesses: int) -> str:
    return percent(correct / guesses, 0)


def _allowed(epsilon: float) -> str:
    """The share of right guesses about a fair coin that ε allows, but for δ."""
    share = 1 / (1 + math.exp(-min(epsilon, _MOST)))
    return f"up to {100 * share:.3g}%"


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon):,.3g}" if epsilon < _MOST else f"e^{epsilon_text(epsilon)}"
