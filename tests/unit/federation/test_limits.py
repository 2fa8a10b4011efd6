"""Limits of a device's owner, and the record of who joined."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.messages import Code, Refused, Task
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian
from sottovoce_evidence.accounting.matrices import Participation as Allowed
from sottovoce_evidence.errors import DamagedRun, SottoError


def task(run: str = "spring", number: int = 1) -> Task:
    return Task("1", "f", "v", run, number, {}, np.ones(1), np.ones(2), [])


def test_limits_are_read_and_misspelt_ones_refused(tmp_path):
    Limits(clip_norm=3.0, rounds=7).save(tmp_path / "limits.toml")
    assert Limits.load(tmp_path / "limits.toml") == Limits(clip_norm=3.0, rounds=7)
    for text, what in (
        ("clip_nrom = 3", "did you mean 'clip_norm'"),
        ("rounds = -1", "not negative"),
        ("min_separation = 0", "a user joins a round at most once"),
        ("=", "cannot"),
    ):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(SottoError, match=what):
            Limits.load(tmp_path / "bad.toml")


def test_a_round_is_joined_once_and_by_the_same_users_when_it_is_asked_again(tmp_path):
    path, drawn = tmp_path / "joined.jsonl", np.array([1, 3])
    for _ in range(2):  # the second time after a restart
        participation = Participation(path)
        assert participation.join(task(), b"message", drawn, Limits()).tolist() == [1, 3]
        assert participation.join(task(), b"message", np.array([0]), Limits()).tolist() == [1, 3]
        with pytest.raises(Refused) as refused:
            participation.join(task(), b"another", drawn, Limits())
        assert refused.value.code == Code.TWICE
    assert participation.join(task(run="autumn"), b"autumn", drawn, Limits()).tolist() == [1, 3]
    assert participation.join(task(number=2), b"two", drawn, Limits(rounds=2)).tolist() == []
    assert participation.join(task(number=3), b"three", np.array([1]), Limits(min_separation=3)).tolist() == []
    assert participation.join(task(number=4), b"four", np.array([1]), Limits(min_separation=3)).tolist() == [1]


def test_a_run_that_bounds_participation_is_joined_no_more_than_that(tmp_path):
    """Whatever the server asks, in any order, and after a restart; limits of the owner can only be stricter."""
    path, allowed, one = tmp_path / "joined.jsonl", Allowed(30, 5, 3), np.array([0])

    def joins(number: int, limits: Limits | None = None, bound: Allowed | None = allowed) -> bool | Code:
        try:
            joined = Participation(path).join(task(number=number), b"%d" % number, one, limits or Limits(), bound)
        except Refused as refused:
            return refused.code
        return joined.tolist() == [0]

    assert joins(10) is True
    assert [joins(number) for number in (6, 11, 14)] == [False] * 3
    assert joins(15, Limits(min_separation=7)) is False
    assert joins(16) is True
    assert joins(31) == Code.LIMITS  # a round that was not planned
    # A server that changes its mind about what a user may do in the run.
    for other in (Allowed(30, 1, 3), Allowed(30, 5, 4), Allowed(40, 5, 3), None):
        assert joins(20, bound=other) == Code.LIMITS
    assert joins(5, Limits(rounds=2)) is False
    assert joins(4) is True
    assert [joins(number) for number in (21, 25, 30)] == [False] * 3
    # A task that was answered is answered again as it was, and is not counted twice.
    assert joins(10) is True
    assert joins(15) is False


def test_of_every_other_run_the_rounds_that_were_answered_count_up_to_what_a_user_may_join(tmp_path):
    """After a restart too; whoever was drawn, and in whatever place they are now."""
    path, noised = tmp_path / "joined.jsonl", SampledGaussian(0.8, "poisson", 1.0)
    record = Participation(path)
    for run, bound in (("spring", Allowed(30, 1, 3)), ("summer", Allowed(30, 1, 9))):
        for number, rows in enumerate(([0], [1], [], [2]), 1):
            record.join(task(run, number), b"%d" % number, np.array(rows, int), Limits(), bound, noised)
    for _ in range(2):  # one round
        record.join(task("autumn", 1), b"1", np.array([2]), Limits())
    for found in (record, Participation(path)):
        assert found.seen_before("winter") == ((NonPrivate(), 1), (noised, 3), (noised, 4))
        assert found.seen_before("spring") == ((NonPrivate(), 1), (noised, 4))
        with pytest.raises(Refused):  # a run keeps its noise
            found.join(task(number=9), b"9", np.array([5]), Limits(), Allowed(30, 1, 3))


def test_a_damaged_record_is_refused(tmp_path):
    path = tmp_path / "joined.jsonl"
    Participation(path).join(task(), b"message", np.array([1]), Limits())
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "rows": "all"}) + "\n")
    with pytest.raises(DamagedRun):
        Participation(path)


def test_a_masked_vector_of_a_round_leaves_once_also_after_a_restart(tmp_path):
    path = tmp_path / "joined.jsonl"
    first = Participation(path)
    first.join(task(), b"message", np.array([1]), Limits())
    first.refuse_masked(task().which)
    first.note_masked(task().which, "a list")
    for record in (first, Participation(path)):
        for refuse in (record.refuse_masked, lambda which, record=record: record.note_masked(which, "another")):
            with pytest.raises(Refused) as refused:
                refuse(task().which)
            assert refused.value.code is Code.TWICE
        record.refuse_masked(task(number=2).which)
        assert record.join(task(), b"message", np.array([]), Limits()).tolist() == [1]
