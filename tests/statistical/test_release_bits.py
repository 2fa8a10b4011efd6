"""Do the bits of a release tell who was in it? Attacks on floating point and grids, with what ε allows as the bar.

Two sums differ in one user. Whoever attacks knows both, the noise's scale and the public grid, sees the float32 numbers
that are released, and guesses for each release which of the two sums it came from. A Gaussian mechanism of multiplier
z lets nobody be right more often than Φ(1/2z). Releases made wrongly on purpose show that the attacks bite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from examples import first_of
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise_stream import stream_of
from sottovoce.privacy.sampling import InTurn, Poisson
from sottovoce_evidence.accounting.matrices import Banded, Blt

S, Z, COHORT, SIZE, RELEASES = 1.0, 10.0, 20.0, 2500, 200
MECHANISMS = {
    "fixed": Mechanism(Poisson(1.0), FlatClip(S), FixedDenominator(COHORT), Z),
    "clipped": Mechanism(Poisson(1.0), FlatClip(S), ClippedDenominator(COHORT), Z),
}


class Case:
    """What the attacker knows: the estimate with the user and without, the scale of the noise, the public grid."""

    def __init__(self, mechanism: Mechanism, seed: int):
        generator = np.random.default_rng(seed)
        grid = mechanism.grid((S,))
        crowd = np.rint(generator.normal(size=SIZE) / math.sqrt(SIZE) * COHORT * S / 2 / grid) * grid
        crowd[: SIZE // 10] = 0  # layers that nobody else moves: biases, words that nobody else wrote
        user = np.trunc(generator.normal(size=SIZE) / math.sqrt(SIZE) * 0.1 * S / grid) * grid
        self.mechanism, self.grid = mechanism, grid
        self.sums = [(crowd, COHORT), (crowd + user, COHORT + 1)]
        self.queries = [mechanism.estimate((total,), np.float64(weight), np.zeros(1)) for total, weight in self.sums]
        self.estimates = [np.asarray(query.update[0]) for query in self.queries]
        self.std = mechanism.noise_std(1, (S,))[0]
        self.step = mechanism.estimator.step(grid) or 2.0 ** (math.floor(math.log2(self.std)) - 26)


def released(case: Case, world: int, key: bytes) -> np.ndarray:
    return np.asarray(case.mechanism.add_noise(case.queries[world], (), 1, (S,), key)[0].update[0])


# Releases made wrongly.


def float32_noise(case: Case, world: int, key: bytes) -> np.ndarray:
    """Half the sum of four float32 normals, added in float64 and rounded to float32."""
    generator = np.random.default_rng(list(key))
    normal = generator.standard_normal((4, SIZE), np.float32).sum(axis=0) / np.float32(2)
    return (case.estimates[world] + (np.float32(case.std) * normal).astype(np.float64)).astype(np.float32)


def float64_noise_that_is_not_rounded(case: Case, world: int, key: bytes) -> np.ndarray:
    return case.estimates[world] + case.std * np.random.default_rng(list(key)).standard_normal(SIZE)


def a_grid_that_depends_on_the_data(case: Case, world: int, key: bytes) -> np.ndarray:
    step = data_step(case.estimates[world])
    noise = np.rint(case.std * np.random.default_rng(list(key)).standard_normal(SIZE) / step)
    return ((np.rint(case.estimates[world] / step) + noise) * step).astype(np.float32)


def data_step(estimate: np.ndarray) -> float:
    return float(np.abs(estimate).max()) * 2.0**-12


def a_wrong_step(case: Case, world: int, key: bytes) -> np.ndarray:
    """The noise is in whole steps, but of a coarser grid than the sum."""
    coarse = case.step * 2**16
    noise = np.rint(case.std * np.random.default_rng(list(key)).standard_normal(SIZE) / coarse)
    return (case.estimates[world] + noise * coarse).astype(np.float32)


BROKEN = [float32_noise, float64_noise_that_is_not_rounded, a_grid_that_depends_on_the_data, a_wrong_step]


# Statistics: each says how much a release looks as if it came from an estimate. The larger guess is taken.


def off(values: np.ndarray) -> np.ndarray:
    """How far from whole numbers."""
    return np.abs(values - np.rint(values))


def zeros_at_the_end(values: np.ndarray) -> np.ndarray:
    """Of the mantissas of float64 numbers."""
    mantissa = (np.ascontiguousarray(values, np.float64).view(np.uint64) & np.uint64(2**52 - 1)) | np.uint64(2**52)
    return np.log2((mantissa & (~mantissa + np.uint64(1))).astype(np.float64))


def is_float32(values: np.ndarray) -> np.ndarray:
    return values == values.astype(np.float32)


def exponent(values: np.ndarray) -> np.ndarray:
    return np.frexp(values)[1]


def share_that(flags: np.ndarray, among: np.ndarray) -> float:
    """Of the coordinates to look at, the share that has a property; a half if there are none."""
    return float(np.mean(flags[among])) if among.any() else 0.5


def lost_in_the_remainder(r: np.ndarray, e: np.ndarray) -> float:
    """How far the exact remainder is from the float64 numbers of its size, where the release is of a smaller size.

    A noise that was drawn as such a number lies on them, but for the rounding of the release, which is finer.
    """
    remainder = r - e
    back = remainder - r
    lost = (r - (remainder - back)) + (-e - back)  # what the subtraction rounded away, exactly
    crossed = exponent(remainder) > exponent(r)
    return -float(np.mean(np.abs(lost[crossed]) / np.spacing(np.abs(remainder[crossed])))) if crossed.any() else -0.25


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray, Case], float]] = {
    "likelihood": lambda r, e, case: -float(np.sum((r - e) ** 2)),
    "likelihood where nobody else is": lambda r, e, case: -float(np.sum((r - e)[: SIZE // 10] ** 2)),
    "the remainder is a float32": lambda r, e, case: float(np.mean(is_float32(r - e))),
    "the remainder is a float32, where the release is smaller": lambda r, e, case: share_that(
        is_float32(r - e), exponent(r - e) > exponent(r)
    ),
    "the remainder is a float64, where the release is smaller": lambda r, e, case: lost_in_the_remainder(r, e),
    "the remainder over σ is nearly a float32": lambda r, e, case: -float(
        np.median(np.abs((r - e) / case.std - ((r - e) / case.std).astype(np.float32)) / (np.abs(r - e) + 1e-300))
    ),
    "zeros at the end of the remainder": lambda r, e, case: float(np.mean(zeros_at_the_end(r - e))),
    "zeros at the end of the remainder over σ": lambda r, e, case: float(np.mean(zeros_at_the_end((r - e) / case.std))),
    "the remainder in steps": lambda r, e, case: -float(np.median(off((r - e) / case.step))),
    "the remainder in coarse steps": lambda r, e, case: -float(np.median(off((r - e) / (case.step * 2**16)))),
    "parity of the remainder": lambda r, e, case: float(np.mean(np.rint((r - e) / case.step) % 2 == 0)),
    "the release in steps of the data": lambda r, e, case: -float(np.median(off(r / data_step(e)))),
    "no noise at all": lambda r, e, case: float(np.mean(r == e.astype(np.float32))),
    "the least remainder": lambda r, e, case: -float(np.min(np.abs(r - e))),
    "the largest remainder": lambda r, e, case: -float(np.max(np.abs(r - e))),
    "the spread of the remainder": lambda r, e, case: -abs(float(np.std(r - e)) / case.std - 1),
}  # fmt: skip


def worst_p_value(release: Callable, case: Case, seed: int) -> tuple[float, str]:
    """The least p-value of "right no more often than ε allows" over all statistics, corrected for their number."""
    generator = np.random.default_rng(seed)
    worlds = generator.integers(0, 2, RELEASES)
    right = dict.fromkeys(STATISTICS, 0)
    for world in worlds:
        numbers = np.asarray(release(case, int(world), generator.bytes(32)), np.float64)
        for name, statistic in STATISTICS.items():
            scores = [statistic(numbers, estimate, case) for estimate in case.estimates]
            guess = generator.integers(0, 2) if scores[0] == scores[1] else int(scores[1] > scores[0])
            right[name] += guess == world
    allowed = stats.norm.cdf(1 / (2 * Z))
    found = {name: stats.binomtest(int(count), RELEASES, allowed, "greater").pvalue for name, count in right.items()}
    name = min(found, key=found.__getitem__)
    return min(1.0, found[name] * len(found)), f"{name}: {right[name]} of {RELEASES}"


@pytest.mark.parametrize("name", first_of(MECHANISMS))
def test_no_statistic_tells_more_of_a_release_than_epsilon_allows(name):
    assert len(STATISTICS) >= 12
    p_value, which = worst_p_value(released, Case(MECHANISMS[name], 1), 2)
    assert p_value > 1e-4, which


@pytest.mark.parametrize("release", [float32_noise, a_wrong_step], ids=lambda release: release.__name__)
def test_a_release_made_wrongly_is_found_out(release):
    p_value, which = worst_p_value(release, Case(MECHANISMS["fixed"], 3), 4)
    assert p_value < 1e-4, which


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("release", BROKEN, ids=lambda release: release.__name__)
def test_a_release_made_wrongly_is_found_out_every_time(release, name):
    for repetition in range(10):
        p_value, which = worst_p_value(release, Case(MECHANISMS[name], 10 + repetition), repetition)
        assert p_value < 1e-4, which


# Streams of correlated noise: the releases of all rounds of a run, with a user who joins every other round and without.

STREAM_Z, STREAM_ROUNDS, STREAM_SIZE, STREAM_RELEASES = 10.0, 4, 1000, 60
TURNS = InTurn(cohort=20, users=40, seed=0)
MATRICES = {"banded": Banded((1.0, 0.5, 0.3)), "blt": Blt((0.3, 0.2), (0.9, 0.4))}


class StreamCase:
    """What the attacker knows: all estimates with the user and without, the strategy matrix, and the public grid."""

    def __init__(self, kind: str, seed: int):
        planned = TURNS.participation(STREAM_ROUNDS)
        fixed = FixedDenominator(COHORT)
        self.matrix = MATRICES[kind]
        self.mechanism = Mechanism(TURNS, FlatClip(S), fixed, STREAM_Z, matrix=self.matrix, participation=planned)
        grid, generator = self.mechanism.grid((S,)), np.random.default_rng(seed)
        shape = (STREAM_ROUNDS, STREAM_SIZE)
        crowd = np.rint(generator.normal(size=shape) / math.sqrt(STREAM_SIZE) * COHORT * S / 2 / grid) * grid
        crowd[:, : STREAM_SIZE // 10] = 0
        user = np.trunc(generator.normal(size=shape) / math.sqrt(STREAM_SIZE) * 0.1 * S / grid) * grid
        user[1::2] = 0
        weight = np.float64(COHORT)
        worlds = (crowd, crowd + user)
        self.queries = [[self.mechanism.estimate((total,), weight, np.zeros(1)) for total in one] for one in worlds]
        self.estimates = [np.array([query.update[0] for query in queries]) for queries in self.queries]
        self.std = self.mechanism.noise_std(1, (S,))[0]
        self.sum_step = fixed.step(grid)
        self.step = self.sum_step / 2 ** self.mechanism.stream.finer(self.std / self.sum_step)

    def views(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """What an attacker may look at: the releases, C times them, which undoes the correlations, and prefix sums."""
        return {"": numbers, "C times ": self.undo @ numbers, "sums of ": np.cumsum(numbers, axis=0)}

    @cached_property
    def undo(self) -> np.ndarray:
        column = self.matrix.coefficients(STREAM_ROUNDS)
        places = np.subtract.outer(np.arange(STREAM_ROUNDS), np.arange(STREAM_ROUNDS))
        return np.where(places >= 0, column[np.abs(places)], 0.0)


def released_stream(case: StreamCase, world: int, key: bytes) -> np.ndarray:
    state, found = case.mechanism.init_noise(case.queries[world][0].update), []
    for number, query in enumerate(case.queries[world], 1):
        noised, state = case.mechanism.add_noise(query, state, number, (S,), bytes([number]) + key[1:])
        found.append(np.asarray(noised.update[0]))
    return np.array(found)


def stream_noise(case: StreamCase, key: bytes, draw) -> np.ndarray:
    """w of all rounds from what `draw(generator)` gives for m."""
    stream, generator, found = stream_of(case.matrix, STREAM_ROUNDS), np.random.default_rng(list(key)), []
    state = stream.init(STREAM_SIZE)
    with jax.enable_x64(True):
        for _ in range(STREAM_ROUNDS):
            noise, state = stream.next(state, jnp.asarray(draw(generator)))
            found.append(np.asarray(noise))
    return np.array(found)


def a_float32_stream(case: StreamCase, world: int, key: bytes) -> np.ndarray:
    noise = stream_noise(case, key, lambda generator: 2.0**41 * generator.standard_normal(STREAM_SIZE))
    noise = (noise * 2.0**-41 * case.std).astype(np.float32)
    return (case.estimates[world] + noise.astype(np.float64)).astype(np.float32)


def a_float64_stream_that_is_not_rounded(case: StreamCase, world: int, key: bytes) -> np.ndarray:
    noise = stream_noise(case, key, lambda generator: 2.0**41 * generator.standard_normal(STREAM_SIZE))
    return case.estimates[world] + noise * 2.0**-41 * case.std


def a_stream_of_coarser_steps(case: StreamCase, world: int, key: bytes) -> np.ndarray:
    coarse = case.sum_step * 2**16
    noise = stream_noise(
        case, key, lambda generator: np.rint(case.std / coarse * generator.standard_normal(STREAM_SIZE))
    )
    return (case.estimates[world] + noise * coarse).astype(np.float32)


BROKEN_STREAMS = [a_float32_stream, a_float64_stream_that_is_not_rounded, a_stream_of_coarser_steps]


def worst_of_streams(release: Callable, case: StreamCase, seed: int) -> tuple[float, str]:
    """As `worst_p_value`, with every statistic of every view, in fine steps and in those of the sum."""
    scales = {"": SimpleNamespace(std=case.std, step=case.step)}
    scales["in steps of the sum, "] = SimpleNamespace(std=case.std, step=case.sum_step)

    def guesses(numbers: np.ndarray, generator: np.random.Generator) -> Iterator[tuple[str, int]]:
        worlds = [case.views(estimate) for estimate in case.estimates]
        for view, seen in case.views(numbers).items():
            pair = [(seen.ravel(), world[view].ravel()) for world in worlds]
            for (scale, known), (name, statistic) in product(scales.items(), STATISTICS.items()):
                if scale and "step" not in name:
                    continue
                scores = [statistic(r, e, known) for r, e in pair]
                guess = generator.integers(0, 2) if scores[0] == scores[1] else int(scores[1] > scores[0])
                yield f"{view}{scale}{name}", int(guess)

    generator, right = np.random.default_rng(seed), Counter[str]()
    tried: set[str] = set()
    for world in generator.integers(0, 2, STREAM_RELEASES):
        numbers = np.asarray(release(case, int(world), generator.bytes(32)), np.float64)
        for name, guess in guesses(numbers, generator):
            tried.add(name)
            right[name] += guess == world
    allowed = stats.norm.cdf(1 / (2 * STREAM_Z))
    found = {
        name: stats.binomtest(int(right[name]), STREAM_RELEASES, allowed, "greater").pvalue for name in sorted(tried)
    }
    name = min(found, key=found.__getitem__)
    return min(1.0, found[name] * len(found)), f"{name}: {right[name]} of {STREAM_RELEASES}"


OTHERS_ARE_SLOW = [pytest.param(kind, marks=() if kind == "blt" else pytest.mark.slow) for kind in MATRICES]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_no_statistic_tells_more_of_a_stream_than_epsilon_allows(kind):
    p_value, which = worst_of_streams(released_stream, StreamCase(kind, 1), 2)
    assert p_value > 1e-4, which


@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
@pytest.mark.parametrize(
    "release",
    [pytest.param(each, marks=() if each is a_float32_stream else pytest.mark.slow) for each in BROKEN_STREAMS],
    ids=lambda release: release.__name__,
)
def test_a_stream_made_wrongly_is_found_out(release, kind):
    p_value, which = worst_of_streams(release, StreamCase(kind, 3), 4)
    assert p_value < 1e-4, which
