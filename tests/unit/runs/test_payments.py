"""Who pays for a round, and when it is committed, without training: rounds are played by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.budget import Budget
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import FellBehind, Ledger, StoreLedger
from sottovoce.runs.payments import Payments, begin_run, commits_of, planned_rounds
from sottovoce.runs.secrets import Secrets, new_name
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian
from sottovoce_evidence.errors import BudgetExhausted, DamagedRun

EVENT = SampledGaussian(1.2, "poisson", 0.25)
DELTA, ROUNDS = 1e-3, 6


class Charges:
    """Rounds that are all alike."""

    def __init__(self, event=EVENT):
        self.one = event

    def event(self, round_number):
        return self.one

    def events(self, rounds):
        return [(self.one, rounds)]


def made(number: int) -> Checkpoint:
    return Checkpoint(number, {"w": np.full(3, number, np.float32)}, {})


class Runs:
    """Runs on one store. Folders hold what payments keep: secrets, checkpoints and a ledger."""

    def __init__(self, root: Path):
        self.root, self.store = root, root / "store"
        self.store.mkdir()
        self.people = StoreLedger(self.store / "ledger.jsonl")

    def budget(self, epsilon=None, rounds=ROUNDS, event=EVENT) -> Budget:
        return Budget(Charges(event), rounds, DELTA, "rdp", not isinstance(event, NonPrivate), epsilon)

    def make(self, name="run", **budget) -> RunFolder:
        """The folder of a run that nobody paid for yet."""
        run = RunFolder(self.root / name)
        run.path.mkdir()
        Ledger.create(run.ledger_file, {"run": new_name(), "planned": planned_rounds(self.budget(**budget), 1.2)})
        start = replace(made(0), facts=Secrets.fresh().save(run.secrets))
        checkpoints.save_draft(run.checkpoints, start)
        return run

    def open(self, run: RunFolder, **budget) -> Payments:
        """The payments of a run that goes on from its last checkpoint."""
        ledger, terms, people = Ledger.open(run.ledger_file), self.budget(**budget), StoreLedger(self.people.path)
        if not commits_of(ledger, people, private=terms.private):
            begin_run(run, ledger, people, terms)
        commits = commits_of(ledger, people, private=terms.private)
        saved = checkpoints.open_committed(run, commits)
        secrets = Secrets.of(run.secrets, saved.facts, is_seeded=False)
        return Payments(run, ledger, people, secrets, terms, ledger.header["planned"], commits[-1])

    def charged(self) -> int:
        return sum(count for _, count in self.people.spent())


@pytest.fixture
def runs(tmp_path) -> Runs:
    return Runs(tmp_path)


def play(payments: Payments, *rounds: int, commit: bool = True) -> list[bytes]:
    """The noise keys of rounds, which one checkpoint holds."""
    keys = [payments.begin(number).charge(EVENT) for number in rounds]
    if commit:
        payments.commit(made(rounds[-1]))
    return keys


def rounds_in(run: RunFolder) -> int:
    return Ledger.open(run.ledger_file).rounds


def test_the_lines_of_rounds_are_on_disk_when_their_checkpoint_is_committed_and_not_before(runs):
    run = runs.make()
    payments = runs.open(run)
    play(payments, 1, 2, 3, commit=False)
    assert rounds_in(run) == 0
    payments.commit(made(3))
    assert rounds_in(run) == 3
    assert runs.people.commits(payments.ledger.run)[-1] == payments.committed
    assert checkpoints.newest(run.checkpoints).round == 3


def test_a_run_is_charged_once_for_all_its_planned_rounds(runs):
    run = runs.make()
    for _ in range(3):
        payments = runs.open(run)
        assert runs.charged() == ROUNDS
    play(payments, 1, 2)
    runs.open(run)
    runs.open(runs.make("other"))
    assert runs.charged() == 2 * ROUNDS
    assert payments.epsilon(2) == pytest.approx(accounting.epsilon([(EVENT, 2)], DELTA, "rdp"))


def test_a_stretch_that_was_not_committed_is_done_again_with_the_same_users_and_other_noise(runs):
    run = runs.make()
    first = runs.open(run)
    play(first, 1, 2)
    before, noise = [first.begin(number).keys for number in (3, 4)], play(first, 3, 4, commit=False)
    again = runs.open(run)  # as after a crash
    assert [again.begin(number).keys for number in (3, 4)] == before
    assert not set(play(again, 3, 4)) & set(noise)
    assert rounds_in(run) == 4
    assert again.begin(3).keys not in before  # the next stretch has keys of its own


def test_where_the_owner_stops_the_keys_of_the_stretch_stay(runs):
    """A cohort that crashed would be drawn anew: released rounds would have other cohorts than are charged."""
    run = runs.make()
    payments = runs.open(run)
    ahead = payments.begin(3).keys
    payments.begin(1).charge(EVENT)
    payments.commit(made(1), declared=False)
    assert payments.begin(3).keys == runs.open(run).begin(3).keys == ahead
    play(payments, 2)
    assert payments.begin(3).keys != ahead


def test_lines_that_a_crash_left_without_a_checkpoint_are_not_written_twice(runs, monkeypatch):
    run = runs.make()
    payments = runs.open(run)
    with monkeypatch.context() as broken:
        broken.setattr("sottovoce.runs.ledger._line_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            play(payments, 1, 2, 3)
    assert rounds_in(run) == 3
    again = runs.open(run)
    assert again.committed.round == 0
    play(again, 1, 2)
    play(again, 3, 4)
    assert rounds_in(run) == 4


def test_a_checkpoint_that_was_committed_and_has_no_name_yet_gets_it(runs, monkeypatch):
    run = runs.make()
    payments = runs.open(run)
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "give_name", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            play(payments, 1, 2)
    again = runs.open(run)
    assert again.committed.round == 2
    assert checkpoints.newest(run.checkpoints).round == 2
    play(again, 3)


def test_what_is_shown_of_a_round_waits_for_its_commit_and_is_not_shown_without_one(runs):
    run, shown = runs.make(), []
    one, other = runs.open(run), runs.open(run)
    for payments, name in ((one, "one"), (other, "other")):
        payment = payments.begin(1)
        payment.once_committed(lambda name=name: shown.append((name, rounds_in(run))))
        payment.charge(EVENT)
    assert not shown
    one.commit(made(1))
    with pytest.raises(FellBehind):
        other.commit(made(1))
    play(one, 2)
    assert shown == [("one", 1)]


@pytest.mark.parametrize("event", [EVENT, NonPrivate()], ids=["private", "not private"])
def test_of_two_processes_one_commits(runs, event):
    run = runs.make(event=event)
    one, other = runs.open(run, event=event), runs.open(run, event=event)
    play(one, 1)
    with pytest.raises(FellBehind, match="went on, to round 1: this one ends"):
        play(other, 1, 2)
    assert checkpoints.newest(run.checkpoints).round == 1
    play(one, 2)
    assert rounds_in(run) == 2


def test_of_two_copies_one_goes_on(runs):
    run = runs.make()
    play(runs.open(run), 1)
    copy = RunFolder(runs.root / "copy")
    shutil.copytree(run.path, copy.path)
    late = runs.open(copy)
    play(runs.open(run), 2)
    late.begin(2).charge(EVENT)
    with pytest.raises(FellBehind):
        late.commit(Checkpoint(2, {"w": np.full(3, 2.5, np.float32)}, {}))  # of other noise
    assert not list(copy.checkpoints.glob("*.draft"))  # a second result of round 2
    assert len(list(copy.secrets.glob("*.key"))) == 1
    with pytest.raises(DamagedRun, match=r"fell behind: it is a copy.* start another run from its model"):
        runs.open(copy)


def test_a_store_whose_ledger_is_older_than_the_run_is_refused(runs):
    run = runs.make()
    play(runs.open(run), 1)
    older = {path: path.read_bytes() for path in runs.store.iterdir()}
    play(runs.open(run), 2)
    for path, contents in older.items():
        path.write_bytes(contents)
    with pytest.raises(DamagedRun, match="or the store's ledger is older than the run"):
        runs.open(run)


def test_a_run_that_the_stores_ledger_does_not_know_is_refused(runs):
    run = runs.make()
    play(runs.open(run), 1)
    for path in runs.store.iterdir():
        path.unlink()
    with pytest.raises(DamagedRun, match="has no charge for this run, which has done rounds"):
        runs.open(run)


def test_no_round_begins_that_was_not_planned(runs):
    limit = accounting.epsilon([(EVENT, 2)], DELTA, "rdp") * 1.0001
    payments = runs.open(runs.make(epsilon=limit), epsilon=limit)
    play(payments, 1, 2)
    with pytest.raises(BudgetExhausted, match="round 3 was not planned"):
        payments.begin(3)
    with pytest.raises(BudgetExhausted, match="does not allow one round"):
        runs.make("other", epsilon=0.01)


def test_the_state_of_the_noise_lies_with_the_secrets_and_is_named_in_the_checkpoint(runs):
    run = runs.make()
    payments, state = runs.open(run), {"0000": np.arange(64.0)}
    payments.begin(1).charge(EVENT)
    payments.commit(made(1), state)
    saved = checkpoints.newest(run.checkpoints)
    found = payments.secrets.read_noise(run.secrets, saved.facts)
    np.testing.assert_array_equal(found["0000"], state["0000"])
    play(payments, 2)
    assert not list(run.secrets.glob("*.noise"))
