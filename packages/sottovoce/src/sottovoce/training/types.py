"""What a round takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.update import UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel, join, split
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.training.server import Server
from sottovoce_evidence.accounting import Event


@dataclass(frozen=True)
class Algorithm:
    """The public half of a round: what is done to any users."""

    mechanism: Mechanism
    user_update: UserUpdate
    server: Server
    weight_cap: float = 1.0
    frozen: Any = field(default=None, compare=False, repr=False)  # the part of the model that is not trained

    def model(self, params: Any) -> LanguageModel:
        """The whole model of these parameters."""
        return join(params, self.frozen)

    def with_frozen_of(self, model: LanguageModel) -> Algorithm:
        """The same, for the frozen part of this model."""
        return replace(self, frozen=split(model)[1])

    def __post_init__(self) -> None:
        if self.user_update.clipping != self.mechanism.clipping:
            raise ValueError("users must clip as the mechanism does: its sensitivity depends on it")


class Task(NamedTuple):
    """What a round asks of its cohort. Cohort and key are secret."""

    params: Any  # θ, as it is sent
    cohort: np.ndarray  # rows of the store
    clip_norms: np.ndarray  # S, public
    key: PRNGKeyArray  # of the users' own randomness


class CohortTotals(Protocol):
    """The sums over a cohort that a round needs: Σ w_k Δ_k, Σ w_k and Σ bits, in float64."""

    @property
    def total(self) -> Any: ...
    @property
    def weight(self) -> Any: ...
    @property
    def bits(self) -> Any: ...


class RoundKeys(Protocol):
    """The secrets of one round, up to its sum."""

    @property
    def sampling(self) -> bytes: ...
    @property
    def local(self) -> bytes: ...


class Payment(Protocol):
    """The payment of one round. `runs.payments` has the one that charges."""

    @property
    def keys(self) -> RoundKeys: ...
    def ask(self) -> bool: ...  # notes that devices are asked for a masked round; False if they were before
    def charge(self, event: Event) -> bytes: ...  # queues the line of the round; the key of its noise
    def once_committed(self, show: Callable[[], None]) -> None: ...  # shows something of the round, then


class Payments(Protocol):
    def begin(self, round_number: int) -> Payment: ...


class RoundResult(Protocol):
    """Figures of a round. Private: for diagnostics only."""

    @property
    def users(self) -> int: ...

    def diagnostics(self) -> dict[str, Any]: ...


class CohortSum(NamedTuple):
    """Σ w_k Δ_k and Σ w_k, in float64, and figures of each user (private, for diagnostics)."""

    total: Any
    weight: Any
    bits: Any  # over users, +1/2 for every part of an update that was not clipped and -1/2 for one that was
    results: list[UserResult]  # of each block of users, without their updates; still on the device
    places: list[np.ndarray]  # of these users in the cohort

    @property
    def users(self) -> int:
        return sum(map(len, self.places))

    @property
    def norms(self) -> np.ndarray:
        return self._of_users([result.norm for result in self.results])

    @property
    def clipped(self) -> np.ndarray:
        return self._of_users([np.any(result.clipped, axis=-1) for result in self.results]).astype(bool)

    @property
    def losses(self) -> np.ndarray:
        return self._of_users([result.loss for result in self.results])

    def diagnostics(self) -> dict[str, Any]:
        """Exact figures of the cohort: private."""
        users, norms, losses = self.users, self.norms, self.losses
        finite, losses = norms[np.isfinite(norms)], losses[np.isfinite(losses)]
        return {
            "users": users,
            "weight": float(self.weight),
            "not_finite": users - len(finite),
            "clipped_share": float(np.mean(self.clipped)) if users else None,
            "norm_quantiles": [float(q) for q in np.quantile(finite, [0.1, 0.5, 0.9])] if len(finite) else None,
            "loss": float(np.mean(losses)) if len(losses) else None,
        }

    def _of_users(self, columns: list[Any]) -> np.ndarray:
        """One column for all users in their order. Reading it waits for the device."""
        if not columns:
            return np.zeros(0)
        read = [np.ravel(column)[: len(places)] for column, places in zip(columns, self.places, strict=True)]
        return np.concatenate(read)[np.argsort(np.concatenate(self.places))]


SumUpdates = Callable[[Algorithm, Task, Store], CohortSum]


class RoundTrace(NamedTuple):
    """All of a round, for an audit. Only the parameters and what was noised are not private."""

    round: int
    task: Task
    summed: CohortSum
    noised: Estimate


RoundObserver = Callable[[RoundTrace], None]
