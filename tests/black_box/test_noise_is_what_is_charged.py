"""The noise of every released model is the noise that is charged, seen from outside; nothing private is imported.

What is read, and how users have updates of zero, is said in `outside.py`. From ε, δ and σ of `privacy.json`, the clip,
the denominator and the strategy matrix of the recipe follow, by a few lines there, what the noise must be. The models
of all rounds that could be seen must differ by such noise: of that variance, with that covariance over rounds, normal
out to its tails, on a public grid, alike at no two places, rounds or runs.

Secrets are from the operating system: the tests are random. All together raise a false alarm with a chance below 1e-9.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations, count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from outside import (
    DEVICES,
    KINDS,
    STEPS_IN_NOISE,
    Charge,
    Seen,
    free_address,
    gaussian_epsilon,
    people,
    processes_in,
    steps_in_noise,
    until,
    what_is_wrong_with,
    what_is_wrong_with_run,
    what_two_share,
    white_noise,
    write_people,
    write_recipe,
)

import sottovoce as sv

ROUNDS = 8
KINDS_AND_DEVICES = {**{kind: (noise, "") for kind, noise in KINDS.items()}, "devices": ("", DEVICES)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a store."""
    folder = tmp_path_factory.mktemp("outside")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 36 people are few
        sv.prepare(people(), folder / "store", grouping=sv.Grouping(tokens_per_user=16))
    return folder


def play(seen: Seen, start: Path | None, rounds: int) -> None:
    """Train a recipe, or go on with a run, for so many rounds; look at the folder after every round."""
    asked = count(1)
    going = {"observer": lambda progress: seen.look(), "stop": lambda: next(asked) >= rounds}
    sv.train(start, seen.run, **going) if start else sv.resume(seen.run, **going)
    seen.look()


@pytest.fixture(scope="module")
def stopped_twice(folder) -> Callable[[str], Seen]:
    """A run of each kind that was stopped after rounds 3 and 5, and resumed."""
    found: dict[str, Seen] = {}

    def run(kind: str) -> Seen:
        if kind not in found:
            noise, sections = KINDS_AND_DEVICES[kind]
            recipe = write_recipe(folder / f"{kind}.toml", ROUNDS, noise, store=folder / "store", sections=sections)
            found[kind] = Seen(folder / kind)
            play(found[kind], recipe, 3)
            shutil.copytree(folder / kind, folder / f"{kind}, copied")
            play(found[kind], None, 2)
            play(found[kind], None, ROUNDS)
        return found[kind]

    return run


@pytest.mark.parametrize("kind", KINDS_AND_DEVICES)
def test_models_of_a_run_that_was_stopped_twice_differ_by_the_noise_that_is_charged(stopped_twice, kind):
    seen = stopped_twice(kind)
    assert sorted(seen.files) == list(range(ROUNDS + 1))
    assert not what_is_wrong_with_run(seen)
    charge = Charge.of(seen.run)
    assert charge.moved == pytest.approx(charge.worst(), rel=1e-9)  # of all patterns of a user's rounds
    if kind != "devices":  # whose noise, of another law, may cost more
        assert charge.epsilon <= 1.02 * gaussian_epsilon(charge.moved, charge.delta)


@pytest.mark.parametrize("kind", ["independent", "devices"])  # correlated noise has steps finer than float32 shows
def test_the_noise_of_a_round_is_whole_steps_of_a_public_grid(stopped_twice, kind):
    seen = stopped_twice(kind)
    (start,), (first,) = seen.models()[0], seen.models()[1]
    charge = Charge.of(seen.run)
    assert steps_in_noise(first, start, charge.rate * charge.std) <= STEPS_IN_NOISE


def test_the_noise_of_one_run_tells_nothing_of_that_of_another(stopped_twice):
    """On the same store, of recipes with one seed: what is behind correlated noise too."""
    kinds = list(KINDS_AND_DEVICES)
    white = {
        kind: white_noise(Charge.of(seen.run), seen.last_models()) for kind in kinds if (seen := stopped_twice(kind))
    }
    for first, second in combinations(kinds, 2):
        assert not what_two_share(white[first], white[second])


@pytest.mark.parametrize("kind", ["independent", "banded", pytest.param("devices", marks=pytest.mark.slow)])
def test_a_round_that_a_copy_releases_too_is_the_same_or_charged_again(stopped_twice, kind):
    """The folder of a run was copied after round 3; the run went on, and now the copy does."""
    first = stopped_twice(kind)
    copy = Seen(first.run.with_name(f"{kind}, copied"))
    with suppress(sv.SottoError):  # it may be refused
        play(copy, None, ROUNDS)
    models, again = first.last_models(), copy.last_models(like=first)
    copied = min(again)
    assert (again[copied] == models[copied]).all()
    other = [number for number in again if (again[number] != models[number]).any()]
    if not other:
        return
    assert kind in ("independent", "devices"), "two releases of a round share correlated noise"
    charge, charged = Charge.of(first.run), Charge.of(copy.run)
    released = np.array([2.0 if number in other else 1.0 for number in range(1, ROUNDS + 1)])
    assert charged.epsilon >= gaussian_epsilon(charge.worst(released), charge.delta)
    fresh = white_noise(charge, {number: again[number] for number in range(min(other) - 1, ROUNDS + 1)})
    assert not what_is_wrong_with(fresh)
    assert not what_two_share(fresh, white_noise(charge, models))
