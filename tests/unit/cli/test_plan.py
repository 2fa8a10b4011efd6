"""The numbers of a plan, as they are typed."""

from __future__ import annotations

import json

import pytest

from examples import first_of
from sottovoce.cli.plan import Training, plan, whole
from sottovoce.commands.stores import prepare_demo
from sottovoce_evidence.accounting.matrices import Banded, Identity
from sottovoce_evidence.errors import SottoError


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


def test_users_are_timed_with_as_many_tokens_as_the_store_keeps(mine, stub, sotto, capsys, tmp_path):
    timed = stub("sottovoce.commands.bench.users_per_second", 10.0)
    sotto(["plan", str(mine), "--set", f"data.store={tmp_path / 'none'}"])
    assert timed.places[1] == 480
    prepare_demo(tmp_path / "store", 30, tokens=1600)
    timed.calls.clear()
    sotto(["plan", str(mine), "--set", f"data.store={tmp_path / 'store'}"])
    assert timed.places[1] == 1600
    assert "timed here with 1,600 tokens a user" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "rate"), first_of([(["--users-per-second", "5"], 5.0), (["--no-bench"], None)]))
def test_a_machine_is_not_timed_where_a_rate_is_given_or_not_wanted(mine, stub, answer, more, rate):
    stub("sottovoce.commands.bench.users_per_second", AssertionError("it was timed"))
    found = answer("plan", mine, *more)
    assert found["users_per_second"] == rate
    assert (found["choices"][0]["hours"] is None) == (rate is None)
    assert len(found["others"]) == 2


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


def test_numbers_need_delta_and_no_settings_of_a_recipe(refusal):
    assert "needs --delta" in refusal("plan", "--users", "100")
    assert "go with a recipe" in refusal("plan", "--delta", "1e-5", "--no-bench")


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


def test_a_cohort_is_not_found_for_correlated_noise():
    with pytest.raises(SottoError, match="independent noise"):
        Training(noise_std=0.1, clip_norm=1.0, noise="banded").with_cohort()


def test_the_best_of_several_runs_is_shown_beside_one_and_all(capsys):
    plan(delta=[1e-6], training=Training(users=100, cohort=100, rounds=4, noise_multiplier=1.2, select=8), json=True)
    found = json.loads(capsys.readouterr().out)["selection"]
    assert [one["distribution"] for one in found["choosing"]] == ["logarithmic", "geometric", "poisson"]
    assert found["epsilon_one"] < found["choosing"][0]["epsilon"] < found["epsilon_all"]
