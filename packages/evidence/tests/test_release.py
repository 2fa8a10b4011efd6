"""Which files a release may have, how large they may be, and how much work its charges may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from releases import evidences, write

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.release import STATEMENT, WEIGHTS, check_work, folder_faults, largest, numbers_in
from sottovoce_evidence.verify import FAILED, UNCHECKED, verify_release

EVENT = {"kind": "sampled-examples", "noise_multiplier": 1.0, "example_rate": 0.01, "examples_per_user": 6000}
STRANGE = ("ledger.head", "onnx/users.csv", "secrets/noise.key", "onnx/onnx/step.onnx", "step.onnx", "\x1b[31m")


@pytest.mark.parametrize("name", STRANGE)
def test_a_file_that_no_release_has_is_named(name: str) -> None:
    (fault,) = (fault for fault in folder_faults({name: 1}) if "is no file of a release" in fault)
    assert fault.isprintable()


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    release = write(tmp_path / "release", evidences()["poisson"])
    os.truncate(release / STATEMENT, int(largest(STATEMENT)) + 1)
    checks = {check.name: check.result for check in verify_release(release).checks}
    assert (checks["files"], checks["statement"]) == (FAILED, UNCHECKED)


def test_a_header_of_weights_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    array = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]'
    for header, after in ((f"{{{array}}}}}", 5), (f"{{{array}}},{array}}}}}", 4)):  # a byte more, a name twice
        (tmp_path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(after))
        with pytest.raises(ValueError, match=r"do not fill it|twice"):
            numbers_in(tmp_path / WEIGHTS)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"kind": "covered"}] * 41, "kinds of rounds"),
        ([EVENT, EVENT], "12,000 examples of a user"),
        ([{**EVENT, "noise_multiplier": 0.4}], "nothing is protected"),
        ([{**EVENT, "examples_per_user": "many"}], "must be a whole number"),
        ([{"kind": "correlated-gaussian", "rounds": 10**8}], "must be a whole number"),
        ([{"kind": "correlated-gaussian", "coefficients": [1.0] * 10_001}], "numbers of one charge"),
        (["an event"], "is no object"),
        ([{"kind": "best-of-runs", "run": [[{"kind": "covered"}, 1]] * 41}], "kinds of rounds"),
    ],
)
def test_charges_that_take_too_long_are_refused(events: list, words: str) -> None:
    check_work([EVENT])
    with pytest.raises(SottoError, match=words):
        check_work(events)
