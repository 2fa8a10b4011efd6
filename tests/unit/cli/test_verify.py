"""`sotto verify`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.cli.main import main
from sottovoce_evidence.verify import FAILED, PASSED, UNCHECKED, Accounted, Check, Verification

VERIFY = "sottovoce_evidence.verify.verify_release"
FINE = Verification(
    "out", True, True, "SHA256:abc", 2.0, 1e-6, (Check("files", PASSED, "are \x1bthose"),),
    (Accounted("PLD", 2.0), Accounted("other", None)), ("a note", "WARNING: δ"), ("everything",),
)  # fmt: skip
BROKEN = Verification("out", False, True, None, None, None, (Check("files", FAILED, "weights was changed"),), (), ())


def test_checks_epsilons_and_what_is_not_proved_are_printed(sotto, stub, capsys):
    verify = stub(VERIFY, FINE)
    sotto(["verify", "out", "--signer", "SHA256:abc"])
    assert (verify.places, verify.names) == ((Path("out"),), {"signer": "SHA256:abc", "unsigned": False})
    out = capsys.readouterr().out
    for shown in ("files  passed     are \\x1bthose", "ε at δ = 1e-6", "no answer", "note: a note", "- everything"):
        assert shown in out
    assert out.startswith("WARNING: δ\n")
    assert out.endswith("no check failed\n")


def test_a_release_without_signature_says_so_in_the_last_line(sotto, stub, capsys):
    verify = stub(VERIFY, replace(FINE, signed=False, signer=None))
    sotto(["verify", "out", "--unsigned"])
    assert verify.names == {"signer": None, "unsigned": True}
    assert capsys.readouterr().out.endswith("no check failed; IT IS NOT SIGNED\n")


def test_a_failed_check_has_status_1(stub, capsys):
    stub(VERIFY, BROKEN)
    with pytest.raises(SystemExit, match="1"):
        main(["verify", "out"])
    assert capsys.readouterr().out.endswith("FAILED: files; get the release again, or ask its owner\n")


def test_a_check_that_could_not_be_made_has_status_1_and_is_in_the_last_line(stub, capsys):
    stub(VERIFY, replace(FINE, verified=False, checks=(*FINE.checks, Check("own code", UNCHECKED, "a clip"))))
    with pytest.raises(SystemExit, match="1"):
        main(["verify", "out"])
    out = capsys.readouterr().out
    assert "own code  not checked  a clip\n" in out
    assert out.endswith("no check failed; NOT CHECKED: own code\n")


def test_json_is_one_object_and_bad_input_one_line(stub, answer, refusal, tmp_path):
    assert "is not a release" in refusal("verify", tmp_path)
    stub(VERIFY, FINE)
    assert answer("verify", "out")["epsilons"][1] == {"accountant": "other", "epsilon": None}
