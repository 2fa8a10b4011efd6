"""The figures of a private evaluation, which a statement and a reviewer read: without jax."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from sottovoce_evidence.accounting.events import HELD_OUT, MOST_TOKENS, GaussianRelease
from sottovoce_evidence.files import Facts

MOST_EPSILON, MOST_DELTA = 20.0, 1e-4
WIDTH = 1.96  # standard deviations: 95 %
RANKS = 4  # counts of targets by the rank of the guess that hits them
_OF_RANKS = math.sqrt(2)  # noise on such a count, over noise multiplier times tokens: half is paid for the counts
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Terms(Facts):
    """What held-out users pay for one evaluation, and how much of a user's text counts."""

    epsilon: float
    delta: float
    noise_multiplier: float
    tokens_per_user: int
    loss_bound: float

    @property
    def event(self) -> GaussianRelease:
        """What was charged."""
        return GaussianRelease(self.noise_multiplier, people=HELD_OUT)

    @property
    def rank_noise(self) -> float:
        """The standard deviation of the noise on each count of targets by rank, at least."""
        return _OF_RANKS * self.noise_multiplier * self.tokens_per_user


@dataclass(frozen=True, kw_only=True)
class PrivateAccuracy(Facts):
    """How well a model predicts held-out users, as it may be published. Every figure is computed from noisy sums.

    Figures are None where the noise hides them. Half-widths are of 95 % intervals. The `noise` ones are about these
    users, over their first tokens: how far the exact figure may be. `top1_within` is about people like them: it also
    covers that other users might have been held out.
    """

    terms: Terms
    users: int  # noisy, 1 at least
    targets: int
    top1: float | None = None
    top1_noise: float | None = None
    top1_within: float | None = None
    top3: float | None = None
    top3_noise: float | None = None
    top5: float | None = None
    top5_noise: float | None = None
    perplexity: float | None = None  # with the loss of every token cut off at the bound
    perplexity_low: float | None = None
    perplexity_high: float | None = None

    def __repr__(self) -> str:
        found = "hidden by the noise" if self.top1 is None else f"{self.top1:.2%} ± {100 * (self.top1_within or 0):.2f}"
        return f"<PrivateAccuracy: top-1 {found}, ε = {self.terms.epsilon:g} for each held-out user>"

    @property
    def is_hidden(self) -> bool:
        return self.top1 is None


def spread(share: float, best: int, ranks: int = RANKS) -> float:
    """The standard deviation of hits - share · targets, in units of the noise on one count.

    Hits are the counts of the first `best` ranks, and targets those of all.
    """
    return math.sqrt(best * (1 - share) ** 2 + (ranks - best) * share**2)


def loss_bound(vocabulary: int) -> float:
    """At which the loss of a token is cut off: twice that of a model that knows nothing. It depends on no text."""
    return 2 * math.log(vocabulary)


def faults(found: PrivateAccuracy, vocabulary: int) -> Iterator[str]:
    """Terms that promise nothing, and figures that no private evaluation has."""
    terms = found.terms
    if not 0 < terms.epsilon <= MOST_EPSILON:
        yield f"its ε is {terms.epsilon:g}, and must be above 0 and at most {MOST_EPSILON:g}"
    if not 0 < terms.delta <= MOST_DELTA or not terms.delta * found.users < 1:
        yield f"its δ is {terms.delta:g}, and must be at most {MOST_DELTA:g}, and below 1 over the number of users"
    if not 1 <= terms.tokens_per_user <= MOST_TOKENS:
        yield f"{terms.tokens_per_user} tokens of each user count, and must be from 1 to {MOST_TOKENS}"
    if not math.isclose(terms.loss_bound, loss_bound(vocabulary)):
        yield f"its loss bound is {terms.loss_bound:g}, and must be {loss_bound(vocabulary):.6g}"
    if found.users < 1 or found.targets < 0:
        yield f"it counts {found.users} users and {found.targets} targets"
    figures = {each.name: getattr(found, each.name) for each in fields(found) if each.default is None}
    if set(figures.values()) == {None}:
        return  # the noise hides them
    if odd := [name for name, value in figures.items() if value is None or not 0 <= value < math.inf]:
        yield f"{', '.join(odd)}: missing, negative or not finite"
        return
    yield from _figure_faults(found, figures)


def _figure_faults(found: PrivateAccuracy, figures: dict[str, float]) -> Iterator[str]:
    """Of figures that are finite: shares above 1, and intervals that are too narrow for the noise."""
    for best, name in enumerate(("top1", "top3", "top5"), 1):
        share = figures[name]
        if share > 1:
            yield f"{name} is {share:g}, above 1"
            continue
        least = WIDTH * found.terms.rank_noise * spread(share, best) / max(found.targets, 1)
        if not figures[f"{name}_noise"] >= least * (1 - _ROUNDING):
            yield f"{name}_noise is {figures[f'{name}_noise']:.4g}, and by its noise it is {least:.4g} or more"
    if not figures["top1_within"] >= figures["top1_noise"]:
        yield "top1_within is less than top1_noise, which it includes"
    if not 1 <= figures["perplexity_low"] <= figures["perplexity"] <= figures["perplexity_high"]:
        yield "its perplexity is outside of its interval, or below 1"
