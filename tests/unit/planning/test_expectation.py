"""The expected accuracy: fitted to the runs that are published, and not known outside them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares

from sottovoce.planning import expectation
from sottovoce.planning.expectation import MEASURED, at_most, expect, not_measured
from sottovoce_evidence.recipe import Recipe

RESULTS = Path(__file__).parents[3] / "docs" / "results"
RUNS, FRESH = (
    list(csv.DictReader((RESULTS / name).read_text().splitlines())) for name in ("small.csv", "small-checks.csv")
)
SMALL = Recipe.load("small").replace(privacy={"users": 3900})
Arrays = dict[str, np.ndarray]


def arrays(runs: list[dict[str, str]]) -> Arrays:
    return {name: np.array([float(run[name]) for run in runs]) for name in RUNS[0] if name not in ("people", "epsilon")}


def formula(values: np.ndarray, runs: Arrays) -> np.ndarray:
    """Written again, for a fit: all constants free but the longest useful update."""
    clean, progress, noise, by_noise, by_rounds, by_clip = values
    steps = runs["server_rate"] * runs["rounds"] * np.minimum(runs["clip_norm"], expectation.MOST_PROGRESS) / 180
    noise_of_step = np.maximum(runs["server_rate"] * runs["noise_std"], 1e-12) / 0.01
    cost = math.exp(noise) * noise_of_step**by_noise
    cost = cost * (runs["rounds"] / 40) ** by_rounds * (runs["clip_norm"] / 3) ** by_clip
    return clean + progress * np.log(steps) - cost


def fitted(runs: Arrays) -> np.ndarray:
    start = [16.5, 0.5, -0.3, 1.5, 0.3, -0.3]
    return least_squares(lambda values: formula(values, runs) - runs["top1"], start, loss="soft_l1", f_scale=0.2).x


def recipe_of(run: dict[str, str]) -> Recipe:
    return SMALL.replace(
        privacy={"cohort": float(run["cohort"]), "clip_norm": float(run["clip_norm"])},
        run={"rounds": int(run["rounds"])},
        server={"learning_rate": float(run["server_rate"])},
        local={"learning_rate": float(run["local_rate"])},
    )


def test_the_constants_are_those_of_the_published_runs():
    clean, progress, noise, *powers = fitted(arrays(RUNS))
    stated = (expectation.CLEAN, expectation.PROGRESS, expectation.NOISE)
    assert (clean, progress, math.exp(noise)) == pytest.approx(stated, abs=2e-3)
    stated = (expectation.BY_NOISE, expectation.BY_ROUNDS, expectation.BY_CLIP)
    assert powers == pytest.approx(stated, abs=2e-3)


@pytest.mark.slow
def test_the_range_holds_runs_that_were_left_out_of_the_fit():
    held = 0
    for number, run in enumerate(RUNS):
        values = fitted(arrays(RUNS[:number] + RUNS[number + 1 :]))
        (left_out,) = formula(values, arrays([run]))
        found = expect(recipe_of(run), float(run["noise_std"]))
        held += abs(float(run["top1"]) - left_out) <= 50 * (found.high - found.low)
    assert held == len(RUNS) == 72


def test_fresh_runs_end_where_they_were_expected():
    """What the plan and the page say of them."""
    errors = []
    for run in FRESH:
        recipe = recipe_of(run).replace(privacy={"users": int(run["users"])})
        assert not_measured(recipe) == []
        found = expect(recipe, float(run["noise_std"]))
        assert found.low <= float(run["top1"]) / 100 <= found.high
        errors.append(abs(float(run["top1"]) - 100 * found.top1))
    assert len(errors) == 18
    assert np.median(errors) == pytest.approx(0.2, abs=0.02)
    assert max(errors) == pytest.approx(1.12, abs=0.01)


def test_the_formula_of_the_package_is_the_one_that_was_fitted():
    values = np.array(
        [
            expectation.CLEAN,
            expectation.PROGRESS,
            math.log(expectation.NOISE),
            expectation.BY_NOISE,
            expectation.BY_ROUNDS,
            expectation.BY_CLIP,
        ]
    )
    for run, top1 in zip(RUNS, formula(values, arrays(RUNS)), strict=True):
        assert 100 * expect(recipe_of(run), float(run["noise_std"])).top1 == pytest.approx(top1, abs=0.01)


def test_more_noise_costs_more_until_nothing_is_left():
    found = [expect(SMALL, std) for std in (0.0, 0.003, 0.005, 0.008, 0.012, 0.2)]
    assert [one.top1 for one in found] == sorted((one.top1 for one in found), reverse=True)
    assert [one.verdict for one in found] == [
        *("free", "free", "free", "costs half a point", "costs about a point", "drowned")
    ]
    assert found[0].cost == 0
    assert found[-1].low == 0 == found[-1].top1
    assert all(one.low <= one.top1 <= one.high for one in found)


def test_far_from_the_measured_number_of_users_the_range_is_wider():
    near, far = (expect(SMALL.replace(privacy={"users": users}), 0.005) for users in (3900, 27_000))
    assert far.top1 == near.top1
    assert far.high - far.low == pytest.approx(near.high - near.low + 2 * expectation.FAR / 100)


@pytest.mark.parametrize(("users", "known"), [(1_499, False), (1_500, True), (1_999, True), (2_000, False)])
def test_somewhat_fewer_users_than_were_measured_have_a_bound(users, known):
    recipe = SMALL.replace(privacy={"users": users})
    fewest = expect(SMALL.replace(privacy={"users": 2_000}), 0.008)
    assert at_most(recipe, 0.008) == (fewest.high if known else None)
    assert at_most(recipe.replace(model={"kind": "gru"}), 0.008) is None


def test_the_recipe_small_is_known():
    assert not_measured(SMALL) == []
    sizes = {"embedding": 96, "hidden": 256}
    assert not_measured(SMALL.replace(model=sizes, data={"store": "mine"}, run={"seed": 3})) == []


def test_sizes_of_a_kind_that_was_not_measured_are_not_listed():
    other = SMALL.replace(model={"kind": "transformer", "embedding": 48, "layers": 2, "context": 32})
    assert not_measured(other) == ["model.kind = 'transformer' was not measured"]
    assert not_measured(SMALL.replace(model={"embedding": 48})) == ["model.embedding = 48 was not measured"]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("end", [0, 1])
def test_outside_the_measured_settings_nothing_is_known(name, end):
    section, key = name.split(".")
    limit = MEASURED[name][end]
    beyond = limit * (0.5, 2)[end]
    at, outside = (SMALL.replace(**{section: {key: type(limit)(value)}}) for value in (limit, beyond))
    assert not_measured(at) == []
    measured = f"{MEASURED[name][0]:g} to {MEASURED[name][1]:g}, which were measured"
    assert not_measured(outside) == [f"{name} = {beyond:g} is outside {measured}"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "kind", "gru"),
        ("model", "hidden", 512),
        ("model", "initial", "none"),
        ("model", "initial", "runs/other"),
        ("local", "batch", 4),
        ("server", "optimiser", "adam"),
        ("privacy", "sampling", "fixed"),
        ("privacy", "weight_cap", 400.0),
        ("privacy", "adaptive_quantile", 0.5),
        ("run", "algorithm", "fedsgd"),
    ],
)
def test_another_training_is_not_known(section, key, value):
    (reason,) = not_measured(SMALL.replace(**{section: {key: value}}))
    assert reason.startswith(f"{section}.{key} = {value!r}")


def test_a_start_that_the_store_decides_is_not_known():
    values = SMALL.to_dict()
    del values["model"]["initial"]
    (reason,) = not_measured(Recipe.from_dict(values))
    assert reason == "model.initial is not set: runs were measured from 'english'"
