from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.multiprocess import group
from sottovoce.multiprocess.group import Dismissed, Group, ProcessFacts, _padded_length, join
from sottovoce.multiprocess.rendezvous import Connections
from sottovoce_evidence.errors import SottoError
from thread_group import in_every_process, thread_groups

SECRET = b"known to these processes alone"
FACTS = ProcessFacts("store", "program", "code", "layout")


@pytest.fixture(autouse=True)
def known_secret(monkeypatch):
    monkeypatch.setenv("SOTTO_SECRET", SECRET.decode())


def test_broadcast_and_gathered_messages_arrive_whole():
    messages = [b"", b"a", bytes(range(256)) * 3]

    def exchange(group):
        # Only the leader's message counts.
        mine = messages[2] if group.is_leader else b"ignored"
        return group.broadcast(mine), group.broadcast(b""), group.all_gather(messages[group.rank])

    assert in_every_process(3, exchange) == [(messages[2], b"", messages)] * 3


def test_sums_are_padded_to_few_shapes_and_never_cut():
    lengths = range(3000)
    assert all(_padded_length(length) >= max(1, length) for length in lengths)
    assert len({_padded_length(length) for length in lengths}) < 100


def test_dismissed_processes_receive_the_reason():
    def play(group):
        if group.is_leader:
            group.broadcast(b"task")
            group.dismiss("a reason")
            return None
        first = group.receive()
        with pytest.raises(Dismissed) as ended:
            group.receive()
        return first, str(ended.value)

    assert in_every_process(2, play) == [None, (b"task", "a reason")]


def test_after_an_interrupted_section_nothing_more_is_sent():
    """The others wait for the rest of it, and notice the closed connection instead."""
    group = thread_groups(2)[0]
    with pytest.raises(KeyboardInterrupt), group.uninterruptible():
        raise KeyboardInterrupt
    group.dismiss("interrupted")
    assert group.sent == []


def test_a_request_to_stop_is_kept():
    group = thread_groups(2)[1]
    assert not group.stop_requested()
    group.request_stop(False)
    assert not group.stop_requested()
    group.request_stop(True)
    group.request_stop(False)
    assert group.stop_requested()


def test_all_processes_see_the_facts_of_all_and_refuse_a_mismatch_together():
    def agree(group):
        group.agree(FACTS)
        return group.facts

    assert in_every_process(3, agree) == [[FACTS] * 3] * 3

    def differ(group):
        group.agree([FACTS, ProcessFacts(error="no such store"), replace(FACTS, store="another"), FACTS][group.rank])

    errors = in_every_process(4, differ)
    assert [type(error) for error in errors] == [SottoError] * 4
    for error in errors:
        assert str(error).startswith("process 1 cannot take part: no such store; process 2 has another store")
        assert "process 3" not in str(error)


@pytest.mark.parametrize("other", [SECRET, b"another secret of as many letters"])
def test_a_process_without_the_secret_is_found_before_anything_is_sent(other):
    """JAX's service and gloo authenticate no process."""
    found = in_every_process(2, lambda group: group.check_members(SECRET if group.is_leader else other))
    if other == SECRET:
        assert found == [None, None]
    else:
        assert "process 1 does not know the secret of this run" in str(found[0])
        assert "process 0 does not know the secret of this run" in str(found[1])


def test_the_secret_is_not_sent():
    groups = []

    def check(group):
        groups.append(group)
        group.check_members(SECRET)

    assert in_every_process(2, check) == [None, None]
    sent = b"".join(np.ascontiguousarray(numbers).tobytes() for group in groups for numbers in group.sent)
    assert SECRET not in sent


def test_the_reason_of_an_error_goes_to_the_other_processes():
    made = []

    class Recorded(Group):
        def dismiss(self, reason=""):
            made.append(reason)

    group = Recorded(0, 2, None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broken"), group:
        raise ValueError("broken")
    with pytest.raises(KeyboardInterrupt), group:
        raise KeyboardInterrupt
    with group:
        pass
    assert made == ["broken", "it was interrupted", ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", 2, 1), "HOST:PORT"),
        (("here:0", 2, 1), "HOST:PORT"),
        (("h:99999", 2, 1), "HOST:PORT"),
        (("127.0.0.1:9", None, 1), "needs --processes and --process-id"),
        (("127.0.0.1:9", 2, None), "needs --processes and --process-id"),
        (("127.0.0.1:9", 2, 2), "must be from 0 to 1"),
        (("127.0.0.1:9", 2, -1), "must be from 0 to 1"),
        (("127.0.0.1:9", 1, 0), "must be 2 or more"),
        (("auto", 2, None), "by itself"),
        (("127.0.0.1:9", 2, 1), "cannot reach process 0 at 127.0.0.1:9"),
        (("host.invalid:9", 2, 1), "no machine is called 'host.invalid'"),
        (("192.0.2.1:9", 2, 0), "cannot listen at 192.0.2.1:9"),
    ],
    ids=str,
)
def test_wrong_input_is_refused_in_a_sentence(arguments, message):
    with pytest.raises(SottoError, match=message):
        join(*arguments, wait=0.3)


@pytest.mark.parametrize(("waits", "ended"), [(True, [1]), (False, [])])
def test_a_process_that_waits_for_a_lost_one_ends(waits, ended, monkeypatch):
    """One that computes goes on to its next sum, which fails by itself."""
    left = []
    monkeypatch.setattr(group, "_GRACE", 0.02)

    def leave(status):
        left.append(status)
        raise SystemExit

    monkeypatch.setattr(group.os, "_exit", leave)
    alone = thread_groups(1)[0]
    alone._waits_since = time.monotonic() - 1 if waits else None
    if not waits:
        threading.Timer(0.1, alone.leave).start()
    with suppress(SystemExit):
        alone._end(1)
    assert left == ended


def test_a_group_that_is_left_leaves_no_thread_behind(monkeypatch):
    """One that frees arrays of JAX while the interpreter ends is a segmentation fault.

    The other process ends first, as it does when it is dismissed: its end is being waited out when this one leaves.
    """
    monkeypatch.setattr(group, "_GRACE", 1000.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    before, alone = set(threading.enumerate()), thread_groups(1)[0]
    alone._connections = Connections({1: here})
    alone.end_with_others()
    there.close()
    assert alone._connections.lost(60) == 1
    alone.leave()
    assert set(threading.enumerate()) <= before
