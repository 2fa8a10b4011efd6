"""The server's own count of who joined which round of a run, where it is bounded how often and how close together.

Devices keep their own (`limits.Participation`), and that is what the guarantee rests on. The server asks only devices
that are free, and refuses an answer that is too early, or whose account of earlier rounds is not the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sottovoce.accounting.matrices import Participation
from sottovoce.errors import DamagedRun
from sottovoce.federation.messages import Code, Contribution, Refused
from sottovoce.files import make_folder, sync_folder
from sottovoce.runs.hash_chain import Chain


class Joined:
    """Which devices joined which rounds, with how many users. It is on disk before a round is released.

    Guarantee: a device of one user is counted at most `participations` times, in rounds that are `min_separation` apart
    or more. A silo never has more users than are registered in rounds closer than that.
    """

    def __init__(self, path: Path, allowed: Participation, registered: Mapping[str, int]):
        self.allowed, self._registered = allowed, registered
        self._rounds: dict[str, dict[int, int]] = {}  # users by round, by device
        make_folder(path.parent, 0o700)
        self._new = not path.exists()
        self._chain = Chain(path, private=True) if self._new else Chain.read(path, repair=True, private=True)
        for number, line in enumerate(self._chain.lines, 1):
            try:
                self._count(int(line["round"]), {str(name): int(users) for name, users in line["joined"].items()})
            except (AttributeError, KeyError, TypeError, ValueError):
                raise DamagedRun(f"line {number} of {path} is damaged; restore the file from a backup") from None

    def is_free(self, device: str, round_number: int) -> bool:
        """May a user of the device join this round, as far as the server knows?"""
        return self._room(device, round_number) > 0

    def check(self, device: str, answer: Contribution, round_number: int) -> None:
        """Refuse an answer that is too early, or that contradicts what was counted."""
        if answer.before is None:
            raise Refused(Code.MALFORMED)
        last, times = answer.before
        if not (0 <= last <= round_number and 0 <= times <= round_number and (last == 0) == (times == 0)):
            raise Refused(Code.MALFORMED)
        early = last > 0 and round_number - last < self.allowed.min_separation
        if early or times >= self.allowed.participations or answer.users > self._room(device, round_number):
            raise Refused(Code.EARLY)
        counted = self._rounds.get(device, {})
        if self._registered[device] == 1 and (last < max(counted, default=0) or times < len(counted)):
            raise Refused(Code.HISTORY)  # the device lost its record, or runs an old copy of it

    def note(self, round_number: int, joined: Mapping[str, int]) -> None:
        """Keep who is in the sum of a round."""
        self._chain.append({"round": round_number, "joined": dict(joined)})
        if self._new:
            sync_folder(self._chain.path.parent)
            self._new = False
        self._count(round_number, joined)

    def patterns(self) -> list[tuple[int, ...]] | None:
        """The different sets of rounds that users joined; None where a silo joined, whose users are not told apart."""
        if any(self._registered.get(device) != 1 for device in self._rounds):
            return None
        return sorted({tuple(sorted(rounds)) for rounds in self._rounds.values()})

    def _room(self, device: str, round_number: int) -> int:
        """How many users of the device may join this round, at most."""
        registered, counted = self._registered[device], self._rounds.get(device, {})
        near = [users for number, users in counted.items() if abs(round_number - number) < self.allowed.min_separation]
        left = registered * self.allowed.participations - sum(counted.values())
        return min(registered - sum(near), left) if round_number <= self.allowed.rounds else 0

    def _count(self, round_number: int, joined: Mapping[str, int]) -> None:
        for device, users in joined.items():
            rounds = self._rounds.setdefault(device, {})
            rounds[round_number] = rounds.get(round_number, 0) + users
