"""What a round over devices leaves for its owner."""

from __future__ import annotations

import numpy as np

from sottovoce.federation.aggregation.phases import DeviceSum


def test_the_diagnostics_of_a_round_name_its_sizes():
    summed = DeviceSum([], np.float64(1.5), np.zeros(1), 2, {"joined": 2, "away": 1}, (10, 20))
    expected = {"users": 2, "weight": 1.5, "answers": {"joined": 2, "away": 1}}
    assert summed.diagnostics() == {**expected, "task_bytes": 10, "answer_bytes": 20}
    assert summed._replace(frozen_bytes=30).diagnostics()["frozen_bytes"] == 30
