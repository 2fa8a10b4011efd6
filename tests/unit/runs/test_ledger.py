from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor

import pytest

from sottovoce.runs import hash_chain as chain_module
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.ledger import EVALUATION, NONE, Commit, FellBehind, Ledger, StoreLedger, read_ledger
from sottovoce_evidence.accounting import GaussianRelease, NonPrivate, SampledGaussian
from sottovoce_evidence.accounting.events import HELD_OUT
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.ledger import chained

EVENT = SampledGaussian(1.0, "poisson", 0.01)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.jsonl", {"run": "a", "recipe": "b"})


def test_what_is_spent_is_on_disk_before_spend_returns(ledger, monkeypatch):
    synced = []
    monkeypatch.setattr(chain_module.os, "fsync", lambda descriptor: synced.append(descriptor))
    ledger.spend([EVENT, EVENT], 1)
    assert synced, "the lines were not flushed to disk"
    assert Ledger.open(ledger.path).spent() == [(EVENT, 2)]


def test_a_round_has_one_line_however_often_it_is_done(ledger):
    ledger.spend([EVENT, EVENT], 1)
    again = Ledger.open(ledger.path)  # as after a crash: round 2 is done again
    again.spend([EVENT, EVENT], 2)
    assert Ledger.open(ledger.path).spent() == again.spent() == [(EVENT, 3)]


def test_two_processes_read_what_the_other_wrote(ledger):
    other = Ledger.open(ledger.path)
    ledger.start(0)
    other.start(0)
    ledger.spend([EVENT], 1)
    other.spend([EVENT, EVENT], 1)
    assert (Ledger.open(ledger.path).rounds, other.starts, ledger.starts) == (2, 2, 2)


def test_a_ledger_that_shrank_under_a_process_takes_no_more(ledger):
    """A tool that puts files back: what was charged since would be lost unseen."""
    ledger.spend([EVENT], 1)
    older = {path: path.read_bytes() for path in (ledger.path, ledger.path.with_suffix(".head"))}
    ledger.spend([EVENT], 2)
    for path, contents in older.items():
        path.write_bytes(contents)
    with pytest.raises(DamagedRun, match="was replaced, or lost lines, while a process used it"):
        ledger.spend([EVENT], 3)


def test_a_ledger_that_lacks_the_line_of_a_round_is_refused(ledger):
    ledger.spend([EVENT], 1)
    Chain.read(ledger.path).append({"round": 3, "event": EVENT.to_json()})
    with pytest.raises(DamagedRun, match="round 3 follows round 1"):
        Ledger.open(ledger.path)


def test_starts_and_rounds_that_were_asked_are_counted(ledger):
    ledger.start(0)
    assert ledger.ask(1)
    assert not Ledger.open(ledger.path).ask(1)  # a process that ended asked
    ledger.spend([EVENT], 1)
    ledger.start(1)
    found = Ledger.open(ledger.path)
    assert (found.starts, found.asked, found.rounds) == (2, {1}, 1)


def test_a_checkpoint_is_committed_once_after_the_one_before_it(tmp_path):
    store, later, ran = StoreLedger(tmp_path / "ledger.jsonl"), Commit(4, "b"), []
    store.commit("one", Commit(0, "a"), NONE, lambda: ran.append(0))
    store.commit("two", Commit(0, "x"), NONE, lambda: ran.append(0))
    store.commit("one", later, Commit(0, "a"), lambda: ran.append(4))
    for parent in (NONE, Commit(0, "a"), Commit(4, "x")):
        with pytest.raises(FellBehind, match="to round 4"):
            StoreLedger(store.path).commit("one", Commit(8, "c"), parent, lambda: ran.append(8))
    assert ran == [0, 0, 4]  # nothing is done first for one that is refused
    assert StoreLedger(store.path).commits("one") == [Commit(0, "a"), later]
    assert store.spent() == []  # a commit charges nothing


def test_the_lines_of_rounds_are_written_before_the_commit(tmp_path):
    store = StoreLedger(tmp_path / "ledger.jsonl")
    with pytest.raises(ZeroDivisionError):
        store.commit("one", Commit(0, "a"), NONE, lambda: 1 / 0)
    assert store.commits("one") == []


