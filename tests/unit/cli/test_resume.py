"""`sotto resume`."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from sottovoce.cli.options import Processes

RESUME = "sottovoce.commands.train.resume"


def test_the_run_is_resumed_and_its_result_printed(stub, result, answer, tmp_path):
    resume = stub(RESUME, result())
    assert answer("resume", tmp_path / "run")["ended"] == "finished"
    assert resume.places == (tmp_path / "run",)
    assert set(resume.names) == {"observer", "stop", "group"}


def test_a_process_other_than_the_first_opens_its_own_store(sotto, stub, monkeypatch, tmp_path):
    group = SimpleNamespace(is_leader=False, rank=1, count=2)
    monkeypatch.setattr(Processes, "join", lambda self: nullcontext(group))
    helped, resume = stub("sottovoce.commands.helper.work_as_helper"), stub(RESUME)
    sotto(["resume", "anything", "--store", str(tmp_path)])
    assert helped.places == (group, tmp_path)
    assert resume.calls == []
