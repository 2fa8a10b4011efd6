from __future__ import annotations

import math

import pytest

from sottovoce.runs.budget import Budget
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian, total_of

EVENT, LATER = SampledGaussian(1.2, "poisson", 0.25), SampledGaussian(0.9, "poisson", 0.25)


class Plan:
    """Rounds of `EVENT`, and from round 4 on of `LATER` if asked. Of `every` rounds one is charged."""

    def __init__(self, changes: bool = False, every: int = 1):
        self.changes, self.every = changes, every

    def event(self, round_number):
        return LATER if self.changes and round_number > 3 else EVENT

    def events(self, rounds):
        charged = range(1, rounds + 1, self.every)
        return list(total_of([(self.event(number), 1) for number in charged]).items())


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("limit", [2.0, 2.6])
def test_the_hard_stop_is_exact(accountant, limit):
    wanted = max(n for n in range(1, 41) if accounting.epsilon([(EVENT, n)], 1e-3, accountant) <= limit)
    budget = Budget(Plan(), 40, 1e-3, accountant, True, limit)
    assert budget.rounds_allowed() == wanted < 40
    assert budget.spent(wanted) <= limit < budget.spent(wanted + 1)


@pytest.mark.parametrize("plan", [Plan(), Plan(changes=True), Plan(every=3)], ids=["alike", "changes", "covered"])
def test_epsilon_of_some_rounds_is_that_of_their_charges(plan):
    budget = Budget(plan, 6, 1e-3, "rdp", True)
    for rounds in range(7):
        expected = accounting.epsilon(plan.events(rounds), 1e-3, "rdp")
        assert budget.spent(rounds) == pytest.approx(expected, rel=1e-6)


def test_what_was_charged_before_counts():
    budget = Budget(Plan(), 6, 1e-3, "rdp", True, before=((LATER, 1),))
    assert budget.spent(0) == pytest.approx(accounting.epsilon([(LATER, 1)], 1e-3, "rdp"))
    assert budget.spent(5) == pytest.approx(accounting.epsilon([(LATER, 1), (EVENT, 5)], 1e-3, "rdp"))


def test_without_a_promise_any_round_is_infinite_and_all_are_allowed():
    budget = Budget(Plan(), 6, 1e-3, "rdp", False, 1.0)
    assert budget.limit == math.inf
    assert (budget.spent(0), budget.spent(1)) == (0, math.inf)
    assert budget.rounds_allowed() == 6
