"""Results of audits are read as they were written."""

from __future__ import annotations

import json
import math

import pytest

from sottovoce.audit.results import (
    AttackResult,
    Audits,
    CanariesResult,
    CanarySummary,
    Exposure,
    ExposurePoint,
    Guesses,
    MembershipResult,
    OneRunResult,
    OtherCurve,
    Proved,
    Rate,
    RoundsResult,
    TailPair,
    TailsResult,
)

POINT = ExposurePoint(1, 2, 0.5, 1.0, 2.0, 0)
RESULTS = {
    "rounds": RoundsResult(
        "run", "w", 100, 3, 1.5, 0.5, 1e-3, 0.999, False, 1.2, math.inf, 0.9, 3.0, 75, 40, 0.99, "replace", "note"
    ),
    "tails": TailsResult(
        "run", 5, 0.4, 1e-5, "note", Proved(False, math.inf, 1e-5), "about", 10, 0.05, 1,
        (TailPair("one out", "with", 100, 20, 0.1, 2.0, math.inf, 1.0, 0.5, False, 0.4),),
    ),
    "canaries": CanariesResult(
        "run", "w", 5, "itself", True, CanarySummary(40, 2, 2, "ab"), 1e-6, 0.95, math.inf, 0.3, False,
        OneRunResult(40, 0.3, Guesses(0.3, 30, 40, 3.0, 0.9, 1.0), Guesses(0.0, 20, 40, 3.0, 2.0, 0.0), None),
        (Exposure("a b c", 1, 3.0, 9.0, 64, 512, True, False),), (POINT,), (OtherCurve("other", math.inf, (POINT,)),),
        "note",
    ),
    "membership": MembershipResult(
        "run", "w", 5, 300, 33, 1.5, 8, 0.95,
        (AttackResult("loss", 0.6, 0.5, 0.7, (Rate(0.001, 0.04, 0.0, 0.1, 0, 0.01, True),), ((0.0, 0.0), (1.0, 1.0))),),
        Proved(True, 4.6, 1e-6), "note",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_read_as_it_was_written(name):
    written = json.loads(json.dumps({**RESULTS[name].to_json(), "checksum": "00"}, allow_nan=False))
    assert type(RESULTS[name]).from_json(written) == RESULTS[name]


def test_an_audit_of_other_weights_is_out_of_date():
    files = {name: result.to_json() for name, result in RESULTS.items()} | {"rounds": None}
    audits = Audits.from_json(files, "w")
    assert (audits.rounds, audits.canaries, audits.outdated) == (None, RESULTS["canaries"], frozenset())
    later = Audits.from_json(files, "later")
    assert (later.canaries, later.membership) == (None, None)
    assert later.tails == RESULTS["tails"]  # it does not say of which weights it is
    assert later.outdated == {"canaries", "membership"}
