"""What audits find, as the files in RUN/audit hold it, its tables, and what it means in a sentence. Without jax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sottovoce_evidence.accounting import rounded_down, rounded_up
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import Facts, Json
from sottovoce_evidence.statement import CanarySummary, ExposurePoint
from sottovoce_evidence.statement_text import epsilon_text, percent, plain

Rows = list[dict[str, str]]
_MOST = 20.0  # ε beyond which a factor is no longer written out


@dataclass(frozen=True)
class Found(Facts):
    """What an audit found."""

    @property
    def sentence(self) -> str:
        """What the figures say and do not say, for a reader who does not know the attack; empty without figures."""
        return ""

    def tables(self) -> dict[str, Rows]:
        """The figures as rows of tables, by title."""
        return {}


@dataclass(frozen=True)
class Proved(Found):
    """The guarantee of the audited run."""

    private: bool
    epsilon: float
    delta: float

    @property
    def sentence(self) -> str:
        if not self.private or not math.isfinite(self.epsilon):
            return "nothing limits what the releases say of one user"
        factor = f"{math.exp(self.epsilon):,.3g}" if self.epsilon < _MOST else f"e^{epsilon_text(self.epsilon)}"
        return (
            f"with any one user left out, nothing that was released becomes more than {factor} times likelier or less "
            f"likely, but for a chance of {plain(self.delta)}"
        )


@dataclass(frozen=True)
class RoundsResult(Found):
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

    @property
    def sentence(self) -> str:
        if not self.judged:
            return ""
        allowed = 1 / (1 + math.exp(-min(self.claimed, _MOST)))  # of right guesses about a fair coin, but for δ
        ratio = self.shown_multiplier / self.claimed_multiplier if self.claimed_multiplier else math.inf
        return (
            f"a made-up user was in about half of {self.judged:,} rounds, and an attacker who knows all but the noise "
            f"guessed {percent(self.correct / self.judged, 0)} of them right; a coin gets 50%, and the claim allows up "
            f"to {100 * allowed:.3g}%. {_noise(ratio, f', with {100 * self.confidence:.4g}% confidence')}"
        )


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

    def row(self) -> dict[str, str]:
        law = {"α": self.alpha, "C": self.constant, "√k D": self.statistic, "p-value": self.p_value, "ε": self.epsilon}
        shown = {name: f"{value:.3g}".replace("inf", "∞").replace("nan", "–") for name, value in law.items()}
        return {"pair": self.pair, "texts of": self.texts_of, "k": f"{self.k:,}", **shown}


@dataclass(frozen=True)
class TailsResult(Found):
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

    @property
    def sentence(self) -> str:
        if not self.pairs:
            return ""
        return (
            "an estimate from texts that models with and without a user wrote: neither a proof nor a bound, and about "
            "the users who were left out alone"
        )

    def tables(self) -> dict[str, Rows]:
        return {f"Tails of c(s) = P(s|θ)/P(s|θ'), {self.run}": [pair.row() for pair in self.pairs]}


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

    def row(self, source: str) -> dict[str, str]:
        claimed = not math.isnan(self.noise)
        return {
            "from": source,
            "guessed right": f"{self.correct:,} of {self.guesses:,}",
            "ε at least": rounded_down(self.shown),
            "noise at most": rounded_up(self.noise) if claimed else "–",
            "with so much, ε": rounded_down(self.by_curve) if claimed else "–",
        }


@dataclass(frozen=True)
class OneRunResult(Found):
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

    @property
    def sentence(self) -> str:
        source, best = max(self.attacks.items(), key=lambda attack: attack[1].shown)
        if not best.guesses:
            return ""
        chance = "even a run with ε = 0 may do so by chance"
        if best.shown > 0:
            chance = f"a run with an ε below {rounded_down(best.shown)} hardly ever does so by chance"
        noise = _noise(self.noise)
        if all(math.isnan(one.noise) for one in self.attacks.values()):
            noise = "No noise is claimed"
        elif math.isinf(self.noise):
            noise = "The guesses are too few or too weak to say how much noise there is at most"
        return (
            f"an attacker with the {source} guessed {percent(best.correct / best.guesses, 0)} of {best.guesses:,} "
            f"coins of made-up users right; a coin gets 50%, and {chance}. {noise}"
        )

    def tables(self) -> dict[str, Rows]:
        title = f"Guesses about {self.canaries:,} canary users, each in or out by a coin"
        return {title: [guesses.row(source) for source, guesses in self.attacks.items()]}


@dataclass(frozen=True)
class CanariesResult(Found):
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

    @property
    def bits(self) -> list[float]:
        """The exposure of each secret that has one."""
        return [one.bits for one in self.exposure if math.isfinite(one.bits)]

    @property
    def sentence(self) -> str:
        if not self.bits:
            return ""
        luck = f". It is the best of {len(self.bits)} secrets, so partly the luckiest" if len(self.bits) > 1 else ""
        return (
            f"the best known secret ranks first among about {2 ** max(self.bits):,.0f} of its kind; a model that never "
            f"saw it would do so once in as many times{luck}"
        )

    def tables(self) -> dict[str, Rows]:
        found = {} if self.one_run is None else self.one_run.tables()
        if not self.curve:
            return found
        curves = [(self.run, self.curve), *((other.run, other.curve) for other in self.beside)]
        title = f"Exposure of secrets, in bits; {max(one.most for one in self.exposure):.3g} at most"
        return {title: [{"run": run, **_curve_row(point)} for run, points in curves for point in points], **found}


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

    def row(self) -> dict[str, str]:
        rates = {
            f"found at\n{rate.fpr:.1%}": f"{rate.tpr:.1%} ({100 * rate.low:.1f}–{100 * rate.high:.1f})"
            for rate in self.rates
        }
        return {"attack": self.attack, "AUC": f"{self.auc:.3f} ({self.low:.3f}–{self.high:.3f})", **rates}


@dataclass(frozen=True)
class MembershipResult(Found):
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

    @property
    def sentence(self) -> str:
        if not self.attacks:
            return ""
        best = max(attack.auc for attack in self.attacks)
        return (
            f"given one user who was in and one who was not, the best attack picks the right one {100 * best:.0f} "
            f"times in 100; 50 is a guess. It is one attack on average users, and no bound"
        )

    def tables(self) -> dict[str, Rows]:
        return {
            f"Membership: {self.in_users:,} users in, {self.out_users:,} out; found: the share of in users where that "
            f"share of out users is taken for one": [attack.row() for attack in self.attacks]
        }


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
    def of(found: Found) -> Audits:
        """One result alone."""
        name = next(name for name, kind in _KINDS.items() if isinstance(found, kind))
        return Audits(**{name: found})  # pyrefly: ignore

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


def _noise(ratio: float, sure: str = "") -> str:
    """`ratio`: the most noise that is possible, over the claimed noise."""
    of, so = ("of", "less than is claimed") if ratio < 1 else ("times", "from 1 on this agrees with the claim")
    return f"The noise is at most {epsilon_text(ratio)} {of} what is claimed{sure}: {so}"


def _curve_row(point: ExposurePoint) -> dict[str, str]:
    bits = {name: f"{getattr(point, name):.1f}" for name in ("least", "median", "largest")}
    counts = {"held by": f"{point.holders:,}", "secrets": f"{point.secrets:,}"}
    return {**counts, **bits, "found by beam search": f"{point.extracted:,}"}
