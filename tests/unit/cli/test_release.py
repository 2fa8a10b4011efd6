"""`sotto release`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.main import main
from sottovoce.commands.release import Release
from sottovoce.reporting.statement import AuditOutcome

RELEASE = "sottovoce.commands.release.release_run"
AUDITS = (AuditOutcome("rounds", "passed", would_notice=0.9), AuditOutcome("canaries", "not run"))
RELEASED = Release("run", True, "out", (), AUDITS, ("canaries",), "sotto plan --ledger out/ledger.jsonl")
KEPT = Release("run", False, "out", ("no audit", "no guarantee"), (), (), "")


def test_a_release_names_its_check_and_its_audits(sotto, stub, capsys):
    release = stub(RELEASE, RELEASED)
    sotto(["release", "run", "--out", "out", "--most-exposure", "8", "--require-audit"])
    assert release.places == (Path("run"), Path("out"))
    assert release.names == {"most_exposure": 8.0, "require_audit": True}
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["released: out", "anyone who has it finds its ε with: sotto plan --ledger out/ledger.jsonl"]
    assert lines[2].startswith("audit by rounds: passed; it ")
    assert lines[3] == "audit by canaries: not run"
    assert "secrets of run are erased" in lines[4]


@pytest.mark.parametrize("json", [False, True])
def test_what_is_not_released_has_all_reasons_and_status_1(stub, capsys, json):
    stub(RELEASE, KEPT)
    with pytest.raises(SystemExit, match="1"):
        main(["release", "run", "--out", "out", *(["--json"] if json else [])])
    out = capsys.readouterr().out
    if json:
        assert '"reasons": ["no audit", "no guarantee"]' in out
    else:
        assert out == "not released: run\n- no audit\n- no guarantee\n"


def test_the_options_have_defaults_and_json_is_one_object(stub, answer):
    release = stub(RELEASE, RELEASED)
    assert answer("release", "run", "--out", "out")["not_run"] == ["canaries"]
    assert release.names == {"most_exposure": None, "require_audit": False}


def test_a_folder_without_a_run_is_refused(refusal, tmp_path):
    assert "holds no run" in refusal("release", tmp_path, "--out", tmp_path / "out")
