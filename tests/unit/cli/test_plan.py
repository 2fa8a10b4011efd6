"""The numbers of a plan, as they are typed."""

from __future__ import annotations

import pytest

from sottovoce.cli.plan import Training, whole
from sottovoce_evidence.accounting.matrices import Banded, Identity
from sottovoce_evidence.errors import SottoError


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


MINE = """
[model]
initial = "english"
[local]
learning_rate = 3.0
[server]
learning_rate = 1.5
[privacy]
users = 3900
cohort = 500
clip_norm = 3.0
epsilon = 8.0
delta = 1e-5
accountant = "moments"
[run]
rounds = 40
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--delta", "1e-5"], "give --set privacy.delta=VALUE in place of --delta"),
        (["--epsilon", "-3"], "give --set privacy.epsilon=VALUE in place of --epsilon"),
        (["--users", "100"], "give --set privacy.users=VALUE in place of --users"),
        (["--ledger", "x"], "leave out --ledger"),
        (["--select", "5"], "--select goes with numbers"),
        (["--set", "privacy.mode=none"], "no ε to plan"),
        (["--users-per-second", "0"], "must be a positive number"),
        (["--tokens-per-user", "0"], "must be at least 1"),
    ],
)
def test_what_does_not_go_with_a_recipe_is_refused(mine, refusal, arguments, words):
    assert words in refusal("plan", mine, *arguments)


SIZES = ["plan", "--users", "2700", "--cohort", "100", "--rounds", "100", "--delta", "1e-5"]


def found(noise, *_):
    """A matrix without a search."""
    return Identity() if noise == "independent" else Banded((1.0,))


def test_a_plan_with_correlated_noise_as_json(answer, monkeypatch):
    monkeypatch.setattr("sottovoce.planning.compare_noise.find_matrix", found)
    monkeypatch.setattr("sottovoce.planning.plan.find_matrix", found)
    more = ["--sampling", "min_separation", "--min-separation", "9", "--participations", "5", "--noise", "banded"]
    made = answer(*SIZES, "--epsilon", "8", *more)
    joins = {name: made[name] for name in ("noise", "min_separation", "participations", "strategy")}
    strategy = {"noise": "banded", "bands": [1.0], "coefficients": [1.0] + [0.0] * 99}
    assert joins == {"noise": "banded", "min_separation": 9, "participations": 5, "strategy": strategy}
    assert made["noise_over_clip"] == pytest.approx(made["noise_multiplier"] * made["sensitivity"])
    assert made["rho"] == pytest.approx(0.5 / made["noise_multiplier"] ** 2)
    assert made["epsilon"] < made["epsilon_zcdp"] < made["epsilon_replaced"]
