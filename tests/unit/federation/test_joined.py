"""The server's count of whom it asked."""

from __future__ import annotations

import stat

import pytest

from power_cut import Disk
from sottovoce.federation.joined import Joined
from sottovoce_evidence.accounting.matrices import Participation
from sottovoce_evidence.errors import DamagedRun


def make(tmp_path) -> Joined:
    return Joined(tmp_path / "joined" / "spring.jsonl", Participation(30, 5, 3))


def test_a_device_is_free_again_after_the_separation_until_it_was_asked_as_often_as_allowed(tmp_path):
    joined = make(tmp_path)
    for number, count in ((2, 1), (7, 2), (12, 3)):
        assert joined.is_free("phone", number)
        joined.note(number, ["phone"])
        joined = make(tmp_path)  # it is on disk
        free = [later for later in range(1, 31) if joined.is_free("phone", later)]
        assert free == ([] if count == 3 else [n for n in range(1, 31) if n < 2 - 4 or n > number + 4])
        assert joined.is_free("tablet", number)
    assert not joined.is_free("tablet", 31)  # beyond the planned rounds
    assert stat.S_IMODE((tmp_path / "joined" / "spring.jsonl").stat().st_mode) == 0o600


def test_a_round_that_is_done_again_asks_the_same_devices(tmp_path):
    joined = make(tmp_path)
    assert joined.asked(2) is None
    joined.note(2, ["phone"])
    joined.note(3, [])
    for each in (joined, make(tmp_path)):
        assert (each.asked(2), each.asked(3)) == (("phone",), ())
        assert each.asked(4) is None
        assert not each.is_free("phone", 2)


def test_the_rounds_that_devices_were_asked_for_are_known(tmp_path):
    joined = make(tmp_path)
    assert joined.patterns() == []
    joined.note(1, ["phone", "tablet"])
    joined.note(6, ["tablet"])
    assert joined.patterns() == [(1,), (1, 6)]


def test_a_damaged_count_is_refused(tmp_path):
    make(tmp_path).note(1, ["phone"])
    (tmp_path / "joined" / "spring.jsonl").write_text('{"round": 1, "asked": 3}\n')
    (tmp_path / "joined" / "spring.jsonl.head").unlink(missing_ok=True)
    with pytest.raises(DamagedRun):
        make(tmp_path)


def test_who_was_asked_outlasts_a_power_cut_in_a_folder_whose_name_a_killed_process_did_not_flush(
    tmp_path, monkeypatch
):
    disk = Disk(tmp_path, monkeypatch)
    try:
        (tmp_path / "joined").mkdir()
        make(tmp_path).note(1, ["phone"])
        disk.cut()
        assert make(tmp_path).asked(1) == ("phone",)
    finally:
        disk.close()
