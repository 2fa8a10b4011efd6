"""Finds the strategy matrix of a run: the one whose noise disturbs prefix sums least, for what one user may join.

What is made small is the sensitivity times the root mean square error of the prefix sums: at any ε the error of a run
is in proportion to it. The search is by jax-privacy, in float64 on the host. Its answer is only a proposal: the matrix
classes check what the sensitivity relies on and compute the sensitivity themselves.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import write_aside
from sottovoce_evidence.accounting.matrices import (
    MATRICES,
    Banded,
    Blt,
    Identity,
    Participation,
    StrategyMatrix,
    matrix_from_json,
)
from sottovoce_evidence.errors import SottoError, did_you_mean

SEARCH = 1  # a later way to search must not read what this one kept
MOST_BANDS = 64  # by default: each is a vector of the model's size to keep, and to multiply in every round
MOST_STEPS, CLOSE, PATIENCE = 300, 1e-6, 10  # a search ends when so many steps gained no more than this share
SAME = 1e-4  # a buffer is left out when that adds no more than this share to the error
DIGITS = 10  # of a coefficient


def check_noise(noise: str) -> None:
    """Refuse a kind of noise that there is not."""
    if noise not in MATRICES:
        raise SottoError(f"privacy.noise={noise!r} must be one of {', '.join(MATRICES)}{did_you_mean(noise, MATRICES)}")


def find_matrix(noise: str, participation: Participation, bands: int = 0, buffers: int = 4) -> StrategyMatrix:
    """The strategy matrix of a run with this kind of noise.

    Args:
        noise: "independent", "banded" or "blt".
        participation: what one user may join.
        bands: of a banded matrix, at most; 0: the separation, and not more than 64.
        buffers: of a BLT, at most. Fewer are kept where more bring nothing.
    """
    check_noise(noise)
    if noise == Identity.kind:
        return Identity()
    rounds, most = participation.rounds, participation.most
    separation = min(participation.min_separation, rounds) if most > 1 else rounds
    size = min(bands or min(separation, MOST_BANDS), rounds) if noise == Banded.kind else buffers
    return _find(noise, Participation(rounds, separation, most), size)


def loss(matrix: StrategyMatrix, participation: Participation) -> float:
    """The error of prefix sums at a noise multiplier of 1, in units of what one user moves one round."""
    return matrix.sensitivity(participation) * matrix.prefix_error(participation.rounds)


@lru_cache(maxsize=64)
def _find(noise: str, participation: Participation, size: int) -> StrategyMatrix:
    settings = {"search": SEARCH, "noise": noise, "size": size, **participation.to_json()}
    name = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / f"{name[:32]}.json"
    with suppress(OSError, ValueError, SottoError):
        kept = matrix_from_json(json.loads(path.read_text()))
        if kept.kind == noise:
            return kept
    candidates = _banded(participation, size) if noise == Banded.kind else _blts(participation, size)
    found = min(candidates, key=lambda matrix: loss(matrix, participation))
    with suppress(OSError):  # it is found again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, json.dumps(found.to_json()).encode())
    return found


def cache_folder() -> Path:
    """Where matrices are kept: they follow from public settings alone."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce" / "matrices"


@contextmanager
def _on_the_host() -> Generator[None, None, None]:
    try:
        import jax_privacy.matrix_factorization.toeplitz  # noqa: F401
    except ImportError:
        raise SottoError("this noise needs a search by jax-privacy: pip install 'sottovoce[correlated]'") from None
    import jax

    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def _banded(participation: Participation, bands: int) -> list[StrategyMatrix]:
    """The square root of the prefix sums, cut to the bands, and what the search makes of it."""
    root = np.cumprod([1.0] + [(2 * j - 1) / (2 * j) for j in range(1, bands)])
    known: list[StrategyMatrix] = [Banded((1.0,)), Banded(tuple(root))]
    if bands == 1:
        return known[:1]
    with _on_the_host():
        import jax
        import jax.numpy as jnp
        from jax_privacy.matrix_factorization import optimization, toeplitz

        n, b, k = participation.rounds, participation.min_separation, participation.participations

        def column(ratios: Any) -> Any:
            """The coefficients, from the ratio of each to the one before, which lies between 0 and 1."""
            return jnp.concatenate([jnp.ones(1), jnp.exp(jnp.cumsum(jax.nn.log_sigmoid(ratios)))])

        def squared(ratios: Any) -> Any:
            coefficients = column(ratios)
            error = jnp.mean(toeplitz.per_query_error(strategy_coef=coefficients, n=n, skip_checks=True))
            return error * toeplitz.minsep_sensitivity_squared(coefficients, b, k, n, skip_checks=True)

        start = root[1:] / root[:-1]
        found = optimization.optimize(
            squared, jnp.log(start / (1 - start)), max_optimizer_steps=MOST_STEPS, callback=_settled()
        )
        coefficients = np.asarray(column(found))
    if np.all(np.isfinite(coefficients)):
        falling = np.minimum.accumulate(np.clip(np.round(coefficients, DIGITS), 0.0, 1.0))
        known.append(Banded(tuple(falling.tolist())))
    return known


