"""The server's own count of whom it asked for which round of a run, where it is bounded how often users join.

Devices keep their own (`limits.Participation`), and that is what the guarantee rests on. The users of a silo come at
times that follow from their names, so a silo is asked in every round, and not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sottovoce.files import make_folder, sync_folder
from sottovoce.runs.hash_chain import Chain
from sottovoce_evidence.accounting.matrices import Participation
from sottovoce_evidence.errors import DamagedRun


class Joined:
    """Which devices of one user were asked for which rounds. It is on disk before they are asked.

    Guarantee: a device is asked for at most `participations` rounds, `min_separation` apart or more. What it answers
    changes nothing: that may depend on its user, and others are drawn by this count.
    """

    def __init__(self, path: Path, allowed: Participation):
        self._allowed = allowed
        self._asked: dict[int, tuple[str, ...]] = {}  # devices, by round
        self._rounds: dict[str, set[int]] = {}  # by device
        make_folder(path.parent, 0o700)
        self._new = not path.exists()
        self._chain = Chain(path, private=True) if self._new else Chain.read(path, repair=True, private=True)
        for number, line in enumerate(self._chain.lines, 1):
            try:
                self._count(int(line["round"]), [str(name) for name in line["asked"]])
            except (KeyError, TypeError, ValueError):
                raise DamagedRun(f"line {number} of {path} is damaged; restore the file from a backup") from None

    def is_free(self, device: str, round_number: int) -> bool:
        """May the device be asked for this round?"""
        rounds, allowed = self._rounds.get(device, set()), self._allowed
        apart = all(abs(round_number - number) >= allowed.min_separation for number in rounds)
        return apart and len(rounds) < allowed.participations and round_number <= allowed.rounds

    def asked(self, round_number: int) -> tuple[str, ...] | None:
        """The devices that were asked for a round; None if it was not begun. A round that is done again asks them."""
        return self._asked.get(round_number)

    def note(self, round_number: int, asked: Sequence[str]) -> None:
        """Keep who is asked."""
        self._chain.append({"round": round_number, "asked": list(asked)})
        if self._new:  # the folder may be new too, of a process that was killed before it flushed the name
            sync_folder(self._chain.path.parent)
            sync_folder(self._chain.path.parent.parent)
            self._new = False
        self._count(round_number, asked)

    def patterns(self) -> list[tuple[int, ...]]:
        """The different sets of rounds that devices were asked for."""
        return sorted({tuple(sorted(rounds)) for rounds in self._rounds.values()})

    def _count(self, round_number: int, asked: Sequence[str]) -> None:
        self._asked[round_number] = tuple(asked)
        for device in asked:
            self._rounds.setdefault(device, set()).add(round_number)
