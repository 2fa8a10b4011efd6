"""How long the rest of a run takes: its rounds, and its evaluations on held-out users."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean

from jax import monitoring

from sottovoce_evidence.recipe import Run

_COMPILING = "/jax/core/compile/"
_compiled = 0.0  # seconds that this process has spent on it


def _count(event: str, duration_secs: float, **_facts: str | int) -> None:
    global _compiled
    if event.startswith(_COMPILING):
        _compiled += duration_secs


monitoring.register_event_duration_secs_listener(_count)


def evaluations(settings: Run, done: int = 0, planned: int | None = None) -> int:
    """How many evaluations come after round `done`, up to round `planned`: every few rounds, and after the last."""
    every = settings.evaluate_every
    planned = settings.rounds if planned is None else min(planned, settings.rounds)
    if not every or done >= planned:
        return 0
    return planned // every - done // every + (planned % every > 0)


@dataclass(frozen=True)
class Pace:
    """Seconds of a round and of an evaluation. None: not measured."""

    round: float | None = None
    evaluation: float = 0.0

    def seconds(self, rounds: int, evaluations: int) -> float | None:
        return None if self.round is None else rounds * self.round + evaluations * self.evaluation


NOT_TIMED = Pace()


class Clock:
    """The time left, by all that this process did; before its first round, by the pace that is given.

    What is compiled is compiled once, and is not counted. The budget may end a run before all rounds of its recipe:
    `planned` is the last one then.
    """

    def __init__(self, settings: Run, done: int, pace: Pace, planned: int | None = None):
        self._settings, self._done, self._pace = settings, done, pace
        self._planned = settings.rounds if planned is None else planned
        self._rounds: list[float] = []
        self._evaluations: list[float] = []
        self._before, self._compiled = time.perf_counter(), _compiled

    def round_done(self) -> None:
        self._done += 1
        self._rounds.append(self._lap())

    def evaluation_done(self) -> None:
        self._evaluations.append(self._lap())

    def _lap(self) -> float:
        now, compiled = time.perf_counter(), _compiled
        seconds = max(now - self._before - (compiled - self._compiled), 0.0)
        self._before, self._compiled = now, compiled
        return seconds

    @property
    def seconds_left(self) -> float | None:
        a_round = fmean(self._rounds) if self._rounds else self._pace.round
        an_evaluation = fmean(self._evaluations) if self._evaluations else self._pace.evaluation
        left = max(self._planned - self._done, 0)
        return Pace(a_round, an_evaluation).seconds(left, evaluations(self._settings, self._done, self._planned))
