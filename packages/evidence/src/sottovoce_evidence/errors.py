"""Errors for people: each says the value, what is allowed, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches


class SottoError(Exception):
    """Something a person can put right: bad input, a bad combination, a damaged file.

    The command line prints it as one line and exits with status 2.
    """


class BudgetExhausted(SottoError):
    """The next round would pass the ε budget."""


class InUse(SottoError):
    """Another process works on it."""


class DamagedRun(SottoError):
    """What is on disk contradicts itself, so the privacy spent is not known.

    `what` is what was found, without what its owner may do about it (`then`): a reader of a copy does something else.
    """

    def __init__(self, what: str, then: str = "") -> None:
        super().__init__(f"{what}; {then}" if then else what)
        self.what = what


class LostProcess(SottoError):
    """Another process of the same run is gone. No input was wrong: the command line exits with status 1."""


class SettingError(SottoError):
    """A setting has a value that cannot be used. The error knows the settings that it names.

    The template names them in braces: `{cohort}` is the setting with its value, `{cohort.name}` its name alone, and
    `{}` another value. As a text settings are written as in Python; the command line asks for its options instead.

    >>> error = SettingError("{cohort} must be 1 or more; raise {cohort.name}", cohort=0)
    >>> str(error), error.text({"cohort": "--cohort"})
    ('cohort=0 must be 1 or more; raise cohort', '--cohort 0 must be 1 or more; raise --cohort')
    """

    def __init__(self, template: str, *values: object, **settings: object) -> None:
        self.template, self.values, self.settings = template, values, settings
        super().__init__(self.text({}))

    def text(self, options: Mapping[str, str]) -> str:
        """The sentence with options in place of the settings that have one."""
        named = {name: _Setting(name, value, options.get(name)) for name, value in self.settings.items()}
        return self.template.format(*self.values, **named)


@dataclass(frozen=True, repr=False)
class _Setting:
    python_name: str
    value: object
    option: str | None

    @property
    def name(self) -> str:
        return self.option or self.python_name

    def __format__(self, spec: str) -> str:
        shown = short_exponent(format(self.value, spec))
        return f"{self.option} {shown}" if self.option else f"{self.python_name}={shown}"

    def __repr__(self) -> str:
        return format(_Setting(self.python_name, repr(self.value), self.option), "")


def printable(text: str) -> str:
    """A line for a terminal, with escapes for all that moves its cursor or cannot be shown.

    Names of files, values and columns are somebody's choice, and a sign of control in them would print another line.

    >>> printable("a\x1b[2Kb")
    'a\\x1b[2Kb'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def plain_number(value: float) -> str:
    """A number as a person writes it.

    >>> plain_number(1e-5), plain_number(0.25), plain_number(3e7)
    ('1e-5', '0.25', '3e7')
    """
    return short_exponent(f"{value:g}")


def plural(count: float, one: str, more: str = "") -> str:
    """The word for a count: `one` for 1, else `more`, by default `one` with an s.

    >>> f"1 {plural(1, 'user')}, 20 {plural(20, 'user')}, 0 {plural(0, 'person', 'people')}"
    '1 user, 20 users, 0 people'
    """
    return one if count == 1 else more or f"{one}s"


def count_of(count: int, one: str, more: str = "") -> str:
    """A count with its word.

    >>> count_of(1, "user"), count_of(4000, "user"), count_of(1, "round is", "rounds are")
    ('1 user', '4,000 users', '1 round is')
    """
    return f"{count:,} {plural(count, one, more)}"


def short_exponent(number: str) -> str:
    """1e-5 for 1e-05."""
    return re.sub(r"(?<=\de)(?:\+0?|(-)0)(?=\d)", r"\1", number)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'cohort'?"`, or nothing when no allowed word is near.

    >>> did_you_mean("cohrot", ["cohort", "clip_norm"])
    "; did you mean 'cohort'?"
    """
    near = get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
