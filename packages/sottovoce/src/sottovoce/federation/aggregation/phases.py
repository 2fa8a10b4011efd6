"""An aggregation is a list of phases: each says what is asked of which device, and takes the answers.

A plain sum has one phase. Nothing here knows how messages travel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("sottovoce.rounds")
Say = Callable[[str], None]  # takes what is said of devices: it is shown once the round is committed
JOINED = "joined"  # how an answer counts that is in the sum; any other is a `Code`


class DeviceSum(NamedTuple):
    """Σ w_k Δ_k, Σ w_k and Σ bits over the devices that answered, and how they answered (private)."""

    total: Any
    weight: Any
    bits: Any
    users: int
    answers: Mapping[str, int]  # the number of devices by `JOINED` or `Code`
    sizes: tuple[int, int] = (0, 0)  # bytes of the task, and of all answers
    frozen_bytes: int = 0  # sent to devices that lacked the frozen part of the model
    # Of a masked sum that has the noise of devices. None: too few are left. It is zero then, without noise of devices.
    modulus: int | None = None

    def diagnostics(self) -> dict[str, object]:
        """Exact figures of the cohort: private."""
        sizes = {"task_bytes": self.sizes[0], "answer_bytes": self.sizes[1]}
        if self.frozen_bytes:
            sizes["frozen_bytes"] = self.frozen_bytes
        return {"users": self.users, "weight": float(self.weight), "answers": dict(self.answers), **sizes}


class Phase(Protocol):
    """One exchange of messages."""

    @property
    def messages(self) -> Mapping[str, bytes]:
        """The message to each device, by its name."""

    @property
    def max_answer_bytes(self) -> int:
        """The most bytes in an honest answer."""

    def take(self, device: str, answer: bytes) -> str:
        """Count an answer: "joined", or the code that says why it adds nothing. It never raises."""


class Aggregation(Protocol):
    """Phases, one after another, and the total that they give."""

    def phases(self) -> Iterator[Phase]:
        """The next phase is made when the one before it has its answers: it may depend on them."""

    def total(self) -> DeviceSum:
        """The sums, after the last phase."""


class TaskAggregation(Aggregation, Protocol):
    """An aggregation whose first phase sends the task. Devices that lack the frozen part are asked once more."""

    lacking: list[str]  # devices that lack the frozen part: they may answer once more

    @property
    def first(self) -> Phase:
        """The phase that sends the task."""

    def rest(self) -> Iterator[Phase]:
        """The phases after it."""

    def ask_again(self, devices: Iterable[str]) -> None:
        """The first phase, played again, asks these devices alone."""
