from __future__ import annotations

import pytest

from sottovoce.papers.mcmahan2018.trials import TABLE_2, TABLE_2_DELTA, TABLE_2_ROUNDS
from sottovoce.planning.projection import cohort_for, project
from sottovoce_evidence.errors import SottoError


@pytest.mark.parametrize("row", TABLE_2, ids=str)
def test_the_cohorts_and_the_epsilons_of_table_2_follow_from_sigma(row):
    sigma, clip_norm, users, cohort, printed, _ = row
    made = project(
        noise_std=sigma, clip_norm=clip_norm, users=users, rounds=TABLE_2_ROUNDS, delta=TABLE_2_DELTA
    )  # fmt: skip
    assert made.cohort == cohort
    assert made.epsilons["moments"] == pytest.approx(printed, abs=6e-4)
    assert made.epsilons["pld"] < made.epsilons["rdp"] < made.epsilons["moments"]


def test_a_cohort_is_rounded_up_and_grows_with_z():
    assert cohort_for(0.006, 10.0) == 1667
    assert cohort_for(0.003, 15.0) == 5000
    assert cohort_for(0.003, 15.0, noise_multiplier=0.5) == 2500
    with pytest.raises(SottoError, match="noise_std=0"):
        cohort_for(0.0, 15.0)
    with pytest.raises(SottoError, match="5,000 users a round, more than the 4,000"):
        project(noise_std=0.003, clip_norm=15.0, users=4000, rounds=10, delta=1e-5)
