"""Before paying: what it costs to train several times and release the best model alone."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import BestOfRuns, Spent
from sottovoce_evidence.accounting.selection import SHAPES, runs_at_most
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts

CONDITIONS = (
    "the number of runs is drawn at random from the distribution, before the first of them, and stays secret",
    "settings that are tried are drawn for each run anew, from a list that does not depend on the text",
    "the score follows from what a run releases, and text of others: public text, or people who are held out",
    "only the best run is looked at and released: no model, score, curve or number of the others",
)


@dataclass(frozen=True)
class Choosing(Facts):
    """One way to draw the number of runs, and ε of the model that is chosen: by RDP."""

    distribution: str
    epsilon: float
    most_runs: int  # with a chance of 95 %


@dataclass(frozen=True)
class Selection(Facts):
    """The best of `expected_runs` private runs on average, at the δ of the plan."""

    expected_runs: float
    delta: float
    relation: str | None
    epsilon_one: float  # of one run, by the accountant of the plan
    epsilon_one_rdp: float
    epsilon_all: float  # if every one of so many runs is looked at: they compose
    accountant: str  # of the first and the last
    choosing: tuple[Choosing, ...]
    conditions: tuple[str, ...] = CONDITIONS

    def __repr__(self) -> str:
        least = min(self.choosing, key=lambda one: one.epsilon)
        cost, one, every = map(accounting.rounded_up, (least.epsilon, self.epsilon_one, self.epsilon_all))
        best = f"best of {self.expected_runs:g} runs, ε = {cost} ({least.distribution})"
        return f"<Selection: {best}, one run {one}, all {every}>"


def plan_selection(run: Spent, expected_runs: float, delta: float, accountant: str | None = None) -> Selection:
    """What the best of several runs costs, beside one run, and beside all of them.

    Args:
        run: what one run is charged: events, and how often each.
        expected_runs: how many runs there are on average; their number is drawn at random.
        delta: at which ε is computed.
        accountant: of one run and of all; choosing is accounted by RDP.
    """
    accountant = accountant or accounting.DEFAULT_ACCOUNTANT
    if expected_runs != int(expected_runs):
        raise SottoError(f"--select {expected_runs:g} must be a whole number of runs, to compare with as many")
    found = []
    for distribution in SHAPES:
        event = BestOfRuns(float(expected_runs), distribution, tuple(run))
        cost = accounting.epsilon([(event, 1)], delta, "rdp")
        found.append(Choosing(distribution, cost, runs_at_most(expected_runs, distribution)))
    every = [(event, int(expected_runs) * count) for event, count in run]
    return Selection(
        expected_runs=float(expected_runs),
        delta=delta,
        relation=accounting.relation_of(event for event, _ in run),
        epsilon_one=accounting.epsilon(run, delta, accountant),
        epsilon_one_rdp=accounting.epsilon(run, delta, "rdp"),
        epsilon_all=accounting.epsilon(every, delta, accountant),
        accountant=accountant,
        choosing=tuple(found),
    )
