"""What is planned for the best of several runs is what its event costs, between one run and all of them."""

from __future__ import annotations

import pytest

from sottovoce.planning.plan import make_plan
from sottovoce.planning.selection import plan_selection
from sottovoce_evidence.accounting import BestOfRuns, SampledGaussian, epsilon
from sottovoce_evidence.errors import SottoError

RUN = ((SampledGaussian(1.2, "poisson", 1.0), 4),)  # everybody joins: exact, and quick


def test_it_lies_between_one_run_and_all_of_them():
    found = plan_selection(RUN, 8, 1e-6)
    assert found.epsilon_one == epsilon(RUN, 1e-6)
    assert found.epsilon_all == epsilon([(RUN[0][0], 32)], 1e-6)
    assert found.epsilon_one < found.epsilon_one_rdp < found.epsilon_all
    for one in found.choosing:
        event = BestOfRuns(8.0, one.distribution, RUN)
        assert one.epsilon == epsilon([(event, 1)], 1e-6, "rdp")
        assert found.epsilon_one_rdp < one.epsilon < found.epsilon_all
        assert one.most_runs > 8
    assert "best of 8 runs" in repr(found)


def test_a_plan_knows_what_a_run_is_charged():
    made = make_plan(users=100, cohort=100, rounds=4, delta=1e-6, noise_multiplier=1.2)
    assert tuple(made.spent) == RUN


@pytest.mark.parametrize(("runs", "words"), [(2.5, "whole number"), (1, "above 1"), (0, "above 1")])
def test_a_number_of_runs_that_is_none_is_refused(runs, words):
    with pytest.raises(SottoError, match=words):
        plan_selection(RUN, runs, 1e-6)
