"""What the accountant charges for: plain values that a ledger keeps, for any accountant."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sottovoce_evidence.accounting import selection
from sottovoce_evidence.accounting.matrices import Participation, StrategyMatrix, matrix_from_json
from sottovoce_evidence.errors import SettingError, SottoError, did_you_mean
from sottovoce_evidence.files import Facts, Json, from_json_number

SAMPLINGS = ("poisson", "fixed")
ACCOUNTANTS = ("pld", "rdp", "moments")
MOST_TOKENS = 2**16  # of one held-out user
MOST_EXAMPLES = 10_000  # of one user: of more, an ε takes minutes
_LEAST_NOISE = 1e-100  # beyond it and its inverse a square is no number of a computer
ADDED, REPLACED = "add-or-remove-one-user", "replace-one-user"  # what may change between two populations
TRAINED, HELD_OUT = "trained", "held-out"  # the two groups of a store's people: nobody is in both


@dataclass(frozen=True)
class Event(Facts, ABC):
    """One release. A subclass is a frozen dataclass of plain values, and is listed in `KINDS`."""

    kind: ClassVar[str]  # its name in a ledger
    scalable: ClassVar[bool] = False  # may calibration choose its noise?
    accountants: ClassVar[tuple[str, ...]] = ACCOUNTANTS  # those that have an answer for it
    if TYPE_CHECKING:  # a field, a property or a constant of each subclass

        @property
        def noise_multiplier(self) -> float:
            """Noise over sensitivity; 0 is a release without protection."""

        @property
        def relation(self) -> str:
            """Which two populations the guarantee makes indistinguishable."""

    @property
    def giveaway(self) -> float:
        """The chance that it gives a user away, whatever the noise."""
        return 0.0

    @property
    def people(self) -> str:
        """Which of a store's people it is about."""
        return TRAINED

    def gaussians(self) -> tuple[Sampled, ...]:
        """The rounds that it costs as much as, apart from `giveaway`: one that all users join, if not others."""
        return (SampledGaussian(self.noise_multiplier, "poisson", 1.0),)

    def to_json(self) -> Json:
        return {"kind": self.kind, **super().to_json()}

    @classmethod
    def from_json(cls, values: Json) -> Any:
        """The event of any kind that `to_json` wrote."""
        try:
            if (kind := values.get("kind")) not in KINDS:
                known = ", ".join(KINDS)
                raise SottoError(f"event {kind=!a:.80} must be one of {known}; was it written by a newer sottovoce?")
            event = KINDS[kind]._of_fields(values)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise SottoError(f"event {values!a:.300} cannot be read: {error}") from error
        if unknown := values.keys() - event.to_json().keys():
            raise SottoError(f"event {values!a:.300} has other fields than its own: {', '.join(sorted(unknown))!a:.80}")
        return event

    @classmethod
    def _of_fields(cls, values: Json) -> Event:
        return super().from_json(values)


@dataclass(frozen=True)
class SampledGaussian(Event, sparse=True):
    """One round: users sampled, a query on them, Gaussian noise of `noise_multiplier` times its sensitivity.

    The sensitivity is always the add-or-remove one, whatever `relation` the round is accounted under.
    """

    kind = "sampled-gaussian"
    scalable = True

    noise_multiplier: float
    sampling: str
    user_rate: float
    cohort: int | None = None
    users: int | None = None

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        if self.sampling not in SAMPLINGS:
            raise SettingError(
                f"{{sampling!r}} must be one of {', '.join(SAMPLINGS)}" + did_you_mean(str(self.sampling), SAMPLINGS),
                sampling=self.sampling,
            )
        _check_rate(user_rate=self.user_rate)
        if self.sampling == "fixed":
            if self.cohort is None or self.users is None or self.cohort < 1:
                raise SottoError("sampling='fixed' needs cohort and users: their numbers decide what a round charges")
            if not math.isclose(self.user_rate, self.cohort / self.users, rel_tol=1e-9):
                raise SettingError(
                    f"{{user_rate:g}} must be cohort/users = {self.cohort / self.users:g} when sampling='fixed'",
                    user_rate=self.user_rate,
                )

    @property
    def relation(self) -> str:
        return ADDED if self.sampling == "poisson" else REPLACED

    def gaussians(self) -> tuple[SampledGaussian, ...]:
        return (self,)


