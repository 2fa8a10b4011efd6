"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.main import main
from sottovoce.cli.options import ALONE, Processes, log
from sottovoce_evidence.errors import SottoError


def test_one_process_joins_no_group():
    with ALONE.join() as group:
        assert group is None


@pytest.mark.parametrize("given", [{"processes": 2}, {"process_id": 0}, {"secret": Path("secret")}], ids=str)
def test_processes_need_a_place_to_meet(given):
    with pytest.raises(SottoError, match="need --coordinator"):
        Processes(**given).join()


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_train_and_resume_explain_the_options_of_several_processes(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    page = capsys.readouterr().out
    for words in ("--coordinator", "HOST:PORT", "--process-id", "Rank", "--secret", "SOTTO_SECRET", "One JSON object"):
        assert words in page


def test_a_log_goes_to_standard_error(capsys):
    log("finishing")
    assert capsys.readouterr() == ("", "finishing\n")
