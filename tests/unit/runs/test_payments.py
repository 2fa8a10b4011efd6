"""Who pays for a round, without training: sums are a few numbers, and rounds are played by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sottovoce.runs import lease
from sottovoce.runs.budget import Budget
from sottovoce.runs.lease import Lease
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.runs.payments import Origin, Payments, begin_payment, planned_rounds
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian
from sottovoce_evidence.errors import AnotherSum, BudgetExhausted, DamagedRun, SottoError

EVENT = SampledGaussian(1.2, "poisson", 0.25)
DELTA, ROUNDS = 1e-3, 6


class Charges:
    """Rounds that are all alike."""

    repeatable = True

    def __init__(self, event=EVENT):
        self.one = event

    def event(self, round_number, again=False):
        return self.one

    def events(self, rounds, done=0):
        return [(self.one, rounds - done)] if rounds > done else []


class Sum(NamedTuple):
    total: np.ndarray
    weight: np.ndarray
    bits: np.ndarray


def a_sum(number: float) -> Sum:
    return Sum(np.full(3, number), np.float64(2.0), np.zeros(1))


def cost(rounds: int) -> float:
    return accounting.epsilon([(EVENT, rounds)], DELTA, "rdp")


class Runs:
    """Runs on one store. Folders hold what payments keep: secrets and a ledger."""

    def __init__(self, root: Path):
        self.root, self.store = root, root / "store"
        self.store.mkdir()
        self.store_ledger = StoreLedger(self.store / "ledger.jsonl")

    def budget(self, epsilon=None, rounds=ROUNDS, event=EVENT) -> Budget:
        private = not isinstance(event, NonPrivate)
        return Budget(Charges(event), rounds, DELTA, "rdp", private, epsilon)

    def begin(self, name="run", *, seeded=False, **budget) -> Path:
        """A new run, charged to the store for all its planned rounds."""
        run, terms = self.root / name, self.budget(**budget)
        planned = planned_rounds(terms, 1.2)
        secrets = Secrets.seeded(0) if seeded else Secrets.fresh()
        run.mkdir()
        ledger = Ledger.create(run / "ledger.jsonl", {"run": secrets.name(), "planned": planned})
        secrets.save(run / "secrets", b"")
        lease = Lease(run / "secrets", self.store)
        if terms.private:
            lease.announce()
            begin_payment(ledger, self.store_ledger, lease, terms.charges, seeded)
        return run

    def open(self, run: Path, done=0, *, machine="here", reproducible=True, seeded=False, **budget) -> Payments:
        """The payments of a run that goes on after `done` rounds, as after a checkpoint."""
        ledger = Ledger.open(run / "ledger.jsonl")
        secrets = Secrets.load_any(run / "secrets").at(done + 1)
        lineage = ledger.of_round(done)[-1].lineage if done else "the start"
        payments = Payments(
            ledger=ledger,
            store_ledger=self.store_ledger,
            lease=Lease(run / "secrets", self.store),
            secrets=secrets,
            budget=self.budget(**budget),
            planned=ledger.header["planned"],
            lineage=lineage,
            origin=Origin(machine, reproducible, seeded),
        )
        self.notes = payments.settle(done)
        return payments

    def charged(self) -> int:
        return sum(count for _, count in self.store_ledger.spent())


@pytest.fixture
def runs(tmp_path) -> Runs:
    return Runs(tmp_path)


def play(payments: Payments, *rounds: int, sums=a_sum) -> list[bytes]:
    """The noise keys of rounds. Another sum is another attempt, as in `play_rounds`."""
    keys = []
    for number in rounds:
        while True:
            try:
                keys.append(payments.begin(number).charge(EVENT, sums(number)))
                break
            except AnotherSum:
                continue
    return keys


def entries(run: Path) -> list[tuple[int, int]]:
    return [(entry.round, entry.attempt) for entry in Ledger.open(run / "ledger.jsonl").entries]


# One run


def test_a_charge_is_on_disk_before_the_noise_key_is_given(runs):
    run = runs.begin()
    payment = runs.open(run).begin(1)
    assert entries(run) == []  # keys for the cohort cost nothing
    assert len(payment.keys.sampling) == len(payment.keys.local) == 32
    key = payment.charge(EVENT, a_sum(1))
    assert entries(run) == [(1, 0)]
    assert len(key) == 32
    assert payment.name == Ledger.open(run / "ledger.jsonl").entries[0].lineage


def test_no_noise_key_is_given_where_the_ledger_cannot_be_written(runs, monkeypatch):
    payments = runs.open(runs.begin())
    monkeypatch.setattr(Ledger, "spend", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        payments.begin(1).charge(EVENT, a_sum(1))


def test_a_run_is_charged_for_what_it_did_and_its_epsilon_grows(runs):
    run = runs.begin()
    payments = runs.open(run)
    for number in range(1, ROUNDS + 1):
        play(payments, number)
        assert payments.epsilon(number) == pytest.approx(cost(number))
    assert Ledger.open(run / "ledger.jsonl").spent() == [(EVENT, ROUNDS)]
    assert payments.charged_to_store() == runs.charged() == ROUNDS


def test_the_store_is_charged_for_planned_rounds_ahead_and_adds_up_its_runs(runs):
    one = runs.begin("one")
    play(runs.open(one), 1, 2)
    assert runs.charged() == ROUNDS  # stopping early earns nothing back
    play(runs.open(one, 2), 3, 4, 5, 6)
    assert runs.charged() == ROUNDS
    runs.begin("two")
    assert runs.charged() == 2 * ROUNDS


def test_the_same_seed_again_is_charged_to_the_store_again(runs):
    for name in ("one", "two"):
        play(runs.open(runs.begin(name, seeded=True), seeded=True), 1)
    assert runs.charged() == 2 * ROUNDS


def test_a_run_that_promises_nothing_charges_the_store_nothing(runs):
    run = runs.begin(event=NonPrivate())
    payments = runs.open(run, event=NonPrivate())
    payments.begin(1).charge(NonPrivate(), a_sum(1))
    assert not (runs.store / "ledger.jsonl").exists()
    assert payments.epsilon(1) == np.inf
    assert payments.charged_to_store() == 0
    assert entries(run) == [(1, 0)]


def test_names_of_rounds_follow_from_the_rounds_before_and_tell_nothing_of_the_store(runs):
    one, two = runs.begin("one"), runs.begin("two")
    for run in (one, two):
        play(runs.open(run, machine="what a store holds"), 1, 2)
        assert "what a store holds" not in (run / "ledger.jsonl").read_text()
    names = [entry.lineage for run in (one, two) for entry in Ledger.open(run / "ledger.jsonl").entries]
    assert len(set(names)) == 4


# Rounds done again


def test_a_round_done_again_with_the_same_sum_is_the_same_release(runs):
    run = runs.begin()
    first = play(runs.open(run), 1, 2)
    again = play(runs.open(run), 1, 2)
    assert first == again
    assert entries(run) == [(1, 0), (2, 0)]
    assert runs.charged() == ROUNDS


def test_a_round_done_again_with_another_sum_is_paid_again_with_a_cohort_and_noise_of_its_own(runs):
    run = runs.begin()
    payments = runs.open(run)
    keys, noise = payments.begin(1).keys, play(payments, 1)
    payments = runs.open(run)
    assert payments.begin(1).keys == keys  # it may be the same
    with pytest.raises(AnotherSum):
        payments.begin(1).charge(EVENT, a_sum(1.5))
    assert entries(run) == [(1, 0)]  # nothing was given, so nothing is charged yet
    second = payments.begin(1)
    assert second.keys != keys
    assert second.charge(EVENT, a_sum(1.5)) != noise[0]
    assert entries(run) == [(1, 0), (1, 1)]
    assert runs.charged() == ROUNDS + 1


def test_two_sums_never_share_noise_even_where_what_was_released_is_not_known(runs):
    """The tag of the sum is lost: the release cannot be recognised, and counts as one of another sum."""
    run = runs.begin()
    first = play(runs.open(run), 1)
    for path in (run / "secrets").glob("*.sums"):
        path.unlink()
    assert play(runs.open(run), 1) != first
    assert entries(run) == [(1, 0), (1, 1)]


def test_a_sum_that_was_kept_but_not_yet_paid_for_is_paid_for_once(runs, monkeypatch):
    run = runs.begin()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "spend", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            play(runs.open(run), 1)
    play(runs.open(run), 1)
    assert entries(run) == [(1, 0)]
    assert runs.charged() == ROUNDS


@pytest.mark.parametrize("other", [{"machine": "elsewhere"}, {"reproducible": False}], ids=str)
def test_a_round_broken_off_elsewhere_or_never_the_same_is_paid_for_twice(runs, other):
    run = runs.begin()
    first = play(runs.open(run, **({} if "machine" in other else other)), 1, 2)
    payments = runs.open(run, **other)
    again = play(payments, 1, 2, 3)
    assert not set(first) & set(again)
    assert entries(run) == [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0)]
    assert payments.epsilon(3) == pytest.approx(cost(5))
    assert runs.charged() == ROUNDS + 2


def test_a_crash_between_the_two_ledgers_charges_the_store_too_often_not_too_little(runs, monkeypatch):
    run = runs.begin()
    play(runs.open(run), 1)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "spend", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            play(runs.open(run, machine="elsewhere"), 1)
    payments = runs.open(run, machine="elsewhere")
    play(payments, 1)
    assert runs.charged() >= ROUNDS + sum(count for _, count in payments.ledger.repeated())
    # What a crash left without a round counts in the ε of the run.
    assert sum(count for _, count in payments.extra()) == runs.charged() - ROUNDS - 1


# Budget


def test_training_stops_before_the_budget_and_before_a_cohort_is_drawn(runs):
    limit = (cost(4) + cost(5)) / 2
    run = runs.begin(epsilon=limit)
    assert runs.charged() == 4
    payments = runs.open(run, epsilon=limit)
    play(payments, 1, 2, 3)
    assert payments.goes_on(3)
    play(payments, 4)
    assert not payments.goes_on(4)
    with pytest.raises(BudgetExhausted, match="round 5 was not planned"):
        payments.begin(5)
    assert entries(run) == [(number, 0) for number in range(1, 5)]


def test_a_round_done_again_counts_towards_the_budget(runs):
    limit = (cost(4) + cost(5)) / 2
    run = runs.begin(epsilon=limit)
    play(runs.open(run, epsilon=limit), 1)
    payments = runs.open(run, machine="elsewhere", epsilon=limit)
    goes_on = []
    for number in (1, 2, 3):
        play(payments, number)
        goes_on.append(payments.goes_on(number))
    assert goes_on == [True, True, False]
    with pytest.raises(BudgetExhausted, match="round 4 would pass the budget"):
        payments.begin(4)


def test_a_round_that_was_paid_for_may_be_done_again_at_the_end_of_the_budget(runs):
    limit = (cost(1) + cost(2)) / 2
    run = runs.begin(epsilon=limit)
    first = play(runs.open(run, epsilon=limit), 1)
    assert play(runs.open(run, epsilon=limit), 1) == first


def test_a_run_ends_where_it_was_planned_whatever_a_later_version_would_allow(runs):
    run = runs.begin(epsilon=cost(4) * 1.001)
    payments = runs.open(run, epsilon=10 * cost(6))  # a tighter accountant
    play(payments, 1, 2, 3, 4)
    with pytest.raises(BudgetExhausted, match="not planned"):
        payments.begin(5)


def test_a_budget_for_no_round_is_refused_before_anything_is_made(runs):
    with pytest.raises(BudgetExhausted, match="does not allow one round"):
        runs.begin(epsilon=0.01)
    assert not (runs.root / "run").exists()
    assert not (runs.store / "ledger.jsonl").exists()


# Copies of a folder


def test_a_copy_that_goes_on_pays_for_its_rounds_again_and_draws_other_noise(runs):
    one = runs.begin()
    play(runs.open(one), 1, 2)
    copy = shutil.copytree(one, runs.root / "copy")
    first = play(runs.open(one, 2), 3, 4)
    assert runs.notes == []
    payments = runs.open(copy, 2)
    assert "charged to the store again" in runs.notes[0]
    assert runs.charged() == ROUNDS + 4
    keys = payments.begin(3).keys
    assert not set(first) & set(play(payments, 3, 4))
    assert keys != runs.open(one, 4).begin(5).keys
    # Both are releases of one run: its ε counts the rounds of the copy.
    assert payments.epsilon(4) > cost(4)


@pytest.mark.parametrize("when", ["before the charge", "after it"])
def test_a_copy_of_a_run_in_flight_that_goes_on_is_charged_again(runs, when):
    run = runs.begin()
    payments = runs.open(run)
    play(payments, 1)
    if when == "after it":
        play(payments, 2)
    copy = shutil.copytree(run, runs.root / "copy")
    if when == "before the charge":
        play(payments, 2)
    play(payments, 3)
    runs.open(copy, 1)
    assert "charged to the store again" in runs.notes[0]


def test_of_two_copies_that_go_on_at_once_one_stops(runs):
    run = runs.begin()
    payments = runs.open(run)
    play(payments, 1, 2)
    runs.open(shutil.copytree(run, runs.root / "copy"), 2)
    assert runs.notes == []  # nothing tells them apart yet
    with pytest.raises(SottoError, match="this one stops before round 3"):
        play(payments, 3)
    assert entries(run) == [(1, 0), (2, 0)]
    runs.open(run, 2)
    assert "charged to the store again" in runs.notes[0]
    assert runs.charged() == ROUNDS + 4


def test_a_copy_that_would_pass_the_budget_ends_at_its_first_round(runs):
    limit = (cost(6) + cost(7)) / 2
    one = runs.begin(epsilon=limit)
    play(runs.open(one, epsilon=limit), 1, 2)
    copy = shutil.copytree(one, runs.root / "copy")
    play(runs.open(one, 2, epsilon=limit), 3)
    before = runs.charged()
    payments = runs.open(copy, 2, epsilon=limit)
    assert not payments.goes_on(2)
    with pytest.raises(BudgetExhausted, match="would be charged again and pass the budget"):
        payments.begin(3)
    assert runs.charged() == before


def test_a_copy_whose_ledger_is_older_than_its_token_pays(runs):
    """Taken file by file while the run went on: its ledger lacks a round that was released."""
    run = runs.begin()
    payments = runs.open(run)
    play(payments, 1)
    old = (run / "ledger.jsonl").read_bytes(), (run / "ledger.head").read_bytes()
    play(payments, 2)
    (run / "ledger.jsonl").write_bytes(old[0])
    (run / "ledger.head").write_bytes(old[1])
    runs.open(run, 1)
    assert "charged to the store again" in runs.notes[0]


def test_a_crash_while_a_run_is_taken_up_does_not_make_it_a_copy(runs, monkeypatch):
    run = runs.begin()
    play(runs.open(run), 1)
    real, written = lease.write_aside, []

    def crash_at_the_last(path, contents, **options):
        if len(written) == 2:
            raise RuntimeError("crash")
        written.append(path)
        real(path, contents, **options)

    with monkeypatch.context() as patch:
        patch.setattr(lease, "write_aside", crash_at_the_last)
        with pytest.raises(RuntimeError, match="crash"):
            runs.open(run, 1)
    runs.open(run, 1)
    assert runs.notes == []
    assert runs.charged() == ROUNDS


# A store that was restored


@pytest.mark.parametrize("rounds", [2, ROUNDS])
def test_a_run_whose_store_has_lost_its_ledger_is_refused(runs, rounds):
    run = runs.begin()
    play(runs.open(run), *range(1, rounds + 1))
    kept = (runs.store / "ledger.jsonl").read_bytes()
    (runs.store / "ledger.jsonl").unlink()
    with pytest.raises(DamagedRun, match="has no charge, though its people were charged"):
        runs.open(run, rounds)
    (runs.store / "ledger.jsonl").write_bytes(kept)
    runs.open(run, rounds)


def test_a_run_that_its_store_was_not_charged_for_is_refused(runs):
    """Its ledger was put back from before the run, with what belongs to it."""
    runs.store_ledger.charge("another", "training", EVENT, 3)
    kept = {name: (runs.store / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    run = runs.begin()
    for name, contents in kept.items():
        (runs.store / name).write_bytes(contents)
    with pytest.raises(DamagedRun, match="has no charge for this run"):
        runs.open(run)


def test_charges_that_a_restored_store_has_lost_are_made_again(runs):
    run = runs.begin()
    play(runs.open(run), 1, 2)
    kept = {name: (runs.store / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    play(runs.open(run, machine="elsewhere"), 1, 2)
    before = runs.charged()
    for name, contents in kept.items():
        (runs.store / name).write_bytes(contents)
    runs.open(run, 2)
    assert "had lost 2 charges" in runs.notes[0]
    assert runs.charged() >= before


def test_runs_of_one_seed_are_not_taken_for_copies_of_one_another(runs):
    """They share a name: the store counts both, and neither counts the other in its own ε."""
    one, two = (runs.begin(name, seeded=True) for name in ("one", "two"))
    for run in (one, two):
        payments = runs.open(run, seeded=True)
        play(payments, 1)
        assert payments.extra() == ()
        assert payments.epsilon(1) == pytest.approx(cost(1))
    assert runs.charged() == 2 * ROUNDS
