"""The noise of every released model is the noise that is charged, seen from outside; nothing private is imported.

What is read, and how users have updates of zero, is said in `outside.py`. From ε, δ and σ of `privacy.json`, the clip,
the denominator and the strategy matrix of the recipe follow, by a few lines there, what the noise must be. The models
of all rounds that could be seen must differ by such noise: of that variance, with that covariance over rounds, normal
out to its tails, on a public grid, alike at no two places, rounds or runs.

Secrets are from the operating system: the tests are random. All together raise a false alarm with a chance below 1e-9.
"""

from __future__ import annotations

import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
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
    Processes,
    Seen,
    free_address,
    gaussian_epsilon,
    people,
    processes_in,
    steps_in_noise,
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
    assert charge.epsilon <= 1.02 * gaussian_epsilon(charge.moved, charge.delta)


@pytest.mark.parametrize("kind", ["independent", "devices"])  # correlated noise has steps finer than float32 shows
def test_the_noise_of_a_round_is_whole_steps_of_a_public_grid(stopped_twice, kind):
    seen = stopped_twice(kind)
    (start,), (first,) = seen.models()[0], seen.models()[1]
    charge = Charge.of(seen.run)
    assert steps_in_noise(first, start, charge.rate * charge.std) <= STEPS_IN_NOISE


def test_the_noise_of_one_run_tells_nothing_of_that_of_another(stopped_twice):
    """On the same store, of recipes with one seed: what is behind correlated noise too."""
    runs = [stopped_twice(kind) for kind in KINDS_AND_DEVICES]
    # Two sums over eight rounds correlate by an eighth where a round of one has the noise of a round of the other.
    sums = [white_noise(Charge.of(seen.run), seen.last_models()).sum(axis=0, keepdims=True) for seen in runs]
    assert not [shared for first, second in combinations(sums, 2) for shared in what_two_share(first, second)]


@pytest.mark.parametrize("kind", ["independent", "banded", pytest.param("devices", marks=pytest.mark.slow)])
def test_no_round_is_released_twice_by_a_copy(stopped_twice, kind):
    """The folder of a run was copied after round 3; the run went on, and now the copy does."""
    first = stopped_twice(kind)
    copy = Seen(first.run.with_name(f"{kind}, copied"))
    with suppress(sv.SottoError):  # it may be refused
        play(copy, None, ROUNDS)
    models, again = first.last_models(), copy.last_models(like=first)
    assert all((again[number] == models[number]).all() for number in again)


# --- the command, in processes of its own ----------------------------------------------------------------------------

LONG = 40  # rounds: ten kills fit in
ROUNDLESS = 10**9  # more rounds than there are: wait for something else


def train_by_command(seen: Seen, recipe: Path, ranks: int, kills: int, processes: Processes) -> None:
    """`sotto train`, then `sotto resume` as often as it takes.

    Processes are killed when none, one or two more rounds can be seen, and up to a fifth of a second later: one of
    them, or all where they may not have met.
    """
    chance, verb = Random(f"{seen.run.name} {ranks}"), ("train", recipe, "--out", seen.run)
    while True:
        meet = ("--coordinator", free_address(), "--processes", ranks, "--process-id")
        group = [processes.start(*verb, "--json", *((*meet, rank) if ranks > 1 else ())) for rank in range(ranks)]
        if kills:
            seen.wait(max(1, seen.look() + kills % 3), group, processes)
            seen.wait(ROUNDLESS, group, processes, seconds=chance.uniform(0, 0.2))
            for victim in [chance.choice(group)] if kills % 3 else group:
                assert victim.poll() is None, "it ended before it was killed ten times\n" + processes.logs()
                victim.kill()
            kills -= 1
        seen.wait(ROUNDLESS, group, processes)
        if group[0].returncode == 0:
            return
        assert group[0].returncode in (1, -signal.SIGKILL), processes.logs()  # 1: another process was killed
        verb = ("resume", seen.run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [0, 10])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_models_that_the_command_trains_differ_by_the_noise_that_is_charged(folder, tmp_path, kind, ranks, kills):
    """In one process and in two, uninterrupted and killed ten times."""
    recipe = write_recipe(tmp_path / "recipe.toml", LONG, KINDS[kind], store=folder / "store")
    seen = Seen(tmp_path / kind)
    with processes_in(tmp_path) as processes:
        train_by_command(seen, recipe, ranks, kills, processes)
    assert len(seen.files) > LONG // 2  # a round may pass unseen, where we had to wait
    assert not what_is_wrong_with_run(seen)


# --- devices ---------------------------------------------------------------------------------------------------------

FEDERATED = 16  # rounds
SILOS = {"north": 3, "south": 3, "east": 2}  # users, as many as are declared


@pytest.fixture
def silos(tmp_path) -> Iterator[Processes]:
    """A federation of silos that made their keys, each with a store."""
    host, port = free_address().split(":")
    with processes_in(tmp_path) as processes:
        tokens = ("--tokens-per-user", 16)
        processes.run("federate", "init", tmp_path / "federation", "--host", host, "--port", port, *tokens)
        for name, users in SILOS.items():
            processes.run("federate", "key", tmp_path / name)
            made = ("--public-key", tmp_path / name / "node.pub")
            processes.run("federate", "enrol", tmp_path / "federation", f"{name}={users}", *made)
            texts = write_people(tmp_path / f"{name}.jsonl", people(users, name))
            words = ("--vocabulary", tmp_path / "federation/devices" / name / "vocabulary.txt", "--test-users", 0)
            processes.run("prepare", texts, "--out", tmp_path / f"{name} store", *words, *tokens)
        for name in SILOS:  # once all are enrolled: each has the list of all
            shutil.copytree(tmp_path / "federation/devices" / name, tmp_path / name, dirs_exist_ok=True)
        yield processes


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [0, 10])
def test_models_of_silos_that_add_noise_differ_by_what_is_charged_or_more(silos, tmp_path, kills):
    """The server is killed ten times, the last time with a silo: the two that are left are as many as must survive."""
    recipe = write_recipe(tmp_path / "recipe.toml", FEDERATED, "", sections=DEVICES, everybody=True)
    seen, chance = Seen(tmp_path / "run"), Random(kills)
    devices = [
        silos.start("federate", "device", tmp_path / name, "--data", tmp_path / f"{name} store") for name in SILOS
    ]
    verb = ("server", recipe, "--federation", tmp_path / "federation", "--out", seen.run, "--yes")
    for left in reversed(range(kills + 1)):
        there = len(devices) - (kills > 0 and left == 0)
        server = silos.start("federate", *verb, "--seconds", 600, "--at-least", there)
        if left:
            seen.wait(FEDERATED // 2 if left == 1 else max(1, seen.look() + left % 2), [server], silos)
            seen.wait(ROUNDLESS, [server], silos, seconds=chance.uniform(0, 1))
            assert server.poll() is None, "it ended before it was killed\n" + silos.logs()
            server.kill()
            if left == 1:
                devices[-1].kill()
        seen.wait(ROUNDLESS, [server], silos)
        verb = ("resume", seen.run)
    assert server.returncode == 0, silos.logs()
    # Two silos and the server have the noise that is charged; so has the server, where no sum opens. A third adds more.
    charge = Charge.of(seen.run)
    assert not what_is_wrong_with_run(seen, [1.0, 1.0 + charge.extra])
    variances = np.mean(np.square(white_noise(charge, seen.last_models())), axis=1)
    assert bool(kills) == (min(variances) < 1.1)
    assert max(variances) > 1.1
