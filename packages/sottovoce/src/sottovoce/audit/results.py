"""What audits find, as the files in RUN/audit hold it. Reading them needs no jax.

Files of other versions may lack fields: a number is then NaN, and a text is empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from sottovoce_evidence.files import Facts, Json, in_file
from sottovoce_evidence.statement import CanarySummary, ExposurePoint

NO_CANARIES = CanarySummary()


@dataclass(frozen=True)
class Proved(Facts):
    """The guarantee of the audited run."""

    private: bool
    epsilon: float
    delta: float


@dataclass(frozen=True)
class RoundsResult(Facts):
    """Single rounds with and without one canary user: is their noise what is claimed?"""

    run: str = ""
    weights: str | None = None
    rounds: int = 0
    round: int = 0
    claimed: float = math.nan
    shown: float = math.nan
    delta: float = math.nan
    confidence: float = math.nan
    contradicted: bool | None = None
    claimed_multiplier: float = math.nan  # version 0.1 measured no noise
    shown_multiplier: float = math.nan
    would_notice: float = math.nan
    most: float = math.nan
    judged: int = 0
    correct: int = 0
    relative_norm: float = field(default=math.nan, metadata=in_file("reach"))
    relation: str | None = None
    note: str = ""

    @property
    def measured_noise(self) -> bool:
        return math.isfinite(self.claimed_multiplier) and not math.isnan(self.shown_multiplier)


@dataclass(frozen=True)
class TailPair(Facts):
    """One direction of a pair of models: the tail of c(s) over texts that one of the two wrote."""

    pair: str = ""
    texts_of: str = ""
    texts: int = 0
    k: int = 0
    log_start: float = math.nan
    alpha: float = math.nan
    constant: float = math.nan
    statistic: float = math.nan
    p_value: float = math.nan
    rejected: bool = False
    epsilon: float = math.nan


@dataclass(frozen=True)
class TailsResult(Facts):
    """Models with and without a user: an estimate of ε."""

    run: str = ""
    round: int = 0
    epsilon: float = math.nan
    delta: float = math.nan
    note: str = "an estimate"
    proved: Proved | None = None
    about: str = ""
    words: int = 0
    level: float = math.nan
    rejected: int = 0
    pairs: tuple[TailPair, ...] = ()


@dataclass(frozen=True)
class Exposure(Facts):
    """How a secret ranks among `references`, itself included: log2 |R| - log2 rank (Carlini et al. 2019).

    A model that knows nothing of a secret exposes it by t bits with chance 2^-t.
    """

    text: str = ""
    holders: int = 0
    bits: float = math.nan
    most: float = math.nan
    rank: int = 0
    references: int = 0
    whole_space: bool = False  # all that could stand there were ranked; else heads were drawn, with every last word
    extracted: bool = False  # is it among what a beam search finds after its prefix?


@dataclass(frozen=True)
class OtherCurve(Facts):
    """The exposure curve of another run."""

    run: str = ""
    epsilon: float = math.inf
    curve: tuple[ExposurePoint, ...] = ()


@dataclass(frozen=True)
class Guesses(Facts):
    """A lower bound on ε from guesses about who was in; `most` is what perfect guesses would show.

    `noise` is the share of the claimed noise that the guesses leave possible, and `by_curve` the ε of the run with so
    much noise. Versions before 0.3 did not test the curve.
    """

    shown: float = math.nan
    correct: int = 0
    guesses: int = 0
    most: float = math.nan
    noise: float = math.nan
    by_curve: float = math.nan


@dataclass(frozen=True)
class OneRunResult(Facts):
    """Guesses about the canary users of one run: from its noised updates, and from its model alone.

    `weights` are from the released weights and those at the start, `model` from what the model predicts.
    """

    canaries: int = 0
    shown: float = math.nan
    rounds: Guesses = Guesses()
    model: Guesses = Guesses()
    weights: Guesses | None = None  # None: versions before 0.3, or the start is not known any more

    @property
    def attacks(self) -> dict[str, Guesses]:
        """By what the attacker has."""
        found = {"noised updates": self.rounds, "released weights": self.weights, "losses of the model": self.model}
        return {name: guesses for name, guesses in found.items() if guesses is not None}

    @property
    def noise(self) -> float:
        """The share of the claimed noise that all guesses together leave possible; infinite if they bound nothing."""
        return min((one.noise for one in self.attacks.values() if not math.isnan(one.noise)), default=math.inf)


@dataclass(frozen=True)
class CanariesResult(Facts):
    """Exposure of the secrets, and a lower bound on ε from the canary users.

    `itself`: the canaries are in the audited model. Otherwise a copy with canaries was trained for the audit.
    """

    run: str = ""
    weights: str | None = None
    round: int = 0
    of: str = ""
    itself: bool = False
    canaries: CanarySummary = NO_CANARIES
    delta: float = math.nan
    confidence: float = math.nan
    claimed: float = math.nan
    shown: float = math.nan
    contradicted: bool | None = None
    one_run: OneRunResult | None = None
    exposure: tuple[Exposure, ...] = ()
    curve: tuple[ExposurePoint, ...] = ()
    others: tuple[OtherCurve, ...] = field(default=(), metadata=in_file("beside"))
    note: str = ""


@dataclass(frozen=True)
class Rate(Facts):
    """The share of in users who are found where at most a share `fpr` of out users is taken for one."""

    fpr: float
    tpr: float
    low: float  # of the interval of `tpr`, with the threshold taken as it is
    high: float
    false_alarms: int  # out users above the threshold
    fpr_at_most: float  # what their number leaves possible, at the same confidence
    too_few: bool  # there are fewer out users than it takes to see one false alarm at this rate


@dataclass(frozen=True)
class AttackResult(Facts):
    """How well one attack distinguishes in users from out users: AUC with its interval, and the ROC curve."""

    name: str = field(default="", metadata=in_file("attack"))
    auc: float = math.nan
    low: float = math.nan
    high: float = math.nan
    rates: tuple[Rate, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()  # shares of out users and of in users


@dataclass(frozen=True)
class MembershipResult(Facts):
    """Attacks that distinguish users to train on from users held out."""

    run: str = ""
    weights: str | None = None
    round: int = 0
    in_users: int = 0
    out_users: int = 0
    rounds_a_user: float = math.nan
    references: int = 0
    confidence: float = 0.95
    attacks: tuple[AttackResult, ...] = ()
    proved: Proved | None = None
    note: str = ""


_KINDS = {"rounds": RoundsResult, "tails": TailsResult, "canaries": CanariesResult, "membership": MembershipResult}
AUDITS = tuple(_KINDS)  # RUN/audit/NAME.json


@dataclass(frozen=True)
class Audits:
    """What was found of one run. None: not run, or of an earlier model."""

    rounds: RoundsResult | None = None
    tails: TailsResult | None = None
    canaries: CanariesResult | None = None
    membership: MembershipResult | None = None
    outdated: frozenset[str] = frozenset()  # those of an earlier model

    @staticmethod
    def from_json(files: dict[str, Json | None], weights: str | None = None) -> Audits:
        """From the files of audits. One of other `weights` than the run has now is out of date."""
        found: dict[str, Any] = {}
        outdated = set()
        for name, values in files.items():
            if values is not None and values.get("weights") in (None, weights):
                found[name] = _KINDS[name].from_json(values)
            elif values is not None:
                outdated.add(name)
        return Audits(**found, outdated=frozenset(outdated))