def test_a_torn_last_line_is_cut_off(ledger):
    ledger.spend([EVENT], 1)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"round": 2, "even')
    assert Ledger.open(ledger.path).rounds == 1
    assert ledger.path.read_bytes() == whole


def test_a_damaged_line_is_never_skipped(ledger):
    ledger.spend([EVENT], 1)
    lines = ledger.path.read_bytes().split(b"\n")
    ledger.path.write_bytes(b"\n".join([lines[0], b"garbage", *lines[1:]]))
    with pytest.raises(DamagedRun, match="line 2"):
        Ledger.open(ledger.path)


@pytest.mark.parametrize("contents", [b"", chained([{"round": 1}])], ids=["empty", "no header"])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, contents):
    (tmp_path / "ledger.jsonl").write_bytes(contents)
    with pytest.raises(DamagedRun, match=r"does not begin like the ledger of a run.* put it back"):
        Ledger.open(tmp_path / "ledger.jsonl")


def test_an_unknown_event_is_refused_not_ignored(ledger):
    line = {"round": 1, "event": {"kind": "from the future"}}
    Chain.read(ledger.path).append(line)
    with pytest.raises(SottoError, match="from the future"):
        Ledger.open(ledger.path)


def test_the_ledger_of_a_store_adds_up_all_runs(tmp_path):
    store = StoreLedger(tmp_path / "ledger.jsonl")
    assert store.spent() == []
    other = SampledGaussian(2.0, "poisson", 0.05)
    store.charge("one", "training", EVENT, 100)
    store.charge("two", "training", other, 50)
    store.charge("two", "training", other, 1)
    assert dict(StoreLedger(store.path).spent()) == {EVENT: 100, other: 51}


def test_held_out_users_have_a_total_of_their_own(tmp_path):
    store, sums = StoreLedger(tmp_path / "ledger.jsonl"), GaussianRelease(2.0, people=HELD_OUT)
    store.charge("one", "training", EVENT, 100)
    store.charge(EVALUATION, "private evaluation", sums, 1)
    store.charge(EVALUATION, "private evaluation", sums, 1)
    assert store.spent() == [(EVENT, 100)]
    assert store.spent_on_held_out() == [(sums, 2)]
    found = read_ledger(store.path)
    assert (found.spent, found.held_out) == ([(EVENT, 100)], [(sums, 2)])


def test_a_stores_ledger_that_cannot_be_read_takes_no_more(tmp_path):
    store = StoreLedger(tmp_path / "ledger.jsonl")
    store.path.write_text('garbage\n{"torn')
    with pytest.raises(DamagedRun, match="line 1"):
        store.charge("one", "training", EVENT, 1)


def test_whoever_only_reads_the_ledger_of_a_store_leaves_a_line_that_has_no_end_yet(tmp_path):
    """Another run may be writing it, and its charge would be cut off. Who writes next, alone, cuts it off."""
    store = StoreLedger(tmp_path / "ledger.jsonl")
    store.charge("one", "training", EVENT, 1)
    with open(store.path, "ab") as other:
        other.write(b'{"run": "two"')
    assert store.spent() == [(EVENT, 1)]
    assert store.path.read_bytes().endswith(b'{"run": "two"')
    store.charge("three", "training", EVENT, 2)
    assert store.spent() == [(EVENT, 3)]


def test_two_runs_do_not_write_the_stores_ledger_at_once(tmp_path):
    store = StoreLedger(tmp_path / "ledger.jsonl")
    store.charge("one", "training", EVENT, 1)
    with open(store.path, "ab") as other, ThreadPoolExecutor() as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(store.charge, "two", "training", EVENT, 1)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.result(timeout=10)
    assert store.spent() == [(EVENT, 2)]


def test_events_come_back_as_they_were_written(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", {})
    events = [EVENT, SampledGaussian(0.5, "fixed", 0.1, cohort=10, users=100), NonPrivate()]
    ledger.spend(events, 1)
    assert Ledger.open(ledger.path).events == events
