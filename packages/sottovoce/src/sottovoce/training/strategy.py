"""How a run trains: by Algorithm 1, or by one of its variants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sottovoce.data.store import Store
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce.training.types import Algorithm, CohortSum, Payment, Payments, RoundObserver, RoundResult, SumUpdates


class Work(NamedTuple):
    """The users of a run, how their updates are added up, and an observer of the rounds."""

    store: Store
    sum_updates: SumUpdates
    observe: RoundObserver | None = None


class Strategy(ABC):
    """What a round is. Algorithm 1 is one, and so is each of `variants`.

    A strategy of your own is a frozen dataclass, given to `train` and `resume` with a recipe in mode "none": nothing of
    what its rounds release is accounted for, so it promises nothing. `papers/popov2018` has two.
    """

    federated: ClassVar[bool] = True  # do devices send updates?
    layout: ClassVar[str | None] = None  # how users are laid out, if not in blocks

    def start(self, state: ServerState) -> ServerState:
        """The state before the first round. What it keeps from round to round goes into `state.kept`."""
        return state

    @abstractmethod
    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, RoundResult]:
        """One round."""

    def drawn(self, algorithm: Algorithm, store: Store, key: bytes, round_number: int) -> np.ndarray:
        """The rows of the users whom a round with this key of sampling draws."""
        return algorithm.mechanism.sampler.sample(store, key, round_number)


@dataclass(frozen=True)
class FederatedAveraging(Strategy):
    """Algorithm 1: every device trains the newest model, and the server averages what they send."""

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, CohortSum]:
        return play_round(algorithm, state, work.store, payment, work.sum_updates, work.observe)


def play_rounds(
    play: Callable[[ServerState, Payment], tuple[ServerState, RoundResult]],
    state: ServerState,
    last: int,
    payments: Payments,
) -> Iterator[tuple[ServerState, RoundResult]]:
    """The rounds that are left, up to and including `last`."""
    while state.round < last:
        state, result = play(state, payments.begin(state.round + 1))
        yield state, result
