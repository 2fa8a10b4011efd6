"""The numbers of a plan, as they are typed."""

from __future__ import annotations

import pytest

from sottovoce.cli.plan import Training, whole
from sottovoce.errors import SottoError


def test_a_whole_number_may_be_written_with_an_exponent():
    assert whole("users", 1e6) == 1_000_000


@pytest.mark.parametrize("value", [1.5, float("inf"), float("nan")])
def test_a_fraction_is_not_rounded_in_silence(value):
    with pytest.raises(SottoError, match=r"--users .* must be a whole number"):
        whole("users", value)


def test_a_noise_gives_the_cohort_that_makes_it():
    found = Training(users=1e5, noise_std=0.003, clip_norm=15.0).with_cohort()
    assert (found.cohort, found.noise_multiplier) == (5000, 1.0)
    assert Training(users=10).with_cohort() == Training(users=10)


@pytest.mark.parametrize(
    "given",
    [{}, {"clip_norm": 1.0, "cohort": 5}, {"clip_norm": 1.0, "epsilon": 2}, {"clip_norm": 1, "total_weight": 1}],
)
def test_a_noise_goes_with_the_clip_norm_alone(given):
    with pytest.raises(SottoError, match="it goes with --clip-norm"):
        Training(noise_std=0.1, **given).with_cohort()
