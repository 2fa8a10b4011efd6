"""Public factors that change with the round: of the noise, the clip norm or the server's learning rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from sottovoce_evidence.errors import SottoError


@dataclass(frozen=True)
class Schedule:
    """Factors from given rounds on, chosen before training."""

    points: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def __post_init__(self) -> None:
        rounds = [number for number, _ in self.points]
        if not rounds or rounds[0] != 1 or any(number != int(number) for number in rounds):
            raise SottoError(f"a schedule {list(self.points)} must begin at round 1: [[1, 1.0], [1000, 0.5]]")
        if any(later <= earlier for earlier, later in pairwise(rounds)):
            raise SottoError(f"the rounds {rounds} of a schedule must increase: each pair is [round, factor]")
        for number, factor in self.points:
            if not (math.isfinite(factor) and factor > 0):
                raise SottoError(f"the factor {factor} at round {number:g} of a schedule must be above 0")

    def __call__(self, round_number: int) -> float:
        """The factor of a round, from 1 on."""
        return self.points[bisect_right(self.points, (round_number, math.inf)) - 1][1]

    def stretches(self, rounds: int) -> list[tuple[float, int]]:
        """The factors of rounds 1 to `rounds` in order, each with its number of rounds."""
        ends = [min(first - 1, rounds) for first, _ in self.points[1:]] + [rounds]
        lengths = [end - start for start, end in pairwise([0, *ends])]
        return [(factor, length) for (_, factor), length in zip(self.points, lengths, strict=True) if length]

    @property
    def constant(self) -> bool:
        return len({factor for _, factor in self.points}) == 1

    @property
    def last_change(self) -> int:
        """The round after which nothing changes."""
        return int(self.points[-1][0])


CONSTANT = Schedule()


def build_schedule(points: tuple[tuple[float, ...], ...]) -> Schedule:
    """From pairs [round, factor], as a recipe has them; none at all is constant."""
    if not points:
        return CONSTANT
    if any(len(point) != 2 for point in points):
        raise SottoError(f"{[list(point) for point in points]} must be pairs [round, factor]: [[1, 1.0], [1000, 0.5]]")
    whole = tuple((int(number) if number == int(number) else number, factor) for number, factor in points)
    return Schedule(whole)  # pyrefly: ignore
