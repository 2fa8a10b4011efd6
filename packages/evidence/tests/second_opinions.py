"""Losses of dp-accounting are worked out once: one takes it seconds, and the releases of tests share a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

_FOUND: dict[str, Any] = {}


def _once(work_out: Callable[..., Any]) -> Callable[..., Any]:
    def found(*given: Any, **named: Any) -> Any:
        key = repr((work_out.__name__, given, sorted(named.items())))
        if key not in _FOUND:
            _FOUND[key] = work_out(*given, **named)
        return _FOUND[key]

    found.__name__ = work_out.__name__
    return found


@pytest.fixture(scope="session", autouse=True)
def losses_once() -> Iterator[None]:
    """The library has no state: the same noise has the same distribution of losses. It is imported when it is asked."""
    from sottovoce_evidence.accounting import cross_check

    composed = cross_check._composed
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def remember() -> None:
            from dp_accounting.pld import privacy_loss_distribution as library

            for name in ("from_gaussian_mechanism", "from_mixture_gaussian_mechanism"):
                patch.setattr(library, name, _once(getattr(library, name)))

        def composed_once(*given: Any) -> float:
            remember()
            return composed(*given)

        patch.setattr(cross_check, "_composed", composed_once)
        yield
