"""The figures of a private evaluation, which a statement and a reviewer read: without jax."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.accounting import HeldOutSums
from sottovoce.files import Facts


@dataclass(frozen=True)
class Terms(Facts):
    """What held-out users pay for one evaluation, and how much of a user's text counts."""

    epsilon: float
    delta: float
    noise_multiplier: float
    tokens_per_user: int
    loss_bound: float

    @property
    def event(self) -> HeldOutSums:
        """What was charged."""
        return HeldOutSums(self.noise_multiplier, self.tokens_per_user)


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
