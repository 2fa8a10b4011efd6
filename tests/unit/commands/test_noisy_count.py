"""A noisy number of users: paid for before it is drawn, drawn once."""

from __future__ import annotations

import json
import math

import pytest

from power_cut import FullDisk
from sottovoce.commands import noisy_count
from sottovoce.commands.noisy_count import DELTA, count_users
from sottovoce.data.store import Store
from sottovoce.privacy.histogram import NoisyCount
from sottovoce.runs.ledger import COUNT, StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import DamagedRun, SottoError


@pytest.fixture
def people(store):
    return Store.open(store)


def charges(store):
    return StoreLedger(store / "ledger.jsonl").spent(COUNT)


def test_the_charge_is_on_disk_before_the_noise_is_drawn(people, store, monkeypatch):
    seen = []

    def draw(mechanism, count):
        seen.append(charges(store))
        assert not (store / noisy_count.FILE).exists()
        return count + 5

    monkeypatch.setattr(NoisyCount, "draw", draw)
    found = count_users(people)
    ((event, count),) = seen[0]
    assert found.users == people.users + 5
    assert count == 1
    assert event == SampledGaussian(found.noise_std, "poisson", user_rate=1.0)
    assert accounting.epsilon([(event, 1)], DELTA) <= found.epsilon == 0.1


def test_a_draw_that_fails_stays_charged_and_shows_nothing(people, store, monkeypatch):
    monkeypatch.setattr(NoisyCount, "draw", lambda mechanism, count: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        count_users(people)
    assert len(charges(store)) == 1
    assert not (store / noisy_count.FILE).exists()
    monkeypatch.undo()
    count_users(people)
    assert sum(count for _, count in charges(store)) == 2


def test_the_number_is_drawn_once_and_kept(people, store):
    first = count_users(people, 0.5)
    assert [count_users(people, epsilon) for epsilon in (0.5, 0.1)] == [first, first]
    assert sum(count for _, count in charges(store)) == 1


def test_a_number_that_was_deleted_is_charged_again(people, store):
    count_users(people)
    (store / noisy_count.FILE).unlink()
    count_users(people)
    assert sum(count for _, count in charges(store)) == 2


def test_the_kept_number_has_noise_and_says_nothing_else(people, store):
    found = count_users(people, 1.0)
    kept = json.loads((store / noisy_count.FILE).read_text())
    assert set(kept) == {"users", "epsilon", "delta", "noise_std", "checksum"}
    assert kept["users"] == found.users


def test_the_number_is_at_least_one(people, monkeypatch):
    monkeypatch.setattr(NoisyCount, "draw", lambda mechanism, count: -30)
    assert count_users(people).users == 1


def test_a_number_without_its_charge_and_a_changed_number_are_refused(people, store):
    count_users(people)
    path = store / noisy_count.FILE
    kept = path.read_text()
    path.write_text(kept.replace('"users": ', '"users": 1'))
    with pytest.raises(DamagedRun, match="charged again"):
        count_users(people)
    path.write_text(kept)
    for name in ("ledger.jsonl", "ledger.head"):
        (store / name).unlink()
    with pytest.raises(DamagedRun, match="no charge"):
        count_users(people)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 11.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_costs_nothing(people, store, epsilon):
    with pytest.raises(SottoError, match="must be above 0"):
        count_users(people, epsilon)
    assert not charges(store)


def test_a_full_disk_costs_nothing(people, store, monkeypatch):
    with monkeypatch.context() as full:
        FullDisk(1_000, full)  # room for the charge, and not for the number
        with pytest.raises(SottoError, match="nobody was charged"):
            count_users(people)
    count_users(people)
    assert sum(count for _, count in charges(store)) == 1
