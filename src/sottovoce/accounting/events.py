"""What the accountant charges for: plain values that the ledger keeps, so that any accountant can judge them later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sottovoce.errors import SettingError, SottoError, did_you_mean

SAMPLINGS = ("poisson", "fixed")
ADDED, REPLACED = "add-or-remove-one-user", "replace-one-user"  # what may change between two populations


@dataclass(frozen=True)
class SampledGaussian:
    """One round: users sampled, a query on them, Gaussian noise of `noise_multiplier` times its sensitivity.

    The sensitivity is always the add-or-remove one, whatever `relation` the round is accounted under.
    """

    noise_multiplier: float
    sampling: str
    user_rate: float
    cohort: int | None = None
    users: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise SettingError(
                "{noise_multiplier} must be 0 (no noise, no privacy) or more; "
                "it is the noise over the sensitivity of the query, often 0.5 to 5",
                noise_multiplier=self.noise_multiplier,
            )
        if self.sampling not in SAMPLINGS:
            raise SettingError(
                f"{{sampling!r}} must be one of {', '.join(SAMPLINGS)}" + did_you_mean(str(self.sampling), SAMPLINGS),
                sampling=self.sampling,
            )
        _check_user_rate(self.user_rate)
        if self.sampling == "fixed":
            if self.cohort is None or self.users is None:
                raise SottoError("sampling='fixed' needs cohort and users: their numbers decide what a round charges")
            if not 1 <= self.cohort <= self.users:
                raise SettingError(
                    "{cohort} must be from 1 to {users}; lower the cohort", cohort=self.cohort, users=self.users
                )
            if not math.isclose(self.user_rate, self.cohort / self.users, rel_tol=1e-9):
                raise SettingError(
                    f"{{user_rate:g}} must be cohort/users = {self.cohort / self.users:g} when sampling='fixed'",
                    user_rate=self.user_rate,
                )

    @property
    def relation(self) -> str:
        """Which two populations the guarantee makes indistinguishable."""
        return ADDED if self.sampling == "poisson" else REPLACED

    def to_json(self) -> dict[str, Any]:
        return {"kind": "sampled-gaussian", **{k: v for k, v in asdict(self).items() if v is not None}}


@dataclass(frozen=True)
class ThresholdedHistogram:
    """Counts over all users with Gaussian noise, of which those above a threshold are shown, under their names.

    `noise_multiplier` is the noise over the L2 sensitivity of the counts under add-or-remove; `delta` is the chance
    that a name which one user alone brought in is shown.
    """

    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise SettingError(
                "{noise_multiplier} of a histogram must be above 0", noise_multiplier=self.noise_multiplier
            )
        if not 0 < self.delta < 1:
            raise SettingError("{delta} of a histogram must be in (0, 1)", delta=self.delta)

    @property
    def relation(self) -> str:
        """On its own. Beside rounds that replace a user it is charged as they are."""
        return ADDED

    def to_json(self) -> dict[str, Any]:
        return {"kind": "thresholded-histogram", **asdict(self)}


@dataclass(frozen=True)
class Covered:
    """A round of users in turn, none of whom has joined as often as is charged already: it costs nothing more.

    What is charged is how often any one user joins, and rounds of different people share one charge.
    """

    noise_multiplier: float

    @property
    def relation(self) -> str:
        return REPLACED

    def to_json(self) -> dict[str, Any]:
        return {"kind": "covered", **asdict(self)}


@dataclass(frozen=True)
class NonPrivate:
    """A release without protection: ε is infinite from here on."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "non-private"}


Event = SampledGaussian | ThresholdedHistogram | Covered | NonPrivate

_KINDS: dict[str, type[SampledGaussian] | type[ThresholdedHistogram] | type[Covered] | type[NonPrivate]] = {
    "sampled-gaussian": SampledGaussian,
    "thresholded-histogram": ThresholdedHistogram,
    "covered": Covered,
    "non-private": NonPrivate,
}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote."""
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise SottoError(
            f"event kind={kind!r} must be one of {', '.join(_KINDS)}; "
            f"was it written by a newer sottovoce? Its ε cannot be told by this one"
        )
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise SottoError(f"event {dict(data)} cannot be read: {error}") from error


def _check_user_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise SettingError(
            f"{{user_rate:g}} must be in (0, 1]; it is the chance that a user joins a round "
            f"(cohort {rate * 100:g} of 100 users?)",
            user_rate=rate,
        )
