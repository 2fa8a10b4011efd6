"""Results of audits for tests that look at a few of their figures: of the others a number is NaN, and a text empty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sottovoce.audit.results import CanariesResult, MembershipResult, RoundsResult, TailsResult
from sottovoce_evidence.files import Facts, as_json

F = TypeVar("F", bound=Facts)
_KINDS = {"rounds": RoundsResult, "tails": TailsResult, "canaries": CanariesResult, "membership": MembershipResult}


def made(kind: type[F], **figures: Any) -> F:
    """A result with these figures."""
    hints = get_type_hints(kind)
    return kind(**{each.name: figures.get(each.name, _blank(hints[each.name])) for each in fields(kind)})


def audit_files(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The contents of files of audits, by name, from some of their figures."""
    return {name: _whole(_KINDS[name], figures) for name, figures in files.items()}


def _blank(kind: Any) -> Any:
    if NoneType in get_args(kind):
        return None
    if get_origin(kind) is tuple:
        return ()
    return made(kind) if issubclass(kind, Facts) else {float: math.nan, int: 0, str: "", bool: False}[kind]


def _whole(kind: Any, value: Any) -> Any:
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else _whole(parts[0], value)
    if get_origin(kind) is tuple and isinstance(parts[0], type) and issubclass(parts[0], Facts):
        return [_whole(parts[0], item) for item in value]
    if not (isinstance(kind, type) and issubclass(kind, Facts)):
        return value
    hints = get_type_hints(kind)
    return {**as_json(made(kind)), **{name: _whole(hints[name], item) for name, item in value.items()}}
