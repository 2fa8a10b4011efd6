"""How a server reaches its devices, before a network is involved."""

from __future__ import annotations

import pytest

from sottovoce.federation.transport import Serving
from sottovoce_evidence.errors import SottoError


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_round_waits_for_some_time(seconds):
    with pytest.raises(SottoError, match="must be above 0"):
        Serving(seconds=seconds)
    assert Serving(seconds=0.1).seconds == 0.1


def test_a_round_needs_a_device():
    with pytest.raises(SottoError, match="--at-least 0 must be 1 or more"):
        Serving(at_least=0)


def test_status_lines_go_nowhere_unless_they_are_asked_for():
    lines = []
    Serving().notify("waiting")
    Serving(notify=lines.append).notify("waiting")
    assert lines == ["waiting"]
