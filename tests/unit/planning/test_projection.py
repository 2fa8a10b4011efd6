from __future__ import annotations

import pytest

from sottovoce.papers.mcmahan2018.tables import projected_epsilon
from sottovoce.papers.mcmahan2018.trials import TABLE_2
from sottovoce.planning.plan import cohort_for
from sottovoce_evidence.errors import SottoError


@pytest.mark.parametrize("row", TABLE_2, ids=str)
def test_the_cohorts_and_the_epsilons_of_table_2_follow_from_sigma(row):
    sigma, clip_norm, users, cohort, printed, _ = row
    assert cohort_for(sigma, clip_norm) == cohort
    moments, rdp, pld = (projected_epsilon(sigma, clip_norm, users, name) for name in ("moments", "rdp", "pld"))
    assert moments == pytest.approx(printed, abs=6e-4)
    assert pld < rdp < moments


def test_a_cohort_is_rounded_up_and_grows_with_z():
    assert cohort_for(0.006, 10.0) == 1667
    assert cohort_for(0.003, 15.0) == 5000
    assert cohort_for(0.003, 15.0, noise_multiplier=0.5) == 2500
    with pytest.raises(SottoError, match="noise_std=0"):
        cohort_for(0.0, 15.0)
