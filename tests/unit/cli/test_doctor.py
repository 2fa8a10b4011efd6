"""`sotto doctor`: what is printed of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.commands.doctor import Checkup

FOUND = Checkup(
    versions={"python": "3.11", "jax": ""},
    system="Linux",
    device="cpu",
    devices=2,
    cores=2,
    memory_bytes=8 * 2**30,
    free_disk_bytes=10 * 2**30,
    folder="/runs",
    extras={"export": ["jax2onnx"], "federation": []},
    users_per_second=12.5,
    problems=["little memory"],
)


@pytest.fixture
def examine(stub):
    return stub("sottovoce.commands.doctor.examine", FOUND)


def test_a_machine_is_a_table_with_what_to_install(examine, sotto, capsys):
    sotto(["doctor", "--no-bench"])
    page = capsys.readouterr().out
    for words in ("8.0 GiB", "10.0 GiB free in /runs", "12.5 users/s", "2 × cpu", "not installed"):
        assert words in page
    assert "pip install 'sottovoce[export]'" in page  # the brackets are no markup
    assert "problem: little memory" in page
    assert examine.places == (Path(), None)


def test_a_rate_is_timed_unless_it_is_not_wanted(examine, stub, answer):
    timed = stub("sottovoce.commands.bench.users_per_second", 3.0)
    found = answer("doctor")
    assert found["extras"]["export"] == ["jax2onnx"]
    _, rate = examine.places
    assert rate() == 3.0
    assert timed.names == {"seconds": 10.0}
