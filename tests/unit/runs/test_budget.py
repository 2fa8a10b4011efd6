from __future__ import annotations

import math

import pytest

from sottovoce.runs.budget import Budget
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Covered, NonPrivate, SampledGaussian, total_of

EVENT, LATER = SampledGaussian(1.2, "poisson", 0.25), SampledGaussian(0.9, "poisson", 0.25)


class Plan:
    """Rounds of `EVENT`, and from round 4 on of `LATER` if asked."""

    def __init__(self, changes: bool = False):
        self.changes = changes

    def event(self, round_number, again=False):
        return LATER if self.changes and round_number > 3 else EVENT

    def events(self, rounds, done=0):
        return list(total_of([(self.event(number), 1) for number in range(done + 1, rounds + 1)]).items())


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("limit", [2.0, 2.6])
def test_the_hard_stop_is_exact(accountant, limit):
    wanted = max(n for n in range(1, 41) if accounting.epsilon([(EVENT, n)], 1e-3, accountant) <= limit)
    budget = Budget(Plan(), 40, 1e-3, accountant, True, limit)
    assert budget.rounds_allowed() == wanted < 40
    assert budget.allows([(EVENT, wanted)])
    assert not budget.allows([(EVENT, wanted + 1)])


def test_epsilon_is_that_of_the_charges_whatever_their_order():
    budget = Budget(Plan(changes=True), 6, 1e-3, "rdp", True)
    for charged in ([(EVENT, 3), (LATER, 2)], [(LATER, 2), (EVENT, 3)], [(EVENT, 4), (LATER, 1)], [(LATER, 1)]):
        assert budget.spent(charged) == pytest.approx(accounting.epsilon(charged, 1e-3, "rdp"))


def test_what_was_charged_before_counts():
    budget = Budget(Plan(), 6, 1e-3, "rdp", True, before=((LATER, 1),))
    more = budget.counting([(EVENT, 2)])
    assert budget.spent([]) == pytest.approx(accounting.epsilon([(LATER, 1)], 1e-3, "rdp"))
    assert more.spent([(EVENT, 3)]) == pytest.approx(accounting.epsilon([(LATER, 1), (EVENT, 5)], 1e-3, "rdp"))
    assert more.rounds_allowed() == 6


def test_rounds_done_again_leave_room_for_fewer():
    limit = accounting.epsilon([(EVENT, 5)], 1e-3, "rdp") * 1.0001
    budget = Budget(Plan(), 6, 1e-3, "rdp", True, limit)
    assert budget.rounds_allowed() == 5
    assert budget.rounds_allowed(5, 2, [(EVENT, 2)]) == 3
    assert budget.rounds_allowed(5, 5, [(EVENT, 2)]) == 5  # they are done


def test_a_round_that_others_cover_costs_nothing_more():
    budget = Budget(Plan(), 6, 1e-3, "rdp", True)
    assert budget.spent([(EVENT, 2), (Covered(1.2), 9)]) == pytest.approx(budget.spent([(EVENT, 2)]))


def test_without_a_promise_any_round_is_infinite_and_all_are_allowed():
    budget = Budget(Plan(), 6, 1e-3, "rdp", False, 1.0)
    assert budget.limit == math.inf
    assert budget.spent([]) == 0
    assert budget.spent([(NonPrivate(), 1)]) == math.inf
    assert budget.rounds_allowed() == 6
