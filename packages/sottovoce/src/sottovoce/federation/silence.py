"""When a server stops: after rounds in a row to which no device added anything. Each is paid for, and only noise."""

from __future__ import annotations

from collections.abc import Mapping

from sottovoce.federation.aggregation.phases import JOINED
from sottovoce_evidence.errors import LostProcess, count_of

MOST_SILENT = 3  # rounds in a row


class Silence:
    """Counts the rounds of this process that nobody took part in, one after another.

    A device takes part if its answer counts, with updates or zeros: that depends on nobody's text. A round that was to
    ask nobody is not counted: so it falls by chance where cohorts are small. One that found nobody free is.
    """

    def __init__(self) -> None:
        self._rounds, self._last = 0, ""

    def check(self) -> None:
        """Stop before a round is paid for."""
        if self._rounds >= MOST_SILENT:
            said = f"no device took part in the last {count_of(self._rounds, 'round')} ({self._last})"
            raise LostProcess(f"{said}, and each was paid for: the server stops; look after the devices first")

    def note(self, answers: Mapping[str, int], wanted: bool) -> None:
        """Count a round, by the number of devices that answered so and so, and by whether any were to be asked."""
        if wanted:
            self._rounds = 0 if JOINED in answers else self._rounds + 1
            said = [f"{code}: {count}" for code, count in sorted(answers.items())]
            self._last = ", ".join(said) or "none was free to be asked"
