"""`sotto report`."""

from __future__ import annotations

from pathlib import Path


def test_the_path_of_the_page_is_printed(sotto, stub, capsys):
    report = stub("sottovoce.commands.report.report_run", Path("run/report.html"))
    sotto(["report", "run", "--internal"])
    assert report.places == (Path("run"),)
    assert report.names == {"internal": True}
    assert capsys.readouterr().out == "run/report.html\n"


def test_by_default_the_page_is_public_and_of_one_run(sotto, stub):
    report = stub("sottovoce.commands.report.report_run")
    sotto(["report", "run"])
    assert report.names == {"internal": False}


def test_a_folder_without_a_run_is_refused(refusal, tmp_path):
    assert "holds no run" in refusal("report", tmp_path)
