"""Devices that need longer than a round: their answers enter a later one, at most `staleness` rounds later.

Which round an answer enters is decided before the device draws its users, and the draw is for that round. So a user is
drawn once for every round, with the chance that is charged. Were a late answer added to whatever round it meets, its
users would be in that round by two coins: by the one of the round that they missed, and by the one of the round itself.
An answer that is not there when its round ends is thrown away; the device then gets more time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sottovoce.federation.aggregation.phases import JOINED, DeviceSum, Phase
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, read_answer


@dataclass(frozen=True)
class Owed:
    """An answer that is on its way."""

    asked: int  # the round whose model the device trains
    due: int  # the round that the answer enters
    task: str  # the digest of the task


@dataclass
class Late:
    """Which round the answer of each device enters, and the answers that wait for theirs, in memory alone.

    Guarantee: a device is asked for a round at most once, and for one round after another: a draw for a later round
    does not decide whether an earlier one is joined. It is asked for nothing while an answer of it is on its way, or
    waits. So one contribution of a device is in a round, drawn for that round.
    """

    staleness: int
    rounds: int  # of the run: no answer enters a later one
    owed: dict[str, Owed] = field(default_factory=dict)
    _waits: dict[str, bytes] = field(default_factory=dict)  # answers that came before their round
    _lags: dict[str, int] = field(default_factory=dict)  # how many rounds each device needs more than one
    _last: dict[str, int] = field(default_factory=dict)  # the last round that each device was asked for

    def due(self, devices: Iterable[str], number: int) -> dict[str, int]:
        """For each of the devices that may be asked in this round, the round that its answer would enter.

        If nobody else is in this round, it waits for those who need least: it would be noise alone, and charged.
        """
        free = [device for device in devices if device not in self.owed]
        least = 0
        if not self.expected(number):
            least = min((self._lags.get(device, 0) for device in free if self._last.get(device, 0) < number), default=0)
        found = {}
        for device in free:
            # One round after another: a draw for a later round must not decide whether an earlier one is joined.
            due = max(number + max(self._lags.get(device, 0) - least, 0), self._last.get(device, 0) + 1)
            if due <= min(number + self.staleness, self.rounds):
                found[device] = due
        return found

    def ask(self, device: str, owed: Owed) -> None:
        """The device is asked."""
        self.owed[device], self._last[device] = owed, owed.due

    def expected(self, number: int) -> dict[str, Owed]:
        """What enters this round, by device: answers that wait or are on their way."""
        return {device: owed for device, owed in self.owed.items() if owed.due == number}

    def take_waiting(self, number: int) -> dict[str, bytes]:
        """The answers that came in earlier rounds and enter this one."""
        return {device: self._waits.pop(device) for device in self.expected(number) if device in self._waits}

    def keep(self, device: str, answer: bytes, number: int) -> None:
        """Keep an answer for its round. One without a contribution is not kept: nobody was drawn.

        Under masks the device keeps the contribution, and says that it does.
        """
        try:
            if not (isinstance(found := read_answer(answer), Contribution) or found == Nothing(Code.LATE)):
                raise Refused(Code.NOT_DRAWN)
        except Refused:
            del self.owed[device]
            return
        self._waits[device] = answer
        self.took(device, number)

    def took(self, device: str, number: int) -> None:
        """A contribution came in this round: that is how long the device needs."""
        self._lags[device] = number - self.owed[device].asked

    def end(self, number: int, here: Collection[str]) -> None:
        """A round ended. Devices that are connected, and whose answer did not come, get more time from now on."""
        for device in self.expected(number):
            if device in here:
                self._lags[device] = min(self._lags.get(device, 0) + 1, self.staleness)
            del self.owed[device]


class LateRound:
    """A round of the plain aggregation with devices that may be late. Its one phase takes all answers that come."""

    def __init__(self, aggregator: Aggregator, late: Late, number: int, messages: Mapping[str, bytes]):
        """`messages` are for the devices that are asked now, `late.owed` says for which round each of them."""
        self._aggregator, self._late, self._number = aggregator, late, number
        self.messages, self.max_answer_bytes = messages, aggregator.max_answer_bytes
        expected = late.expected(number)
        aggregator.expect({device: owed.task for device, owed in expected.items()})
        waiting = late.take_waiting(number)
        for device, answer in waiting.items():
            aggregator.take(device, answer)
            del late.owed[device]
        self.earlier = [device for device in expected if device not in messages and device not in waiting]
        rounds = {device: late.owed[device].due - number for device in messages}
        self.later = {device: more for device, more in rounds.items() if more}

    def phases(self) -> Iterator[Phase]:
        yield self

    def take(self, device: str, answer: bytes) -> str:
        owed = self._late.owed.get(device)
        if owed is None:
            return Code.AWAY.value  # its round is over
        if owed.due == self._number:
            code = self._aggregator.take(device, answer)
            if code == JOINED:
                self._late.took(device, self._number)
            del self._late.owed[device]
            return code
        self._late.keep(device, answer if len(answer) <= self.max_answer_bytes else b"", self._number)
        return Code.LATE.value

    def total(self) -> DeviceSum:
        found = self._aggregator.total()
        later = sum(owed.due > self._number for owed in self._late.owed.values())
        return found._replace(answers={**found.answers, Code.LATE.value: later}) if later else found
