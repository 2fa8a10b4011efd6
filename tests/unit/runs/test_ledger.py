from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor

import pytest

from sottovoce.runs import hash_chain as chain_module
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.ledger import EVALUATION, Entry, Ledger, StoreLedger, lineage, read_ledger
from sottovoce_evidence.accounting import HeldOutSums, NonPrivate, SampledGaussian
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.ledger import chained

EVENT = SampledGaussian(1.0, "poisson", 0.01)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.jsonl", {"run": "a", "recipe": "b"})


def play(ledger: Ledger, round_number: int, parent: str, fingerprint: str) -> tuple[str, int]:
    """Pay for a round as a run does: the lineage it leaves, and the attempt it was."""
    attempt = ledger.attempt(round_number, parent, fingerprint)
    entry = Entry(round_number, attempt, EVENT, lineage(parent, fingerprint, attempt))
    if not ledger.knows(round_number, entry.lineage):
        ledger.spend(entry)
    return entry.lineage, attempt


def test_what_is_spent_is_on_disk_before_spend_returns(ledger, monkeypatch):
    synced = []
    monkeypatch.setattr(chain_module.os, "fsync", lambda descriptor: synced.append(descriptor))
    play(ledger, 1, "", "machine")
    assert synced, "the entry was not flushed to disk"
    assert Ledger.open(ledger.path).spent() == [(EVENT, 1)]


def test_a_round_done_again_to_the_bit_is_one_release(ledger):
    first, _ = play(ledger, 1, "", "machine")
    play(ledger, 2, first, "machine")
    again = Ledger.open(ledger.path)  # as after a crash: round 2 is redone from the state after round 1
    assert play(again, 2, first, "machine")[1] == 0
    assert again.spent() == [(EVENT, 2)]
    assert ledger.path.read_text().count("\n") == 3


def test_a_round_done_again_elsewhere_is_a_second_release(ledger):
    first, _ = play(ledger, 1, "", "machine")
    play(ledger, 2, first, "machine")
    again = Ledger.open(ledger.path)
    assert play(again, 2, first, "another machine")[1] == 1
    assert again.spent() == [(EVENT, 3)]


def test_coming_back_to_the_first_machine_is_not_coming_back_to_the_first_history(ledger):
    """Round 3 after a different round 2 has another sum: its old noise must not be used again."""
    first, _ = play(ledger, 1, "", "A")
    second, _ = play(ledger, 2, first, "A")
    play(ledger, 3, second, "A")
    elsewhere = Ledger.open(ledger.path)
    play(elsewhere, 2, first, "B")
    back = Ledger.open(ledger.path)
    # A again, from round 1: its own round 2 is known to the bit, and so is what follows from it ...
    second_again, attempt = play(back, 2, first, "A")
    assert (second_again, attempt) == (second, 0)
    assert play(back, 3, second_again, "A")[1] == 0
    # ... but after B's round 2 the round 3 of A's history is another one.
    after_b = lineage(first, "B", 1)
    assert play(back, 3, after_b, "A")[1] == 1


def test_rounds_after_one_that_has_no_line_do_not_count_as_paid_for(ledger):
    """A run at round 3 whose ledger has lost the line of round 2 is refused by this number."""
    play(ledger, 1, "", "machine")
    play(ledger, 3, "x", "machine")
    assert Ledger.open(ledger.path).rounds == 1


def test_a_torn_last_line_is_cut_off(ledger):
    play(ledger, 1, "", "machine")
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"round": 2, "atte')
    assert Ledger.open(ledger.path).rounds == 1
    assert ledger.path.read_bytes() == whole


def test_a_damaged_line_is_never_skipped(ledger):
    play(ledger, 1, "", "machine")
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
    line = {"round": 1, "attempt": 0, "event": {"kind": "from the future"}, "lineage": "x"}
    Chain.read(ledger.path).append(line)
    with pytest.raises(SottoError, match="from the future"):
        Ledger.open(ledger.path)


def test_a_ledger_is_never_begun_twice(ledger):
    with pytest.raises(FileExistsError):
        Ledger.create(ledger.path, {})


def test_the_ledger_of_a_store_adds_up_all_runs(tmp_path):
    store = StoreLedger(tmp_path / "ledger.jsonl")
    assert store.spent() == []
    other = SampledGaussian(2.0, "poisson", 0.05)
    store.charge("one", "training", EVENT, 100)
    store.charge("two", "training", other, 50)
    store.charge("two", "a round done again", other, 1)
    assert dict(StoreLedger(store.path).spent()) == {EVENT: 100, other: 51}


def test_held_out_users_have_a_total_of_their_own(tmp_path):
    store, sums = StoreLedger(tmp_path / "ledger.jsonl"), HeldOutSums(2.0, 100)
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
    for number, event in enumerate(events, 1):
        ledger.spend(Entry(number, 0, event, "x"))
    assert [entry.event for entry in Ledger.open(ledger.path).entries] == events
