"""What a person sees of a run: documented commands, documented files, and what these say that was charged.

Nothing here knows how the house is built, so that it can be run against any later one:

- from Python `sottovoce.prepare`, `train` and `resume`; else the command `sotto` in processes of its own;
- `checkpoints/round-N…` of a run's folder, the model after round N (of every round: `run.checkpoint_every` is 1);
- `model/weights.safetensors`, `privacy.json`, `ledger.jsonl` and `recipe.toml` of that folder;
- the keys of a recipe.

All users have updates of zero: `local.learning_rate` is 1e-30, and an update is cut to whole steps of a grid that is
far coarser. So a model differs from the one before by the noise of its rounds, and by nothing else.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load, load_file
from scipy import optimize, stats

# --- people and recipes ----------------------------------------------------------------------------------------------

WORDS = ["the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with"]
# 10,000 words: 50,000 numbers and some, and the 10,000 of the output's bias begin at zero.
MODEL = '[model]\nkind = "stacked_lstm"\nlayers = 1\nembedding = 2\nhidden = 2\ninitial = "none"\n'
# z of what is charged is 1.5 throughout. S / cohort is a power of two, so that no division rounds.
KINDS = {
    "independent": 'noise = "independent"\n',
    "banded": 'noise = "banded"\nnoise_coefficients = [1.0, 0.5, 0.25]\n',
    "blt": 'noise = "blt"\nnoise_coefficients = [0.3, 0.2]\nnoise_decays = [0.9, 0.4]\n',
}
# Two devices add all that they must; the server tops up to z.
DEVICES = '[federation]\nsurvivors = 2\nnoise = "devices"\nserver_noise_multiplier = 1.2\n'
USERS, COHORT, APART = 8, 2, 4  # all users are asked once in four rounds


def people(users: int = 10, name: str = "u") -> list[tuple[str, str]]:
    """Made up: pairs of a user and their text."""
    generator = Random(0)
    return [(f"{name}{user}", " ".join(generator.choices(WORDS, k=12))) for user in range(users)]


def write_people(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in pairs))
    return path


def write_recipe(
    path: Path, rounds: int, more: str, *, store: Path | None = None, sections: str = "", everybody: bool = False
) -> Path:
    """A recipe whose users have updates of zero, asked in turn or everybody in every round.

    Nobody is drawn by chance: a run is one Gaussian mechanism.
    """
    asked = f"cohort = {USERS}\n"
    if not everybody:
        asked = f"cohort = {COHORT}\nsampling = 'min_separation'\nmin_separation = {APART}\n"
        asked += f"participations = {-(-rounds // APART)}\n"
    path.write_text(
        (f"[data]\nstore = {json.dumps(str(store))}\n" if store else "")
        + f"{MODEL}[local]\nbatch = 2\nunroll = 5\nlearning_rate = 1e-30\n"
        + f"[privacy]\nusers = {USERS}\n{asked}"
        + f"clip_norm = 16.0\nnoise_multiplier = 1.5\ndelta = 1e-3\naccountant = 'pld'\n{more}"
        + f"[run]\nrounds = {rounds}\nevaluate_every = 0\ncheckpoint_every = 1\nblock = 4\n{sections}"
    )
    return path


# --- what was charged ------------------------------------------------------------------------------------------------


def gaussian_epsilon(moved: float, delta: float) -> float:
    """ε of one Gaussian whose mean is moved by so many standard deviations (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        left, right = moved / 2 - epsilon / moved, -moved / 2 - epsilon / moved
        return stats.norm.cdf(left) - math.exp(epsilon + stats.norm.logcdf(right)) - delta

    return optimize.brentq(excess, 0, 100 * moved * (1 + moved))


@dataclass(frozen=True)
class Charge:
    """What `privacy.json` and the recipe beside it say of the noise of all rounds of a run."""

    epsilon: float
    delta: float
    std: float  # of the Gaussians that noise is made of, on an estimate
    rate: float  # of the server: a model steps by so many estimates
    one_user: float  # moves an estimate by at most this
    factor: int  # of what moves where one user is replaced: two, removed and added
    participations: int
    min_separation: int
    column: np.ndarray  # of the strategy matrix C, which has the same numbers along each diagonal
    extra: float = 0.0  # variance that one device beyond those that must survive adds, over the charged one

    @staticmethod
    def of(run: Path) -> Charge:
        statement = json.loads((run / "privacy.json").read_text())
        recipe = tomllib.loads((run / "recipe.toml").read_text())
        privacy, rounds = recipe["privacy"], recipe["run"]["rounds"]
        total_weight = privacy["total_weight"] or privacy["users"]
        column = np.zeros(rounds)
        column[0] = 1
        noise, given = privacy.get("noise", "independent"), privacy.get("noise_coefficients", [])
        if noise == "banded":
            column[: len(given)] = given[:rounds]
        elif noise == "blt":
            for scale, decay in zip(given, privacy["noise_decays"], strict=True):
                column[1:] += scale * decay ** np.arange(rounds - 1)
        in_turn = privacy["sampling"] == "min_separation"
        assert in_turn or privacy["cohort"] == privacy["users"], "who is drawn by chance is hidden, and costs less"
        return Charge(
            epsilon=statement["epsilon"],
            delta=statement["delta"],
            std=statement["mechanism"]["noise_std"],
            rate=recipe["server"]["learning_rate"],
            one_user=privacy["clip_norm"] / (privacy["cohort"] / privacy["users"] * total_weight),
            factor=2 if "replace" in statement["relation"] else 1,
            participations=privacy["participations"] if in_turn else rounds,
            min_separation=privacy["min_separation"] if in_turn else 1,
            column=column,
            extra=_extra_share(recipe),
        )

    def covariance(self, rounds: Sequence[int]) -> np.ndarray:
        """Of one coordinate of the steps from each of these models to the next: over rounds, (AC⁻¹)(AC⁻¹)ᵀσ²."""
        released = np.linalg.inv(self.matrix)
        steps = np.array([released[start:end].sum(axis=0) for start, end in pairwise(rounds)])
        return (self.rate * self.std) ** 2 * steps @ steps.T

    @property
    def matrix(self) -> np.ndarray:
        """C: lower triangular."""
        rounds = len(self.column)
        return np.array([[self.column[t - s] if t >= s else 0.0 for s in range(rounds)] for t in range(rounds)])

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """All sets of rounds, from 0, that one user may join."""
        for count in range(1, self.participations + 1):
            for rounds in combinations(range(len(self.column)), count):
                if all(later - earlier >= self.min_separation for earlier, later in pairwise(rounds)):
                    yield rounds

    @property
    def moved(self) -> float:
        """By how many standard deviations a user moves the run: all their rounds, as early and as close as may be.

        C has falling coefficients: no rounds are worse. `worst` tries all of them.
        """
        first = np.arange(len(self.column)) % self.min_separation == 0
        joined = first & (np.cumsum(first) <= self.participations)
        return self.factor * float(np.linalg.norm(self.matrix @ joined)) * self.one_user / self.std

    def worst(self, times: np.ndarray | float = 1.0) -> float:
        """`moved`, by trying all patterns, where a user who joins a round is in `times` releases of it."""
        found = 0.0
        for rounds in self.patterns():
            joined = np.zeros(len(self.column))
            joined[list(rounds)] = 1
            found = max(found, float(np.linalg.norm(self.matrix @ (np.sqrt(times) * joined))))
        return self.factor * found * self.one_user / self.std


def _extra_share(recipe: dict) -> float:
    """A device adds as much that those which must survive, without those that may collude, have z_s together."""
    federation = recipe.get("federation", {})
    if federation.get("noise") != "devices":
        return 0.0
    honest = federation["survivors"] - federation.get("colluding", 0)
    return (federation["server_noise_multiplier"] / recipe["privacy"]["noise_multiplier"]) ** 2 / honest


# --- processes -------------------------------------------------------------------------------------------------------

COMMAND = Path(sys.executable).with_name("sotto")
PATIENCE = 600.0  # seconds, on a machine that has much else to do


class Processes:
    """Commands in processes of their own, whose output goes to files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def start(self, *arguments: object) -> subprocess.Popen:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "SOTTO_SECRET": "known to the processes of a run"}
        environment.pop("JAX_NUM_CPU_DEVICES", None)  # of a command that another test ran in this process
        with open(self.folder / f"log-{len(self.started)}", "wb") as log:
            process = subprocess.Popen([COMMAND, *map(str, arguments)], env=environment, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def run(self, *arguments: object) -> None:
        process = self.start(*arguments)
        assert process.wait(PATIENCE) == 0, self.said(process)

    def said(self, process: subprocess.Popen) -> str:
        return (self.folder / f"log-{self.started.index(process)}").read_text()[-3000:]

    def logs(self) -> str:
        return "\n".join(f"== {process.args}\n{self.said(process)}" for process in self.started[-6:])


@contextmanager
def processes_in(folder: Path) -> Iterator[Processes]:
    processes = Processes(folder)
    try:
        yield processes
    finally:
        for process in processes.started:
            process.kill()
            process.wait()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


# --- what is seen ----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """All models of a run that could be seen while it went on, by round: more than one where they differ."""

    run: Path
    files: dict[int, list[bytes]] = field(default_factory=dict)
    _known: set[tuple[str, int, int]] = field(default_factory=set)

    def look(self) -> int:
        """Read the checkpoints that are new. Gives how many rounds have been seen."""
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.run / "checkpoints"):
                named = re.fullmatch(r"round-(\d+)(\.safetensors)?", entry.name)
                if named is None:
                    continue
                with suppress(FileNotFoundError):  # the third last was removed while we looked
                    about = entry.stat()
                    known = entry.name, about.st_ino, about.st_mtime_ns
                    if known not in self._known:
                        path = Path(entry.path) / "weights.safetensors" if entry.is_dir() else Path(entry.path)
                        self.files.setdefault(int(named[1]), []).append(path.read_bytes())
                        self._known.add(known)
        return len(self.files)

    def wait(self, rounds: int, group: Sequence[subprocess.Popen], processes: Processes, seconds: float = PATIENCE):
        """Look until so many rounds have been seen, or the processes of the run have ended, or the time is up."""
        until = time.monotonic() + seconds
        while self.look() < rounds and time.monotonic() < until:
            if all(process.poll() is not None for process in group):
                self.look()
                return
            time.sleep(0.002)
        assert seconds < PATIENCE or time.monotonic() < until, processes.logs()

    def models(self, like: Seen | None = None) -> dict[int, list[np.ndarray]]:
        """One vector for each different model of a round.

        A checkpoint may hold more than the model, and name it otherwise: the arrays of the last one that the released
        model has are its arrays. Where another run is named, it is asked for the names.
        """
        named = like or self
        weights = load_file(named.run / "model" / "weights.safetensors")
        last = load(named.files[max(named.files)][-1])
        names: list[str] = []
        for weight in weights.values():
            same = [name for name in last if name not in names and np.array_equal(last[name], weight)]
            assert same, "the released model is not the last checkpoint"
            names.append(same[0])
        found: dict[int, list[np.ndarray]] = {}
        for number in sorted(self.files):
            arrays = [load(contents) for contents in self.files[number]]
            vectors = [np.concatenate([each[name].ravel() for name in names]) for each in arrays]
            distinct = {vector.tobytes(): vector.astype(np.float64) for vector in vectors}
            found[number] = list(distinct.values())
        return found

    def last_models(self, like: Seen | None = None) -> dict[int, np.ndarray]:
        """Of rounds that were seen more than once the model that the run went on from."""
        return {number: different[-1] for number, different in self.models(like).items()}


def times_charged(run: Path) -> dict[int, int]:
    """How many lines the run's ledger has for each round."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    rounds = [line["round"] for line in lines if "round" in line]
    return {number: rounds.count(number) for number in rounds}


# --- does it fit -----------------------------------------------------------------------------------------------------

# All tests together raise a false alarm with a chance below 1e-9: they look at fewer than 100,000 chances.
UNLIKELY = 1e-9 / 100_000
TAILS = (2.0, 3.0, 4.0, 5.0)  # standard deviations
STEPS_IN_NOISE = 2.0**32  # at most so many steps of the public grid are in a standard deviation


def white_noise(charge: Charge, models: dict[int, np.ndarray], variances: Sequence[float] = ()) -> np.ndarray:
    """The steps between models, one row each, without what is known of their size and correlation.

    Where the noise is what was charged, all these numbers are independent and standard normal. (Rounding to float32 is
    a millionth of the noise or less.) A step may have one of several variances, over that which is charged: the nearest
    counts.
    """
    steps = np.diff([models[number] for number in sorted(models)], axis=0)
    white = np.linalg.solve(np.linalg.cholesky(charge.covariance(sorted(models))), steps)
    if variances:
        seen = np.mean(np.square(white), axis=1, keepdims=True)
        white /= np.sqrt(np.array(variances)[np.argmin(np.abs(np.log(seen / variances)), axis=1)])[:, None]
    return white


def what_is_wrong_with(white: np.ndarray) -> list[str]:
    """Why these are not independent standard normal numbers: rows are rounds, columns are coordinates."""
    chances: dict[str, float] = {}
    for number, row in enumerate(white, start=1):
        square, mean = float(np.sum(np.square(row))), float(np.sum(row)) / math.sqrt(row.size)
        chances[f"step {number} has {square / row.size:.4g} of its variance"] = _chance(stats.chi2(row.size), square)
        chances[f"step {number} has a mean of {mean:.3g} deviations"] = _chance(stats.norm, mean)
        chances[f"step {number} is not normal"] = _not_normal(row)
    square = float(np.sum(np.square(white)))
    chances[f"all have {square / white.size:.4g} of the variance"] = _chance(stats.chi2(white.size), square)
    chances["all together are not normal"] = _not_normal(white)
    for bound in TAILS:
        beyond, expected = int(np.sum(np.abs(white) > bound)), stats.binom(white.size, 2 * stats.norm.sf(bound))
        sentence = f"{beyond} numbers are beyond {bound:g} deviations, not {expected.mean():.4g}"
        chances[sentence] = 2 * min(expected.cdf(beyond), expected.sf(beyond - 1))
    largest = float(np.max(np.abs(white)))
    chances[f"the largest is {largest:.3g} deviations"] = white.size * 2 * stats.norm.sf(largest)
    return _unlikely(chances) + what_two_share(white, white)


def _unlikely(chances: dict[str, float]) -> list[str]:
    return [f"{sentence} (chance {chance:.2g})" for sentence, chance in chances.items() if not chance >= UNLIKELY]


def _chance(distribution, value: float) -> float:
    """Of a value so far from the middle, on either side."""
    return 2 * min(distribution.cdf(value), distribution.sf(value))


def _not_normal(values: np.ndarray) -> float:
    """A bound on the chance that the empirical distribution is so far off (Dvoretzky, Kiefer, Wolfowitz; Massart)."""
    distance = stats.ks_1samp(values.ravel(), stats.norm.cdf, method="asymp").statistic
    return 2 * math.exp(-2 * values.size * distance**2)


def what_two_share(first: np.ndarray, second: np.ndarray) -> list[str]:
    """Correlations of two sets of rounds at every shift of the coordinates: noise that comes again anywhere shows."""
    chances: dict[str, float] = {}
    size, same = first.shape[1], first is second
    one, other = np.fft.rfft(first), np.fft.rfft(second)
    for i in range(len(first)):
        for j in range(i if same else 0, len(second)):
            norm = np.linalg.norm(first[i]) * np.linalg.norm(second[j])
            correlations = np.fft.irfft(one[i] * np.conj(other[j]), size) / norm
            if same and i == j:
                correlations[0] = 0.0  # with itself
            shift = int(np.argmax(np.abs(correlations)))
            sentence = f"steps {i + 1} and {j + 1} correlate by {correlations[shift]:.3g} at shift {shift}"
            chances[sentence] = size * 2 * stats.norm.sf(abs(correlations[shift]) * math.sqrt(size))
    return _unlikely(chances)


def steps_in_noise(first: np.ndarray, start: np.ndarray, std: float) -> float:
    """How many steps of the coarsest grid with a power of two that has all numbers are in a standard deviation.

    Of those numbers of the first model that were zero before: in others the sum with the start was rounded.
    """
    values = first[(start == 0) & (first != 0)]
    assert values.size > 5_000
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = whole & -whole
    return std / 2.0 ** float(np.min(np.log2(lowest.astype(np.float64)) + exponent - 53))


def what_is_wrong_with_run(seen: Seen, variances: Sequence[float] = ()) -> list[str]:
    """All that does not fit of a run that has ended."""
    charge, models, charged = Charge.of(seen.run), seen.models(), times_charged(seen.run)
    found: list[str] = []
    exact = gaussian_epsilon(charge.moved, charge.delta)
    if not exact <= charge.epsilon * (1 + 1e-9):
        found.append(f"ε = {charge.epsilon} is stated, and this noise has {exact}")
    for number, different in models.items():
        if len(different) > (charged.get(number, 0) if number else 1):
            found.append(f"{len(different)} different models of round {number}, charged {charged.get(number, 0)} times")
    return found + what_is_wrong_with(white_noise(charge, seen.last_models(), variances))
