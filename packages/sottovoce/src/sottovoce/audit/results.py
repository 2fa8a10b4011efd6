"""What audits find, as the files in RUN/audit hold it. Reading them needs no jax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import Facts, Json
from sottovoce_evidence.statement import CanarySummary, ExposurePoint


@dataclass(frozen=True)
class Proved(Facts):
    """The guarantee of the audited run."""

    private: bool
    epsilon: float
    delta: float


@dataclass(frozen=True)
class RoundsResult(Facts):
    """Single rounds with and without one canary user: is their noise what is claimed?"""

    run: str
    weights: str
    rounds: int
    round: int
    claimed: float
    shown: float
    delta: float
    confidence: float
    contradicted: bool
    claimed_multiplier: float
    shown_multiplier: float
    would_notice: float
    most: float
    judged: int
    correct: int
    reach: float  # the norm of the canary's update, as a share of the clip norm
    relation: str | None
    note: str


@dataclass(frozen=True)
class TailPair(Facts):
    """One direction of a pair of models: the tail of c(s) over texts that one of the two wrote."""

    pair: str
    texts_of: str
    texts: int
    k: int
    log_start: float
    alpha: float
    constant: float
    statistic: float
    p_value: float
    rejected: bool
    epsilon: float


@dataclass(frozen=True)
class TailsResult(Facts):
    """Models with and without a user: an estimate of ε."""

    run: str
    round: int
    epsilon: float
    delta: float
    note: str
    proved: Proved
    about: str
    words: int
    level: float
    rejected: int
    pairs: tuple[TailPair, ...]


@dataclass(frozen=True)
class Exposure(Facts):
    """How a secret ranks among `references`, itself included: log2 |R| - log2 rank (Carlini et al. 2019).

    A model that knows nothing of a secret exposes it by t bits with chance 2^-t.
    """

    text: str
    holders: int
    bits: float
    most: float
    rank: int
    references: int
    whole_space: bool  # all that could stand there were ranked; else heads were drawn, with every last word
    extracted: bool  # is it among what a beam search finds after its prefix?


@dataclass(frozen=True)
class OtherCurve(Facts):
    """The exposure curve of another run."""

    run: str
    epsilon: float
    curve: tuple[ExposurePoint, ...]


@dataclass(frozen=True)
class Guesses(Facts):
    """A lower bound on ε from guesses about who was in; `most` is what perfect guesses would show.

    `noise` is the share of the claimed noise that the guesses leave possible, and `by_curve` the ε of the run with so
    much noise; both NaN where the run claims none.
    """

    shown: float
    correct: int
    guesses: int
    most: float
    noise: float
    by_curve: float


@dataclass(frozen=True)
class OneRunResult(Facts):
    """Guesses about the canary users of one run: from its noised updates, and from its model alone.

    `weights` are from the released weights and those at the start, `model` from what the model predicts.
    """

    canaries: int
    shown: float
    rounds: Guesses
    model: Guesses
    weights: Guesses | None  # None where the start is not known any more

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

    run: str
    weights: str
    round: int
    of: str
    itself: bool
    canaries: CanarySummary
    delta: float
    confidence: float
    claimed: float
    shown: float
    contradicted: bool
    one_run: OneRunResult | None
    exposure: tuple[Exposure, ...]
    curve: tuple[ExposurePoint, ...]
    beside: tuple[OtherCurve, ...]
    note: str


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

    attack: str
    auc: float
    low: float
    high: float
    rates: tuple[Rate, ...]
    roc: tuple[tuple[float, float], ...]  # shares of out users and of in users


@dataclass(frozen=True)
class MembershipResult(Facts):
    """Attacks that distinguish users to train on from users held out."""

    run: str
    weights: str
    round: int
    in_users: int
    out_users: int
    rounds_a_user: float
    references: int
    confidence: float
    attacks: tuple[AttackResult, ...]
    proved: Proved
    note: str


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
    def from_json(files: dict[str, Json | None], weights: str = "") -> Audits:
        """From the files of audits. One of other `weights` than the run has now is out of date.

        Raises:
            DamagedRun: a file is not as its audit wrote it.
        """
        found: dict[str, Any] = {}
        outdated = set()
        for name, values in files.items():
            if values is not None and values.get("weights", weights) == weights:  # that of tails names none
                try:
                    found[name] = _KINDS[name].from_json(values)
                except (ValueError, TypeError, AttributeError) as error:
                    what = f"audit/{name}.json is damaged ({error})"
                    raise DamagedRun(what, f"run `sotto audit {name}` again") from None
            elif values is not None:
                outdated.add(name)
        return Audits(**found, outdated=frozenset(outdated))
