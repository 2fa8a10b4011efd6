"""Plans with correlated noise: its figures, what does not fit together, and all kinds of noise at the same ε."""

from __future__ import annotations

import json
import math

import pytest

from sottovoce.build.rules import check, recipe_rules
from sottovoce.planning import compare_noise as comparison
from sottovoce.planning import plan
from sottovoce.planning.compare_noise import compare_noise
from sottovoce.planning.plan import Plan, make_plan
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.gaussian import gaussian_epsilon
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, Participation
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

TURNS = {"users": 2_700, "cohort": 100, "rounds": 100, "delta": 1e-5, "sampling": "in_turn"}
APART = {**TURNS, "sampling": "min_separation", "min_separation": 10}
BLT, BANDED = Blt((0.45,), (0.94,)), Banded((1.0, 0.6, 0.4))


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """Matrices without a search."""
    asked = []

    def find(noise, joining, bands=0, buffers=4):
        asked.append((noise, joining, bands, buffers))
        return {"blt": BLT, "banded": BANDED}.get(noise, Identity())

    monkeypatch.setattr(plan, "find_matrix", find)
    monkeypatch.setattr(comparison, "find_matrix", find)
    return asked


@pytest.mark.parametrize(("noise", "matrix"), [("blt", BLT), ("banded", BANDED)])
def test_the_figures_of_a_plan_with_correlated_noise(noise, matrix):
    joining = Participation(100, 27, 4)
    made = make_plan(**TURNS, noise=noise, epsilon=8.0, clip_norm=2.0, parameters=1_000)
    z = made.noise_multiplier
    assert made.relation == "add-or-remove-one-user"
    assert made.sensitivity == matrix.sensitivity(joining)
    assert made.noise_over_clip == pytest.approx(z * made.sensitivity)
    assert made.noise_std == pytest.approx(z * made.sensitivity * 2.0 / 100)
    assert made.prefix_error == pytest.approx(made.noise_over_clip * matrix.prefix_error(100))
    assert made.rho == pytest.approx(0.5 / z**2)
    assert 7.98 < made.epsilon == pytest.approx(gaussian_epsilon(z, 1e-5), rel=1e-8)
    assert made.epsilon <= 8
    assert made.epsilon_replaced == pytest.approx(gaussian_epsilon(z / 2, 1e-5), rel=1e-8)
    assert made.noise_bytes == 8 * 1_000 * matrix.buffers(100)
    assert [point["epsilon"] for point in made.curve] == [made.epsilon] * 2  # the run is charged in round 1
    written = json.loads(json.dumps(made.to_json()))
    assert written["strategy"]["coefficients"] == matrix.coefficients(100).tolist()
    assert Plan.from_json(written).joining == made.joining == joining


def test_the_published_settings_of_stackoverflow_as_a_plan():
    """Choquette-Choo et al. 2023: 6 rounds, 342 apart, ε = 8.8."""
    recipe = Recipe.load("choquette2023")
    check(recipe_rules(recipe.replace(data={"store": "demo"})))
    keys = ("users", "delta", "sampling", "noise_multiplier", "epsilon", "clip_norm", "noise")
    sizes = {"cohort": round(recipe.privacy.cohort), "rounds": recipe.run.rounds}
    made = make_plan(**{key: getattr(recipe.privacy, key) for key in keys}, **sizes)
    assert (made.participations, made.min_separation) == (6, 342)
    assert made.epsilon == pytest.approx(8.8, abs=0.05)
    # One Gaussian release at z, in closed form: the whole run is no more than that.
    assert gaussian_epsilon(made.noise_multiplier, 1e-6) == pytest.approx(made.epsilon, abs=1e-3)


def test_what_is_asked_for_is_searched_for(found):
    make_plan(**APART, participations=8, noise="banded", bands=7, noise_multiplier=1.0)
    make_plan(**APART, noise="blt", buffers=3, noise_multiplier=1.0)
    make_plan(**APART, noise="blt", noise_multiplier=1.0)
    limited, all_that_fit = Participation(100, 10, 8), Participation(100, 10, 10)
    assert found == [("banded", limited, 7, 4), ("blt", all_that_fit, 0, 3), ("blt", all_that_fit, 0, 4)]


def test_independent_noise_is_planned_as_before():
    made = make_plan(**TURNS, noise_multiplier=4.0)
    assert made.sensitivity is made.rho is made.strategy is made.epsilon_zcdp is made.noise_bytes is None
    assert (made.noise_over_clip, made.participations) == (4.0, 4)
    assert made.prefix_error == pytest.approx(4.0 * math.sqrt(101 / 2))
    assert make_plan(users=10**9, cohort=10, rounds=10**12, delta=1e-12, noise_multiplier=1.0, accountant="rdp")


@pytest.mark.parametrize("noise", ["independent", "blt"])
def test_all_kinds_of_noise_at_the_same_epsilon(noise):
    joining = Participation(100, 27, 4)
    z = 0.6 if noise != "independent" else 1.2  # 1.2 in each of 4 rounds is 0.6 over the run
    rows = compare_noise(make_plan(**TURNS, noise=noise, noise_multiplier=z))
    assert [row.noise for row in rows] == ["independent", "banded", "blt", "independent"]
    assert [row.noise_over_clip for row in rows[:3]] == pytest.approx(
        [1.2, *(0.6 * matrix.sensitivity(joining) for matrix in (BANDED, BLT))]
    )
    assert rows[2].prefix_error == pytest.approx(0.6 * BLT.sensitivity(joining) * BLT.prefix_error(100))
    poisson = accounting.SampledGaussian(rows[3].noise_over_clip, "poisson", 100 / 2_700)
    assert accounting.epsilon([(poisson, 100)], 1e-5) == pytest.approx(gaussian_epsilon(0.6, 1e-5), rel=2e-3)
    assert rows[3].prefix_error == pytest.approx(rows[3].noise_over_clip * math.sqrt(101 / 2))


def test_a_kind_of_noise_that_cannot_be_found_has_a_note(monkeypatch):
    def find(noise, joining, bands=0, buffers=4):
        if noise == "blt":
            raise SottoError("pip install it")
        return BANDED if noise == "banded" else Identity()

    monkeypatch.setattr(plan, "find_matrix", find)
    monkeypatch.setattr(comparison, "find_matrix", find)
    rows = compare_noise(make_plan(**TURNS, noise="banded", noise_multiplier=1.0))
    assert [row.missing for row in rows] == ["", "", "pip install it", ""]
    with pytest.raises(SottoError, match="in turn"):
        compare_noise(make_plan(**{**TURNS, "sampling": "poisson"}, noise_multiplier=1.0))
