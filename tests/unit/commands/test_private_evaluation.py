"""A private evaluation: paid for before it is drawn, by held-out users alone, and drawn once."""

from __future__ import annotations

import errno
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tiny_run import declare

from power_cut import FullDisk
from sottovoce.commands import private_evaluation
from sottovoce.commands.private_evaluation import FOLDER, evaluate_privately, private_accuracy
from sottovoce.data.store import Store
from sottovoce.evaluation.private_prediction import BoundedCounts
from sottovoce.privacy.bounded_sums import BoundedSums, NoisySums
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence import accounting, files
from sottovoce_evidence.accounting import GaussianRelease
from sottovoce_evidence.accounting.events import HELD_OUT
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.statement import state
from sottovoce_evidence.verify import read_evidence, verify_release

CLEAR = NoisySums((3_000, 1_000, 1_000, 15_000), 2_560_000, (600, 3_000, 20_000), 400)


@pytest.fixture
def store(store):
    return declare(store, "private")


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """What is measured of every user; the model is not asked."""
    monkeypatch.setattr(
        private_evaluation,
        "count_bounded",
        lambda model, users, tokens: BoundedCounts(np.full((users.users, 4), 2.0), np.full(users.users, 4.0)),
    )


@pytest.fixture
def clear(monkeypatch):
    """Many users more, so that the noise hides nothing."""
    monkeypatch.setattr(BoundedSums, "draw", lambda mechanism, rows: CLEAR)


def paid(store):
    return StoreLedger(store / "ledger.jsonl").spent_on_held_out()


def test_the_charge_is_on_disk_before_the_noise_is_drawn(run, store, monkeypatch):
    seen = []

    def draw(mechanism, rows):
        seen.append((paid(store), len(rows), mechanism.event()))
        assert not list((store / FOLDER).glob("*.json"))
        return CLEAR

    monkeypatch.setattr(BoundedSums, "draw", draw)
    found = evaluate_privately(run.path, epsilon=2.0, delta=1e-5)
    ((charges, users, event),) = seen
    assert charges == [(event, 1)]
    assert users == Store.open(store, "test", privately=True).users
    assert (
        event == found.accuracy.terms.event == GaussianRelease(found.accuracy.terms.noise_multiplier, people=HELD_OUT)
    )
    assert accounting.epsilon([(event, 1)], 1e-5) <= 2.0
    assert accounting.epsilon([(event, 1)], 1e-5) == found.epsilon_held_out


def test_an_evaluation_that_fails_stays_charged_and_keeps_nothing(run, store, monkeypatch):
    monkeypatch.setattr(BoundedSums, "draw", lambda mechanism, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate_privately(run.path, epsilon=2.0)
    assert sum(count for _, count in paid(store)) == 1
    assert not list((store / FOLDER).iterdir())


def test_the_same_question_is_paid_for_once_and_any_other_again(run, store, clear):
    first = evaluate_privately(run.path, epsilon=2.0)
    again = evaluate_privately(run.path, epsilon=2.0)
    assert (first.kept, again.kept, again.accuracy) == (False, True, first.accuracy)
    assert again.evaluations == 1
    others = [
        evaluate_privately(run.path, epsilon=1.0),
        evaluate_privately(run.path, epsilon=2.0, delta=1e-7),
        evaluate_privately(run.path, epsilon=2.0, tokens_per_user=8),
    ]
    assert [found.evaluations for found in others] == [2, 3, 4]
    assert others[-1].epsilon_held_out == accounting.epsilon(paid(store), 1e-6)
    for file in (store / FOLDER).iterdir():
        file.unlink()
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 5


def test_users_who_were_trained_on_pay_nothing(run, store, clear):
    ledger = StoreLedger(store / "ledger.jsonl")
    before = ledger.spent()
    evaluate_privately(run.path, epsilon=2.0)
    assert ledger.spent() == before != []


def test_the_kept_answer_has_no_exact_figure(run, store):
    evaluate_privately(run.path, epsilon=2.0)
    (file,) = (store / FOLDER).iterdir()
    kept = json.loads(file.read_text())
    assert set(kept) >= {"weights", "terms", "users", "targets"}
    assert "fingerprint" not in file.read_text()
    file.write_text(file.read_text().replace('"users": ', '"users": 1'))
    with pytest.raises(DamagedRun, match="charged again"):
        evaluate_privately(run.path, epsilon=2.0)


def test_an_answer_without_its_charge_is_refused(run, store, clear, monkeypatch):
    evaluate_privately(run.path, epsilon=2.0)
    monkeypatch.setattr(StoreLedger, "spent_on_held_out", lambda ledger: [])
    with pytest.raises(DamagedRun, match="has 0 charges for the 1 answer like"):
        evaluate_privately(run.path, epsilon=2.0)


def test_two_answers_need_two_charges(run, begun, store, clear):
    """A ledger of before the second would show half of what was released."""
    other = begun("other", run={"seed": 7})
    evaluate_privately(run.path, epsilon=2.0)
    early = {name: (store / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    evaluate_privately(other.path, epsilon=2.0)
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 2
    for name, contents in early.items():
        (store / name).write_bytes(contents)
    with pytest.raises(DamagedRun, match="has 1 charge for the 2 answers"):
        evaluate_privately(run.path, epsilon=2.0)
    with pytest.raises(DamagedRun, match="has 1 charge for the 2 answers"):
        private_accuracy(store, digest(run.load_weights()))


def test_the_same_question_at_the_same_time_is_asked_once(run, store, monkeypatch):
    drawn = []

    def draw(mechanism, rows):
        time.sleep(0.1)  # so that all have asked
        drawn.append(rows)
        return CLEAR

    monkeypatch.setattr(BoundedSums, "draw", draw)
    with ThreadPoolExecutor(4) as several:
        found = list(several.map(lambda _: evaluate_privately(run.path, epsilon=2.0), range(4)))
    assert len(drawn) == 1
    assert sorted(one.kept for one in found) == [False, True, True, True]
    assert {one.evaluations for one in found} == {1}


def test_another_path_to_the_same_people_is_the_same_question(run, store, tmp_path, clear):
    first = evaluate_privately(run.path, epsilon=2.0)
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "release").symlink_to(run.path)
    again = evaluate_privately(tmp_path / "release", tmp_path / "link", epsilon=2.0)
    assert (again.kept, again.evaluations, again.accuracy) == (True, 1, first.accuracy)
    store.rename(tmp_path / "moved")
    assert evaluate_privately(run.path, tmp_path / "moved", epsilon=2.0).kept


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"epsilon": 0.0}, "must be above 0"),
        ({"epsilon": 21.0}, "at most 20"),
        ({"epsilon": 1.0, "tokens_per_user": 17}, "from 1 to 16"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"epsilon": 1.0, "delta": 0.5}, "delta"),
    ],
    ids=str,
)
def test_terms_that_are_none_cost_nothing(run, store, terms, words):
    with pytest.raises(SottoError, match=words):
        evaluate_privately(run.path, **terms)
    assert not paid(store)


