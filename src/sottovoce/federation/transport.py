"""The seam to the network: a transport carries messages to devices and brings their answers back.

A transport deals with lost peers and knows nothing of sums. An aggregation says which device is asked what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Exchange:
    """Messages to devices, and how long and for how many bytes to wait."""

    name: str  # for logs and errors: "round 3"
    messages: Mapping[str, bytes]  # by device; the same bytes object for all who get the same
    seconds: float  # to wait for answers
    max_answer_bytes: int  # a transport need not accept a longer answer


class Transport(Protocol):
    """Carries messages between the server and the devices on the roster."""

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        """Send the messages. Give the devices' names and answers, as they come.

        The iterator ends when every device that was reached has answered or is lost, or when time is up. A device that
        loses its connection may come back, and then gets the same message again.

        Guarantee: an answer comes under the name of the device that sent it; the transport vouches for that. A device
        answers at most once.
        """
