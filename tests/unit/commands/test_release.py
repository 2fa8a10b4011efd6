"""The gate of a release: which audits let a model pass. Nothing is trained."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_statement

from made_audits import made
from sottovoce.audit.results import CanariesResult, Exposure, ExposurePoint, Guesses, OneRunResult, RoundsResult
from sottovoce.commands.release import check_audits, threshold, to_do_before
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.statement import Registered

WEIGHTS = {"layer": np.arange(3, dtype=np.float32)}
NAME = digest(WEIGHTS)
ROUNDS = made(
    RoundsResult,
    weights=NAME,
    rounds=100,
    claimed=1.5,
    shown=0.5,
    delta=1e-3,
    confidence=0.999,
    contradicted=False,
    claimed_multiplier=1.2,
    shown_multiplier=1.3,
    would_notice=0.9,
)
CURVE = (ExposurePoint(1, 1, 3.0, 3.0, 3.0, 0),)
SECRET = Exposure("a b c", 1, 3.0, 9.0, 64, 512, True, False)
CANARIES = made(
    CanariesResult,
    weights=NAME,
    itself=True,
    claimed=1.5,
    shown=0.2,
    delta=1e-3,
    contradicted=False,
    one_run=made(OneRunResult, canaries=40, shown=0.2),
    exposure=(SECRET,),
    curve=CURVE,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(RunFolder, "load_weights", lambda self: WEIGHTS)
    return RunFolder(tmp_path)


def gate(run: RunFolder, *, most_exposure: float | None = None, **results: RoundsResult | CanariesResult):
    for name, result in results.items():
        run.save_audit(name, result.to_json(), None)
    outcomes, reasons = check_audits(run, most_exposure)
    return {outcome.audit: outcome for outcome in outcomes}, reasons


def test_audits_that_contradict_nothing_let_a_model_pass(run: RunFolder) -> None:
    outcomes, reasons = gate(run, rounds=ROUNDS, canaries=CANARIES)
    assert reasons == []
    assert {outcome.result for outcome in outcomes.values()} == {"passed"}
    assert (outcomes["rounds"].would_notice, outcomes["rounds"].shown_multiplier) == (0.9, 1.3)
    assert (outcomes["canaries"].of, outcomes["canaries"].curve) == ("this model", CURVE)


def test_an_audit_that_was_not_run_is_told_and_no_reason(run: RunFolder) -> None:
    outcomes, reasons = gate(run)
    assert reasons == []
    assert {outcome.result for outcome in outcomes.values()} == {"not run"}


def test_an_audit_of_an_earlier_model_counts_as_not_run(run: RunFolder) -> None:
    earlier = {"weights": "of an earlier model"}
    outcomes, _ = gate(run, rounds=replace(ROUNDS, **earlier), canaries=replace(CANARIES, **earlier))
    assert {outcome.result for outcome in outcomes.values()} == {"not run"}


def test_noise_below_the_claim_is_a_reason(run: RunFolder) -> None:
    outcomes, reasons = gate(run, rounds=replace(ROUNDS, contradicted=True, shown_multiplier=1.1))
    assert outcomes["rounds"].result == "failed"
    assert reasons == ["the audit by rounds shows noise of at most 1.1 times the sensitivity, and 1.2 is claimed"]


@pytest.mark.parametrize("name", ["rounds", "canaries"])
def test_an_epsilon_above_the_claim_is_a_reason(run: RunFolder, name: str) -> None:
    leaky = {"rounds": ROUNDS, "canaries": CANARIES}[name]
    outcomes, reasons = gate(run, **{name: replace(leaky, contradicted=True, shown=2.25)})
    assert outcomes[name].result == "failed"
    assert reasons == [f"the audit by {name} shows ε >= 2.25 at δ = 0.001, and 1.5 is claimed"]


def test_a_curve_that_is_refuted_is_a_reason(run: RunFolder) -> None:
    one_run = OneRunResult(2000, 0.2, made(Guesses, shown=0.2, noise=0.94), made(Guesses, shown=0.1, noise=2.0), None)
    _, reasons = gate(run, canaries=replace(CANARIES, contradicted=True, one_run=one_run))
    assert reasons == ["the audit by canaries shows at most 0.94 of the claimed noise, and ε <= 1.5 is claimed"]


def test_an_exposed_secret_of_one_user_is_a_reason_and_one_of_many_is_not(run: RunFolder) -> None:
    exposed, shared = replace(SECRET, bits=10.5), replace(SECRET, holders=4, bits=20.0)
    _, reasons = gate(run, canaries=replace(CANARIES, exposure=(exposed, shared)))
    assert len(reasons) == 1
    assert "exposed by 10.5 bits (rank 64 of 512), more than 10" in reasons[0]
    assert gate(run, canaries=replace(CANARIES, exposure=(shared,)))[1] == []
    assert gate(run, most_exposure=2.0, canaries=CANARIES)[1] != []
    assert gate(run, canaries=replace(CANARIES, exposure=(replace(SECRET, bits=math.nan),)))[1] != []


def test_the_threshold_grows_with_the_number_of_secrets() -> None:
    assert [threshold(secrets) for secrets in (0, 1, 4)] == [10, 10, 12]


def test_of_a_copy_only_that_it_passed_is_published(run: RunFolder) -> None:
    outcomes, _ = gate(run, canaries=replace(CANARIES, itself=False))
    told = {"audit": "canaries", "result": "passed", "of": "a copy", "one_run": True}
    assert outcomes["canaries"].to_json() == told


def test_what_may_be_done_before_a_release_is_noted() -> None:
    stopped = make_statement(done=20)
    noted = list(to_do_before("run", stopped, ("rounds",), again=False))
    assert noted == [
        "only 20 of 60 paid rounds were done; releasing ends the run; `sotto resume run` first costs nothing more",
        "not audited by rounds; to audit it first: sotto audit rounds run",
    ]
    assert list(to_do_before("run", make_statement(), (), again=False)) == []
    only = ["only 20 of 60 paid rounds were done"]
    assert list(to_do_before("run", stopped, (), again=True)) == only
    devices = list(to_do_before("run", replace(stopped, registered=Registered(3)), (), again=False))
    assert "`sotto federate resume run`" in devices[0]
