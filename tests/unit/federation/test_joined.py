"""The server's count of who joined, and what it refuses."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from sottovoce.accounting.matrices import Participation
from sottovoce.errors import DamagedRun
from sottovoce.federation.joined import Joined
from sottovoce.federation.messages import Code, Contribution, Refused

REGISTERED = {"phone": 1, "tablet": 1, "silo": 4}


def make(tmp_path) -> Joined:
    return Joined(tmp_path / "joined" / "spring.jsonl", Participation(30, 5, 3), REGISTERED)


def answer(before: tuple[int, int] | None, users: int = 1) -> Contribution:
    return Contribution("task", users, 0, np.zeros(1, int), [], before)


def code_of(joined: Joined, device: str, before: tuple[int, int] | None, number: int, users: int = 1) -> Code | None:
    try:
        joined.check(device, answer(before, users), number)
    except Refused as refused:
        return refused.code
    return None


def test_a_device_is_free_again_after_the_separation_until_it_joined_as_often_as_allowed(tmp_path):
    joined = make(tmp_path)
    for number, count in ((2, 1), (7, 2), (12, 3)):
        assert joined.is_free("phone", number)
        joined.note(number, {"phone": 1})
        joined = make(tmp_path)  # it is on disk
        free = [later for later in range(1, 31) if joined.is_free("phone", later)]
        assert free == ([] if count == 3 else [n for n in range(1, 31) if n < 2 - 4 or n > number + 4])
        assert joined.is_free("tablet", number)
    assert not joined.is_free("tablet", 31)  # beyond the planned rounds
    assert stat.S_IMODE((tmp_path / "joined" / "spring.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("before", "number", "code"),
    [
        ((2, 1), 7, None),
        ((2, 1), 6, Code.EARLY),  # the server knows it too
        ((3, 2), 7, Code.EARLY),  # it answered a round whose answer was lost, and says so
        ((2, 2), 7, None),
        ((2, 3), 7, Code.EARLY),  # as often as allowed
        ((0, 0), 7, Code.HISTORY),  # a device that lost its record
        ((1, 1), 7, Code.HISTORY),
        (None, 7, Code.MALFORMED),
        ((0, 1), 7, Code.MALFORMED),
        ((8, 1), 7, Code.MALFORMED),
        ((-1, -1), 7, Code.MALFORMED),
    ],
)
def test_an_answer_that_is_early_or_contradicts_the_count_is_refused(tmp_path, before, number, code):
    joined = make(tmp_path)
    joined.note(2, {"phone": 1})
    assert code_of(joined, "phone", before, number) == code


def test_a_silo_has_no_more_users_than_are_registered_within_the_separation(tmp_path):
    joined = make(tmp_path)
    joined.note(1, {"silo": 3})
    assert code_of(joined, "silo", (0, 0), 2, users=1) is None
    assert code_of(joined, "silo", (0, 0), 2, users=2) == Code.EARLY
    assert code_of(joined, "silo", (1, 1), 6, users=4) is None
    for number in (6, 11):
        joined.note(number, {"silo": 4})
    assert code_of(joined, "silo", (6, 2), 16, users=1) is None
    assert code_of(joined, "silo", (6, 2), 16, users=2) == Code.EARLY  # 4 users join 12 times in all


def test_the_rounds_of_users_are_known_where_no_silo_joined(tmp_path):
    joined = make(tmp_path)
    assert joined.patterns() == []
    joined.note(1, {"phone": 1, "tablet": 1})
    joined.note(6, {"tablet": 1})
    assert joined.patterns() == [(1,), (1, 6)]
    joined.note(7, {"silo": 2})
    assert joined.patterns() is None


def test_a_damaged_count_is_refused(tmp_path):
    make(tmp_path).note(1, {"phone": 1})
    (tmp_path / "joined" / "spring.jsonl").write_text('{"round": 1, "joined": 3}\n')
    (tmp_path / "joined" / "spring.jsonl.head").unlink(missing_ok=True)
    with pytest.raises(DamagedRun):
        make(tmp_path)