def test_a_release_says_the_private_accuracy(run, store, clear, released):
    evaluate_privately(run.path, epsilon=1.0)
    found = evaluate_privately(run.path, epsilon=2.0)
    assert private_accuracy(store, digest(run.load_weights())) == found.accuracy
    assert private_accuracy(store, "another model") is None
    release = released(run)
    statement = json.loads((release / "privacy.json").read_text())
    assert statement["private_accuracy"]["top1"] == 0.15
    assert statement["epsilon_held_out"] == pytest.approx(found.epsilon_held_out, rel=1e-3)
    assert "held_out" not in statement["not_covered"]
    assert (
        "**Private accuracy** on about 400 held-out users (ε = 2 at δ = 1e-6 for each)"
        in (release / "README.md").read_text()
    )


def test_a_delta_that_gives_a_user_away_is_refused(run, store, monkeypatch):
    monkeypatch.setattr(private_evaluation, "coarse_count", lambda users: 600_000)
    with pytest.raises(SottoError, match="about 600,000"):
        evaluate_privately(run.path, epsilon=1.0)
    assert not paid(store)


def test_on_users_who_are_declared_exact_a_private_figure_protects_nobody_and_says_so(store, begun, clear, released):
    """They may be asked for one, and pay. A release has their exact figures, and does not claim the other."""
    declare(store, "exact")
    run = begun()
    assert evaluate_privately(run.path, epsilon=2.0).is_undone
    assert paid(store)
    statement = json.loads((released(run) / "privacy.json").read_text())
    assert "private_accuracy" not in statement
    assert "held_out" in statement["not_covered"]


def test_an_accuracy_with_less_noise_than_it_claims_is_not_verified(run, clear, released):
    evaluate_privately(run.path, epsilon=2.0)
    release = released(run)

    def check():
        return next(check for check in verify_release(release).checks if check.name == "held-out users")

    assert check().result == "passed"
    evidence = read_evidence(release)
    accuracy = evidence.facts.private_accuracy
    terms = replace(accuracy.terms, noise_multiplier=accuracy.terms.noise_multiplier * 0.97)
    facts = replace(evidence.facts, private_accuracy=replace(accuracy, terms=terms))
    (release / "facts.json").write_bytes(files.pretty(files.sealed(facts.to_json())))
    statement = state(replace(evidence, facts=facts))
    (release / "privacy.json").write_bytes(files.pretty(files.sealed(statement.to_json())))
    assert "ε = 2 is claimed, and the noise of the accuracy comes to 2." in check().found


@pytest.mark.parametrize("free", [0, 1_000, 4_200, 6_000], ids=str)
def test_a_full_disk_costs_nothing_or_the_answer_is_kept(run, store, clear, monkeypatch, free):
    with monkeypatch.context() as full:
        FullDisk(free, full)
        with suppress(SottoError):
            evaluate_privately(run.path, epsilon=2.0)
        assert bool(paid(store)) == (free == 6_000)
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 1
    assert [file.suffix for file in (store / FOLDER).iterdir()] == [".json"]


def test_an_answer_that_is_lost_says_what_was_charged(run, clear, monkeypatch):
    def lost(draft, path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(files.os, "replace", lost)
    with pytest.raises(SottoError, match=r"Input/output error\); ε = 2 at δ = 1e-6 was charged for an answer that is"):
        evaluate_privately(run.path, epsilon=2.0)


def test_where_nothing_can_be_written_nobody_is_charged_and_it_says_so(run, store, clear):
    (store / FOLDER).write_text("a file in the place of the folder")
    with pytest.raises(SottoError, match="nobody was charged"):
        evaluate_privately(run.path, epsilon=2.0)
    assert not paid(store)
