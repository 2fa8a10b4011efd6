"""What an ε means for one person: odds, and how often an attacker can guess right."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from sottovoce.reporting.pages import Bar, Table
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.accounting.events import ADDED
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.statement import Statement
from sottovoce_evidence.statement_text import epsilon_text, plain

_PRIORS = (1000, 100, 10, 2)  # one in so many
_DELTAS = (0.001, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7)
_SIZES = (
    (1, "This is a strong guarantee: whoever has the model knows little more about a person than before."),
    (3, "This is a moderate guarantee: the model can support a suspicion about a person, and hardly prove it."),
    (
        10,
        "Many deployed systems have an ε of this size. It is a weak bound for the worst case: an attacker who is lucky "
        "once may become nearly sure about one person.",
    ),
    (math.inf, "This ε is very large: for the worst case the bound says almost nothing. Rely on audits, or add noise."),
)


@dataclass(frozen=True)
class Meaning:
    """A section of a page. Without a guarantee it is words alone."""

    title: str
    paragraphs: list[str]
    bars: list[Bar]
    odds: Table | None = None


def posterior(prior: float, epsilon: float) -> float:
    """The largest probability that a belief can have after the model was seen: the odds grow by at most e^ε."""
    return prior / (prior + (1 - prior) * math.exp(-epsilon))


def best_guess(charged: Spent, epsilon: float, delta: float) -> float:
    """How often the best attacker is right, at most, about one bit of even odds: was this person's text used?

    (ε, δ)-differential privacy bounds it by (e^ε + δ) / (1 + e^ε). What was charged has an ε for every δ, and the
    smallest of these bounds holds.
    """
    pairs = [(epsilon, delta)]
    with suppress(SottoError):  # PLD has no answer for an event
        pairs += zip(accounting.epsilons(charged, _DELTAS), _DELTAS, strict=True) if charged else []
    return min((1 + at * math.exp(-cost)) / (1 + math.exp(-cost)) for cost, at in pairs)


def meaning_of(statement: Statement) -> Meaning:
    if not statement.has_guarantee:
        text = (
            "Nothing limits what the model gives away about a person. Someone who has it may learn with certainty that "
            "a person's text was used, and parts of the text itself."
        )
        return Meaning("What no guarantee means", [text], [])
    delta, shown = statement.delta, epsilon_text(statement.epsilon)
    epsilon = float(shown.replace(",", ""))  # what the page shows: all figures of this section are of one ε
    factor = _factor(epsilon)
    guess, sure = best_guess(statement.charged, epsilon, delta), posterior(0.5, epsilon)
    secret = "whether one person's text was used in training"
    if statement.relation != ADDED:
        secret = "which of two texts was one person's"
    but = "" if statement.turns is not None else ", but not who joined a round"
    size = next(words for most, words in _SIZES if epsilon <= most)
    average = f" Over many guesses, the best attacker is right at most {at_most(guess)} of the time; a coin, 50%."
    paragraphs = [
        f"Imagine an attacker who knows all settings, everyone else's text and the model after every round{but}. They "
        f"want to know {secret}. The model can multiply the odds of their guess by at most {factor}, "
        f"which is e^{shown}.",
        size + (average if guess < sure else ""),
        f"δ = {plain(delta)}: with a probability of at most this, the bound may not hold.",
    ]
    bars = [
        Bar("A coin", 0.5, "50%", "without the model", quiet=True),
        Bar("The best attacker", guess, f"≤ {at_most(guess)}", "on average over many guesses"),
        Bar("The luckiest guess", sure, f"≤ {at_most(sure)}", f"odds of {factor} to 1"),
    ]
    if guess >= sure:
        del bars[1]
    after = [at_most(posterior(1 / one, epsilon)) for one in _PRIORS]
    before = [f"1 in {one:,}" for one in _PRIORS]
    odds = Table("What can become of a suspicion", "before", before, [("after, ≤", after)])
    return Meaning(f"What ε = {shown} means", paragraphs, bars, odds)


def at_most(share: float) -> str:
    """A bound in percent, never below itself.

    >>> at_most(0.65171), at_most(0.999661), at_most(0.9999999)
    ('65.2%', '99.97%', 'nearly 100%')
    """
    if share > 0.9999:
        return "nearly 100%"
    digits = 1 if share < 0.99 else 2
    return f"{math.ceil(100 * share * 10**digits - 1e-6) / 10**digits:.{digits}f}%"


def _factor(epsilon: float) -> str:
    if epsilon > math.log(1e6):
        return "more than a million"
    factor = math.exp(epsilon)
    return f"{math.ceil(factor):,}" if factor >= 10 else accounting.rounded_up(factor)