@dataclass(frozen=True)
class SampledExamples(Event):
    """One round on examples, each sampled by a coin of its own: noise of `noise_multiplier` times the most that one
    *example* moves the query. A user has at most `examples_per_user` of them, and all are protected together.

    It also charges a round across silos, where one person may be a user of m of them. Each silo draws its own users and
    clips to 1/m of S: the person's updates join as a user's m examples do, each with m times the noise.
    """

    kind = "sampled-examples"
    scalable = True
    accountants = ("pld",)
    relation = ADDED  # of a user, with all examples

    noise_multiplier: float
    example_rate: float
    examples_per_user: int

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_rate(example_rate=self.example_rate)
        if not 1 <= self.examples_per_user <= MOST_EXAMPLES or self.examples_per_user != int(self.examples_per_user):
            raise SettingError(
                f"{{examples_per_user}} must be a whole number from 1 to {MOST_EXAMPLES}",
                examples_per_user=self.examples_per_user,
            )

    @property
    def user_rate(self) -> float:
        """The chance that a user joins a round, with one example or more."""
        if self.example_rate == 1:
            return 1.0
        return -math.expm1(self.examples_per_user * math.log1p(-self.example_rate))

    def gaussians(self) -> tuple[SampledGaussian | SampledExamples, ...]:
        """Itself, or a round of sampled users where each has one example."""
        one = SampledGaussian(self.noise_multiplier, "poisson", self.example_rate)
        return (one,) if self.examples_per_user == 1 else (self,)


@dataclass(frozen=True)
class BestOfRuns(Event):
    """The best of a random, secret number of private runs, each of which costs what `run` costs.

    The number of runs is drawn from `distribution` with this mean. By RDP alone.
    """

    kind = "best-of-runs"
    accountants = ("rdp",)

    expected_runs: float
    distribution: str
    run: tuple[tuple[Event, int], ...]

    def __post_init__(self) -> None:
        selection.check(self.expected_runs, self.distribution)
        if not self.run:
            raise SottoError("the best of runs that cost nothing has no event; give the charges of one run")
        for event, count in self.run:
            if count < 1:
                raise SottoError(f"one of the runs is charged {count} times for {event.kind}; give a number above 0")
            if "rdp" not in event.accountants or isinstance(event, BestOfRuns) or event.giveaway:
                kind = event.kind.replace("-", " ")
                raise SottoError(f"choosing among runs has no accounting for {kind}; leave it out of the choice")

    @property
    def noise_multiplier(self) -> float:
        return min(event.noise_multiplier for event, _ in self.run)

    @property
    def relation(self) -> str:
        relations = {event.relation for event, _ in self.run}
        return REPLACED if REPLACED in relations else ADDED

    def gaussians(self) -> tuple[SampledGaussian, ...]:
        """None: no rounds cost as much, and RDP knows what it costs."""
        return ()


Sampled = SampledGaussian | SampledExamples  # rounds that an accountant composes


