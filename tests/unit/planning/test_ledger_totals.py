"""What ledgers add up to, and what must not be added up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sottovoce.planning.ledger_totals import judge_ledgers
from sottovoce.runs.ledger import COUNT, EVALUATION, PREPARATION, Ledger, StoreLedger
from sottovoce_evidence.accounting import (
    BestOfRuns,
    CorrelatedGaussian,
    Covered,
    GaussianRelease,
    NonPrivate,
    SampledGaussian,
    epsilon,
    epsilons,
)
from sottovoce_evidence.accounting.events import ADDED, HELD_OUT
from sottovoce_evidence.accounting.gaussian import gaussian_epsilon
from sottovoce_evidence.accounting.matrices import Banded, Participation
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.ledger import release_ledger

ROUND = SampledGaussian(1.0, "poisson", 0.01)
LOUDER = SampledGaussian(1.3, "poisson", 0.01)
FIXED = SampledGaussian(1.0, "fixed", 0.01, cohort=10, users=1000)
NAMES = GaussianRelease(5.0, 1e-8)


def of_run(path: Path, events, run: str = "a") -> Path:
    ledger = Ledger.create(path, {"run": run, "recipe": "r"})
    ledger.spend(events, 1)
    return path


def of_store(path: Path, charges) -> Path:
    path.parent.mkdir()
    for run, event, count in charges:
        StoreLedger(path).charge(run, "training", event, count)
    return path


def test_a_run_is_judged_by_any_accountant_at_any_delta(tmp_path) -> None:
    path = of_run(tmp_path / "ledger.jsonl", [ROUND] * 30 + [LOUDER] * 20)
    for accountant in ("rdp", "moments", "pld"):
        judged = judge_ledgers([path], [1e-6, 1e-9], accountant)
        wanted = epsilons([(ROUND, 30), (LOUDER, 20)], [1e-6, 1e-9], accountant)
        assert [point["epsilon"] for point in judged.total.epsilons] == pytest.approx(wanted, rel=1e-6)
    assert (judged.total.relation, judged.total.releases) == ("add-or-remove-one-user", 50)
    assert judged.total.events == [
        {"event": ROUND.to_json(), "count": 30},
        {"event": LOUDER.to_json(), "count": 20},
    ]
    assert judged.ledgers[0]["runs"] == ["a"]
    assert judged.ledgers[0]["epsilons"] == judged.total.epsilons


def test_a_store_is_judged_over_all_its_runs(tmp_path) -> None:
    path = of_store(tmp_path / "store" / "ledger.jsonl", [("a", ROUND, 100), ("b", NAMES, 1), ("b", LOUDER, 50)])
    data = judge_ledgers([path], [1e-6]).to_json()
    assert data["epsilon"] == pytest.approx(epsilon([(ROUND, 100), (LOUDER, 50), (NAMES, 1)], 1e-6), rel=1e-6)
    assert (data["delta"], data["accountant"]) == (1e-6, "pld")
    assert data["accountant_name"].startswith("PLD")
    assert data["ledgers"][0]["runs"] == ["a", "b"]
    assert data["total"]["releases"] == 151


def test_held_out_users_are_judged_apart_but_with_those_of_another_store(tmp_path) -> None:
    sums = GaussianRelease(2.0, people=HELD_OUT)
    path = of_store(tmp_path / "store" / "ledger.jsonl", [("a", ROUND, 100), (EVALUATION, sums, 2)])
    judged = judge_ledgers([path], [1e-6])
    assert judged.total.epsilons[0]["epsilon"] == epsilon([(ROUND, 100)], 1e-6)
    held_out = judged.ledgers[0]["held_out"]
    assert held_out["epsilons"][0]["epsilon"] == epsilon([(sums, 2)], 1e-6)
    assert held_out["releases"] == 2
    # Someone who is held out of one store may be trained on in the other.
    other = of_store(tmp_path / "other" / "ledger.jsonl", [("b", ROUND, 50), (EVALUATION, sums, 1)])
    total = judge_ledgers([path, other], [1e-6]).total
    assert total.epsilons[0]["epsilon"] == epsilon([(ROUND, 150), (sums, 3)], 1e-6)


def test_the_best_of_several_runs_is_judged_by_rdp_with_all_else(tmp_path) -> None:
    chosen = BestOfRuns(5.0, "logarithmic", ((ROUND, 100),))
    path = of_store(tmp_path / "store" / "ledger.jsonl", [("a", ROUND, 100), ("b", chosen, 1)])
    judged = judge_ledgers([path], [1e-6])
    assert judged.accountant == "rdp"
    assert judged.total.epsilons[0]["epsilon"] == epsilon([(ROUND, 100), (chosen, 1)], 1e-6, "rdp")
    with pytest.raises(SottoError, match="use accountant='rdp'"):
        judge_ledgers([path], [1e-6], "pld")


def test_reading_leaves_the_file_as_it_is(tmp_path) -> None:
    path = of_run(tmp_path / "ledger.jsonl", [ROUND] * 3)
    with open(path, "ab") as file:
        file.write(b'{"round": 4, "event"')  # torn by a crash
    before = path.read_bytes()
    assert judge_ledgers([path], [1e-6], "rdp").total.releases == 3
    assert path.read_bytes() == before


def test_a_release_is_judged_by_its_folder_and_not_beside_its_store(tmp_path) -> None:
    release = tmp_path / "released"
    release.mkdir()
    (release / "ledger.jsonl").write_bytes(release_ledger("b", [(ROUND, 5), (NAMES, 1)]))
    ledger = judge_ledgers([release], [1e-6], "rdp").ledgers[0]
    assert (ledger["kind"], ledger["runs"], ledger["releases"]) == ("release", ["b"], 6)
    prepared = [(PREPARATION, NAMES, 1), (COUNT, ROUND, 1)]  # every store has words and a count of its own
    store = of_store(tmp_path / "store" / "ledger.jsonl", [*prepared, ("a", ROUND, 5), ("b", ROUND, 5)])
    with pytest.raises(SottoError, match="both charged for run b:"):
        judge_ledgers([release, store], [1e-6])
    other = of_store(tmp_path / "other" / "ledger.jsonl", [*prepared, ("c", ROUND, 5)])
    assert judge_ledgers([store, other], [1e-6], "rdp").total.releases == 19


def test_a_ledger_is_not_counted_beside_its_copy(tmp_path) -> None:
    run = of_run(tmp_path / "run.jsonl", [ROUND] * 3)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(run.read_bytes())
    Ledger.open(run).spend([ROUND], 4)
    for paths in ([run, run], [run, copy], [copy, run]):
        with pytest.raises(SottoError, match="count twice"):
            judge_ledgers(paths, [1e-6])


def test_releases_under_two_relations_are_together_those_that_replace_a_user(tmp_path) -> None:
    poisson = of_store(tmp_path / "a" / "ledger.jsonl", [("a", ROUND, 10)])
    fixed = of_store(tmp_path / "b" / "ledger.jsonl", [("b", FIXED, 10), ("b", NAMES, 1)])
    data = json.loads(json.dumps(judge_ledgers([poisson, fixed], [1e-6], "rdp").to_json(), allow_nan=False))
    assert [ledger["relation"] for ledger in data["ledgers"]] == ["add-or-remove-one-user", "replace-one-user"]
    assert data["total"]["relation"] == "replace-one-user"
    assert data["epsilon"] == data["total"]["epsilons"][0]["epsilon"]
    assert data["epsilon"] > max(ledger["epsilons"][0]["epsilon"] for ledger in data["ledgers"])


@pytest.mark.parametrize("event", [NonPrivate(), SampledGaussian(0.0, "fixed", 0.01, cohort=10, users=1000)])
def test_a_release_without_protection_is_infinite(tmp_path, event) -> None:
    path = of_run(tmp_path / "ledger.jsonl", [ROUND, event])
    judged = judge_ledgers([path], [1e-6])
    assert judged.total.epsilons[0]["epsilon"] == math.inf
    assert judged.to_json()["epsilon"] == "infinity"


def test_errors(tmp_path) -> None:
    path = of_run(tmp_path / "ledger.jsonl", [NAMES])
    with pytest.raises(SottoError, match="must be above 1e-08"):
        judge_ledgers([path], [1e-9])
    with pytest.raises(SottoError, match="delta is missing"):
        judge_ledgers([path], [])
    with pytest.raises(SottoError, match=r"none\.jsonl is missing"):
        judge_ledgers([tmp_path / "none.jsonl"], [1e-6])
    (tmp_path / "record.jsonl").write_text('{"round": 1, "epsilon": 2}\n')
    with pytest.raises(SottoError, match=r"line 1 of .* is damaged"):
        judge_ledgers([tmp_path / "record.jsonl"], [1e-6])


@pytest.fixture(params=["run", "release"])
def write_correlated(request, tmp_path):
    """Writes the ledger of a run with correlated noise, or that of its release."""
    run, rest = CorrelatedGaussian(0.8, Banded((1.0, 0.5)), Participation(4, 2, 2)), Covered(0.8, ADDED)
    path = tmp_path / "ledger.jsonl"

    def write() -> Path:
        if request.param == "run":
            return of_run(path, [run, rest, rest, rest])
        (path).write_bytes(release_ledger("a", [(run, 1), (rest, 3)]))
        return path

    return write


def test_a_run_of_correlated_noise_is_judged_by_its_one_charge(write_correlated):
    judged = judge_ledgers([write_correlated()], [1e-6])
    assert judged.total.relation == ADDED
    assert judged.total.epsilons[0]["epsilon"] == pytest.approx(gaussian_epsilon(0.8, 1e-6), rel=1e-8)
    assert judged.total.epsilon_replaced == pytest.approx(gaussian_epsilon(0.4, 1e-6), rel=1e-8)


def test_a_smaller_sensitivity_than_the_matrix_has_is_not_believed(write_correlated, monkeypatch):
    with monkeypatch.context() as lying:
        lying.setattr(CorrelatedGaussian, "sensitivity", 1.0)
        path = write_correlated()
    with pytest.raises(SottoError, match="sensitivity"):
        judge_ledgers([path], [1e-6])
