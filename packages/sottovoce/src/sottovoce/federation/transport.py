"""The seam to the network: a transport carries messages to devices and brings their answers back.

A transport deals with lost devices and knows nothing of sums. An aggregation says which device is asked what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sottovoce_evidence.errors import SottoError

log = logging.getLogger("sottovoce.rounds")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Serving:
    """How a server reaches its devices."""

    seconds: float = 120.0  # to wait for answers in a round
    at_least: int = 1  # devices that must be connected before a round begins
    bind: str | None = None  # the address to listen on, if it is not the one that devices know
    state: Path | None = None  # a folder in memory for the transport's state, which then survives its end
    notify: Callable[[str], None] = lambda text: None  # gets status lines for the owner of the server

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise SottoError(f"--seconds {self.seconds:g} must be above 0; it is how long a round waits for devices")
        if self.at_least < 1:
            raise SottoError(f"--at-least {self.at_least} must be 1 or more; a round without devices is only noise")


@dataclass(frozen=True)
class Exchange:
    """Messages to devices, and how long and for how many bytes to wait."""

    name: str  # for logs and errors: "round 3"
    messages: Mapping[str, bytes]  # by device; the same bytes object for all who get the same
    seconds: float  # to wait for answers
    max_answer_bytes: int  # a transport need not accept a longer answer
    begins: bool = True  # a round: a transport may wait for devices first; later phases go on with those that are left
    urgent: bool = False  # short messages to devices that are in the middle of a round, and wait for them
    say: Say = log.warning  # takes what is said of devices: it is shown once the round is committed


class Transport(Protocol):
    """Carries messages between the server and the devices on the roster."""

    def here(self) -> Collection[str]:
        """The devices that are connected now. A transport may wait for devices first."""

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        """Send the messages. Give the devices' names and answers, as they come.

        The iterator ends when every device that was reached has answered or is lost, or when time is up. A device that
        loses its connection may come back, and then gets the same message again. A message is withdrawn when its device
        was waited for in vain.

        Guarantee: an answer comes under the name of the device that sent it. A device answers at most once.
        """