@dataclass(frozen=True)
class CorrelatedGaussian(Event):
    """All rounds of a run whose noise is correlated: C x + m, where every m_t has `noise_multiplier` times the
    sensitivity of C for the rounds that one user may join.

    The rounds after the first are `Covered`. A round may depend on all rounds before it (Denisov et al. 2022).
    """

    kind = "correlated-gaussian"
    scalable = True
    relation = ADDED  # a user's rounds do not depend on other users; replacing one moves the run twice as far

    noise_multiplier: float
    matrix: StrategyMatrix
    participation: Participation

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """How far one user moves the run, in units of what one user moves one round."""
        return self.matrix.sensitivity(self.participation)

    @property
    def rho(self) -> float:
        """Of zero-concentrated differential privacy, for one user added or removed."""
        return math.inf if self.noise_multiplier == 0 else 0.5 / self.noise_multiplier**2

    def to_json(self) -> Json:
        own = {"kind": self.kind, "noise_multiplier": self.noise_multiplier, "sensitivity": self.sensitivity}
        return {**own, **self.participation.to_json(), **self.matrix.to_json()}

    @classmethod
    def _of_fields(cls, values: Json) -> Event:
        noise_multiplier, claimed = (from_json_number(values[name]) for name in ("noise_multiplier", "sensitivity"))
        event = cls(noise_multiplier, matrix_from_json(values), Participation.from_json(values))
        if not math.isclose(claimed, event.sensitivity, rel_tol=1e-6):
            raise SottoError(
                f"an event of correlated noise claims a sensitivity of {claimed:.7g}, and its strategy matrix has "
                f"{event.sensitivity:.7g}; the ledger was changed"
            )
        return event


@dataclass(frozen=True)
class GaussianRelease(Event):
    """Numbers over all users of a group with Gaussian noise, of `noise_multiplier` times their L2 sensitivity under
    add-or-remove: a private evaluation, or a histogram.

    Of a histogram, counts above a threshold are shown, under their names; `giveaway` is the chance that a name which
    one user alone brought in is shown.
    """

    kind = "gaussian-release"
    relation = ADDED  # on its own; together with rounds that replace a user it is charged as they are

    noise_multiplier: float
    giveaway: float = 0.0  # pyrefly: ignore
    people: str = TRAINED  # pyrefly: ignore

    def __post_init__(self) -> None:
        if self.noise_multiplier == 0 or self.people not in (TRAINED, HELD_OUT):
            raise SottoError(f"a release must have a noise multiplier above 0, and people {TRAINED} or {HELD_OUT}")
        _check_noise(self.noise_multiplier)
        if not 0 <= self.giveaway < 1:
            raise SettingError("{giveaway} must be in [0, 1): a chance", giveaway=self.giveaway)


@dataclass(frozen=True)
class Covered(Event):
    """A round that earlier charges cover: its users have all joined less often than is charged, or a charge for the
    whole run was made.
    """

    kind = "covered"

    noise_multiplier: float
    relation: str = REPLACED  # of the charge that covers it

    def __post_init__(self) -> None:
        if self.relation not in (ADDED, REPLACED):
            raise SettingError(f"{{relation!r}} must be {ADDED} or {REPLACED}", relation=self.relation)

    def gaussians(self) -> tuple[SampledGaussian, ...]:
        return ()


@dataclass(frozen=True)
class NonPrivate(Event):
    """A release without protection: ε is infinite from here on."""

    kind = "non-private"
    noise_multiplier: ClassVar[float] = 0.0  # pyrefly: ignore

    def gaussians(self) -> tuple[SampledGaussian, ...]:
        return ()


_KNOWN = (
    SampledGaussian,
    SampledExamples,
    CorrelatedGaussian,
    GaussianRelease,
    BestOfRuns,
    Covered,
    NonPrivate,
)
KINDS: dict[str, type[Event]] = {event.kind: event for event in _KNOWN}  # the events that a ledger may hold


def _check_noise(noise_multiplier: float) -> None:
    if noise_multiplier != 0 and not _LEAST_NOISE <= noise_multiplier <= 1 / _LEAST_NOISE:  # NaN is none
        raise SettingError(
            f"{{noise_multiplier}} must be 0 (no noise, no privacy), or from {_LEAST_NOISE:g} to {1 / _LEAST_NOISE:g}, "
            "often 0.5 to 5",
            noise_multiplier=noise_multiplier,
        )


def _check_rate(**rate: float) -> None:
    """Of one setting."""
    ((name, value),) = rate.items()
    if not 0 < value <= 1:
        raise SettingError(f"{{{name}:g}} must be in (0, 1]; it is the chance to join a round", **rate)
