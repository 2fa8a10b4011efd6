"""Every error says: the value, what is allowed, what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SottoError(Exception):
    """Something a person can put right: bad input, a bad combination, a damaged file.

    The command line prints it as one line and exits with status 2.
    """


class BudgetExhausted(SottoError):
    """The next round would pass the ε budget."""


class DamagedRun(SottoError):
    """What is on disk contradicts itself, so that the privacy spent cannot be told."""


class AnotherSum(Exception):
    """A round was paid for under this name with another sum: it must be played as another attempt."""


class LostProcess(SottoError):
    """Another process of the same run is gone. Nobody's input was wrong: the command line exits with status 1."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'cohort'?"`, or nothing when no allowed word is near.

    >>> did_you_mean("cohrot", ["cohort", "clip_norm"])
    "; did you mean 'cohort'?"
    """
    near = get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
