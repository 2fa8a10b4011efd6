"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.options import ALONE, Processes
from sottovoce_evidence.errors import SottoError


def test_one_process_joins_no_group():
    with ALONE.join() as group:
        assert group is None


@pytest.mark.parametrize("given", [{"processes": 2}, {"process_id": 0}, {"secret": Path("secret")}], ids=str)
def test_processes_need_a_place_to_meet(given):
    with pytest.raises(SottoError, match="need --coordinator"):
        Processes(**given).join()