def _blts(participation: Participation, buffers: int) -> list[StrategyMatrix]:
    """A rational approximation of the square root of the prefix sums, and what the search makes of it."""
    known: list[StrategyMatrix] = [Blt((0.0,), (0.0,))]
    with _on_the_host():
        import optax
        from jax_privacy.matrix_factorization import buffered_toeplitz, optimization

        wanted = buffered_toeplitz.LossFn.build_min_sep(
            n=participation.rounds,
            error="mean",
            min_sep=participation.min_separation,
            max_participations=participation.participations,
        )
        # As `buffered_toeplitz.optimize_loss` has it; that one refuses an answer whose inverse it cannot write down.
        pairs = buffered_toeplitz.Parameterization.buf_decay_pair()
        search = optax.scale_by_zoom_linesearch(
            max_linesearch_steps=100, curv_rtol=0.5, max_learning_rate=1.0, stepsize_precision=1e-20
        )
        start = buffered_toeplitz.get_init_blt(buffers)
        steps: list[Any] = [pairs.params_from_blt(start)]
        optimization.optimize(
            pairs.get_loss_fn(wanted),
            steps[0],
            max_optimizer_steps=MOST_STEPS,
            callback=_settled(steps),
            optimizer=optax.lbfgs(memory_size=15, linesearch=search),
        )
        # The last step may have left what is allowed: the one before it has not.
        for params in steps[:1] + steps[-3:]:
            blt, _ = pairs.blt_and_inverse_from_params(params)
            scales, decays = np.asarray(blt.output_scale), np.asarray(blt.buf_decay)
            if np.all(np.isfinite(scales)) and np.all(np.isfinite(decays)):
                known.append(_simplest(_allowed(scales, decays), participation))
    return known


def _settled(steps: list[Any] | None = None) -> Callable[[Any], bool]:
    """Ends a search that gains no more; keeps the steps where asked."""
    losses: list[float] = []

    def callback(state: Any) -> bool:
        losses.append(float(state.loss))
        if steps is not None:
            steps.append(state.params)
        if not math.isfinite(losses[-1]):
            return True
        return len(losses) > PATIENCE and losses[-1 - PATIENCE] - losses[-1] < CLOSE * losses[-1]

    return callback


def _allowed(scales: Sequence[float] | np.ndarray, decays: Sequence[float] | np.ndarray) -> Blt:
    scales, decays = np.clip(scales, 0.0, 1.0), np.clip(np.round(decays, DIGITS), 0.0, 1.0)
    scales = scales / max(1.0, float(np.sum(scales)))
    return Blt(tuple((np.floor(scales * 10**DIGITS) / 10**DIGITS).tolist()), tuple(decays.tolist()))


def _simplest(blt: Blt, participation: Participation) -> Blt:
    """With as few buffers as do: one is left out, or made one with another, where that hardly changes the error."""
    best = loss(blt, participation)
    while len(blt.scales) > 1:
        pairs = sorted(zip(blt.scales, blt.decays, strict=True), key=lambda pair: pair[1])
        fewer = [pairs[:i] + pairs[i + 1 :] for i in range(len(pairs))]
        for i, ((scale, decay), (other, near)) in enumerate(pairwise(pairs)):
            if total := scale + other:
                together = (total, (scale * decay + other * near) / total)
                fewer.append([*pairs[:i], together, *pairs[i + 2 :]])
        trials = [_allowed(*map(np.array, zip(*each, strict=True))) for each in fewer]
        simpler = min(trials, key=lambda trial: loss(trial, participation))
        if loss(simpler, participation) > best * (1 + SAME):
            break
        blt = simpler
    return blt
