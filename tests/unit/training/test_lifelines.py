"""Meeting, and noticing that another process is gone, without any JAX."""

from __future__ import annotations

import socket
import threading

import pytest

from sottovoce.errors import SottoError
from sottovoce.training import lifelines
from sottovoce.training.lifelines import Address
from sottovoce.training.processes import join

OPEN = []


@pytest.fixture(autouse=True)
def closed_in_the_end():
    yield
    while OPEN:
        OPEN.pop().close()


def meet(others, processes, wait=20.0):
    """Process 0 and some others: what each came to have, a pair of lifelines and reply, or an error."""
    found = {}
    with lifelines.listen("127.0.0.1", 0) as listener:
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")

        def come(place, number, believed):
            try:
                found[place] = lifelines.reach(address, number, believed, wait)
                OPEN.append(found[place][0])
            except SottoError as error:
                found[place] = str(error)

        threads = [threading.Thread(target=come, args=(place, *other)) for place, other in enumerate(others)]
        for thread in threads:
            thread.start()
        try:
            first = lifelines.gather(listener, processes, wait, {"port": 5})
            OPEN.append(first)
        except SottoError as error:
            first = str(error)
        for thread in threads:
            thread.join(60)
    return first, found


def test_all_meet_and_each_sees_who_is_gone():
    first, others = meet([(1, 3), (2, 3)], 3)
    assert [reply for _, reply in others.values()] == [{"port": 5}] * 2
    assert first.gone(0.05) is None
    others[1][0].close()
    assert first.gone(10) == 2
    assert others[0][0].gone(0.05) is None
    first.close()
    assert others[0][0].gone(10) == 0


def test_the_end_of_another_process_is_acted_on_unless_it_was_expected():
    first, others = meet([(1, 2)], 2)
    told = threading.Event()
    first.when_gone(lambda number: told.set())
    others[0][0].close()
    assert told.wait(10)
    first, others = meet([(1, 2)], 2)
    told = threading.Event()
    first.when_gone(lambda number: told.set())
    first.close()
    assert not told.wait(0.2)


def test_a_machine_without_power_is_given_up():
    first, _ = meet([(1, 2)], 2)
    (peer,) = first._peers.values()
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        read = lambda name: peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))  # noqa: E731
        assert read("TCP_KEEPIDLE") + read("TCP_KEEPINTVL") * read("TCP_KEEPCNT") <= 30


@pytest.mark.parametrize(
    ("others", "message"),
    [([(1, 4), (2, 3)], "--processes 4"), ([(1, 3), (1, 3)], "two processes have --process-id 1")],
    ids=["another count", "the same number"],
)
def test_processes_that_contradict_one_another_are_refused_on_all_sides(others, message):
    first, found = meet(others, 3, wait=5)
    assert message in first
    assert any(message in str(end) for end in found.values())


def test_whoever_does_not_come_is_named():
    first, found = meet([(2, 3)], 3, wait=0.5)
    assert "process 1 of 3 did not come" in first
    assert "did not come" in found[0]


def test_whoever_left_while_waiting_may_come_again():
    with lifelines.listen("127.0.0.1", 0) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        hello = b'{"hello": "sottovoce", "process": %d, "processes": 3}\n'
        came = []
        for number in (1, 1, 2):
            came.append(socket.create_connection(address))
            came[-1].sendall(hello % number)
            if len(came) == 1:
                came[0].close()
        OPEN.extend(came)
        OPEN.append(lifelines.gather(listener, 3, 5, {}))


def test_a_stranger_at_the_port_is_no_process():
    with lifelines.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(SottoError, match="did not come"):
            lifelines.gather(listener, 2, 0.5, {})
        stranger.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", 2, 1), "HOST:PORT"), (("here:0", 2, 1), "HOST:PORT"), (("h:99999", 2, 1), "HOST:PORT"),
        (("127.0.0.1:9", None, 1), "needs --processes and --process-id"),
        (("127.0.0.1:9", 2, None), "needs --processes and --process-id"),
        (("127.0.0.1:9", 2, 2), "must be from 0 to 1"), (("127.0.0.1:9", 2, -1), "must be from 0 to 1"),
        (("127.0.0.1:9", 1, 0), "must be 2 or more"), (("auto", 2, None), "by itself"),
        (("127.0.0.1:9", 2, 1), "cannot reach process 0 at 127.0.0.1:9"),
        (("host.invalid:9", 2, 1), "no machine is called 'host.invalid'"),
        (("192.0.2.1:9", 2, 0), "cannot listen at 192.0.2.1:9"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_input_is_refused_in_a_sentence(arguments, message):
    with pytest.raises(SottoError, match=message):
        join(*arguments, wait=0.3)
