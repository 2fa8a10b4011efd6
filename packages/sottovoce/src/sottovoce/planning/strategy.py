"""How the noise of planned rounds is correlated, and what a plan says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.privacy.matrix_search import find_matrix
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.accounting.gaussian import zcdp_epsilon
from sottovoce_evidence.accounting.matrices import MATRICES, Banded, Blt, Identity, Participation, StrategyMatrix
from sottovoce_evidence.errors import SettingError, did_you_mean
from sottovoce_evidence.files import Json
from sottovoce_evidence.sampling import SAMPLERS

MOST_BUFFERS = 10
MOST_ROUNDS = 100_000  # with correlated noise: beyond, a matrix takes minutes to find
BUFFERS = 4  # of a BLT, by default
BYTES_PER_NUMBER = 8  # of the noise that is kept


@dataclass(frozen=True)
class NoiseChoice:
    """How users join and how noise is correlated, as a plan asks for it. What was not asked for is None."""

    sampling: str = "poisson"
    min_separation: int | None = None
    participations: int | None = None
    noise: str = Identity.kind
    bands: int | None = None
    buffers: int | None = None

    def check(self, users: int, cohort: int, rounds: int) -> None:
        """Refuse what does not fit together."""
        if self.noise not in MATRICES:
            known = f"{', '.join(MATRICES)}{did_you_mean(self.noise, MATRICES)}"
            raise SettingError(f"{{noise!r}} must be one of {known}", noise=self.noise)
        if self.noise != Identity.kind and SAMPLERS[self.sampling].amplifies:
            needs = "needs to know how often and how close together a user joins"
            raise SettingError(
                f"{{noise!r}} {needs}: use sampling 'in_turn' or 'min_separation', not {{sampling!r}}",
                noise=self.noise,
                sampling=self.sampling,
            )
        if self.noise != Identity.kind and rounds > MOST_ROUNDS:
            raise SettingError(f"{{rounds}} must be at most {MOST_ROUNDS} with correlated noise", rounds=rounds)
        sizes = {"bands": (self.bands, Banded.kind, rounds), "buffers": (self.buffers, Blt.kind, MOST_BUFFERS)}
        for name, (size, kind, most) in sizes.items():
            if size is not None and self.noise != kind:
                text = f"{{{name}}} is for noise {kind!r}, not {self.noise!r}; leave it out"
                raise SettingError(text, **{name: size})
            if size is not None and not 1 <= size <= most:
                raise SettingError(f"{{{name}}} must be from 1 to {most}", **{name: size})
        self._check_separation(users, cohort, rounds)

    def _check_separation(self, users: int, cohort: int, rounds: int) -> None:
        b, k = self.min_separation, self.participations
        if not SAMPLERS[self.sampling].takes("min_separation"):
            for name, value in (("min_separation", b), ("participations", k)):
                if value is not None:
                    text = f"{{{name}}} is for sampling 'min_separation', not {self.sampling!r}; leave it out"
                    raise SettingError(text, **{name: value})
            return
        most = min(users // cohort, rounds)
        if b is None:
            text = "{min_separation.name} is missing: the fewest rounds from one that a user joins to the next, from 1 "
            raise SettingError(text + f"to {most}", min_separation=b)
        if not 1 <= b <= most:
            why = "the declared users over the cohort" if most < rounds else "the rounds"
            raise SettingError(f"{{min_separation}} must be from 1 to {most}, {why}", min_separation=b)
        least = math.ceil(rounds * cohort / users)
        if k is not None and k < least:
            text = f"{{participations}} is too few: {rounds} rounds of {cohort} of {users} users need {least} or more"
            raise SettingError(text, participations=k)

    def participation(self, rounds: int) -> Participation | None:
        """What is declared for "min_separation"."""
        if self.min_separation is None:
            return None
        return Participation(rounds, self.min_separation, self.participations or rounds)

    def matrix(self, joining: Participation) -> StrategyMatrix:
        return find_matrix(self.noise, joining, self.bands or 0, self.buffers or BUFFERS)


def figures_of(run: CorrelatedGaussian, delta: float, parameters: int | None) -> Json:
    """What a plan says of a run whose noise is correlated, by the names of its fields."""
    matrix, rounds = run.matrix, run.participation.rounds
    return {
        "sensitivity": run.sensitivity,
        "rho": run.rho,
        "epsilon_zcdp": zcdp_epsilon(run.rho, delta) if run.noise_multiplier else math.inf,
        # The matrix's own numbers, and the first column of C.
        "strategy": {**matrix.to_json(), "coefficients": matrix.coefficients(rounds).tolist()},
        "noise_bytes": None if parameters is None else BYTES_PER_NUMBER * parameters * matrix.buffers(rounds),
    }
