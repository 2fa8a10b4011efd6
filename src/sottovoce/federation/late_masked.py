"""Late devices under masks: a device keeps its update, and masks it for the round that it enters.

The task names that round before anybody is drawn, as `late.py` has it. The device trains, says that it is ready, and
sends nothing else. When the round begins it gets the task that all others have, shows keys for it, and goes through the
phases with them: its masks and its noise are of that round alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sottovoce.federation.aggregation.masked import MaskedAggregator
from sottovoce.federation.aggregation.phases import JOINED, DeviceSum, Phase
from sottovoce.federation.late import Late
from sottovoce.federation.messages import Code, Enter, Nothing, Refused, read_answer

EXCHANGES = 6  # of a masked round with late devices


class LateMaskedRound:
    """A round of the masked aggregation with devices that may be late.

    Its first phase sends tasks and hears which late devices are ready, the second asks those to enter. The rest is a
    masked round. Guarantee: a device is in the sum by one vector, of users who were drawn for this round.
    """

    def __init__(self, aggregator: MaskedAggregator, late: Late, number: int, messages: Mapping[str, bytes]):
        """`messages` are for the devices that are asked now, `late.owed` says for which round each of them."""
        self._aggregator, self._late, self._number = aggregator, late, number
        self.messages, self.max_answer_bytes = messages, aggregator.first.max_answer_bytes
        aggregator.ask_again(device for device in messages if late.owed[device].due == number)
        self._slow = {device: owed.task for device, owed in late.expected(number).items() if device not in messages}
        self._ready = set(late.take_waiting(number))
        self.earlier = [device for device in self._slow if device not in self._ready]
        rounds = {device: late.owed[device].due - number for device in messages}
        self.later = {device: EXCHANGES * more for device, more in rounds.items() if more}

    def phases(self) -> Iterator[Phase]:
        yield self
        for device in self._ready:
            del self._late.owed[device]
        entering = {
            device: Enter(self._slow[device], self._aggregator.task).to_bytes() for device in sorted(self._ready)
        }
        yield _Beside(self._aggregator.entering(entering), self)
        for phase in self._aggregator.rest():
            yield _Beside(phase, self)

    def take(self, device: str, answer: bytes) -> str:
        owed = self._late.owed.get(device)
        if owed is None:
            return Code.AWAY.value  # its round is over
        if owed.due != self._number:
            self._late.keep(device, answer if len(answer) <= self.max_answer_bytes else b"", self._number)
            return Code.LATE.value
        if device in self._slow:
            return self._hear(device, answer)
        code = self._aggregator.first.take(device, answer)
        if code == JOINED:
            self._late.took(device, self._number)
        del self._late.owed[device]
        return code

    def _hear(self, device: str, answer: bytes) -> str:
        """A late device says that it is ready, or why it is not."""
        try:
            found = read_answer(answer)
        except Refused as refused:
            found = Nothing(refused.code)
        if found == Nothing(Code.LATE):
            self._late.took(device, self._number)
            self._ready.add(device)
            return Code.LATE.value
        del self._late.owed[device]
        return found.code.value if isinstance(found, Nothing) else Code.MALFORMED.value  # no sum leaves without masks

    def total(self) -> DeviceSum:
        found = self._aggregator.total()
        later = sum(owed.due > self._number for owed in self._late.owed.values())
        return found._replace(answers={**found.answers, Code.LATE.value: later}) if later else found


class _Beside:
    """A phase of a masked round, while devices that are not in it may say that they are ready for a later one."""

    def __init__(self, phase: Phase, late: LateMaskedRound):
        self._phase, self._late = phase, late
        self.messages, self.max_answer_bytes = phase.messages, phase.max_answer_bytes
        self.urgent = getattr(phase, "urgent", False)

    def take(self, device: str, answer: bytes) -> str:
        return (self._phase if device in self.messages else self._late).take(device, answer)
