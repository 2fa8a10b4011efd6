"""Every kind of noise at the ε of a plan: how far it moves the sums over all rounds so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sottovoce.planning.plan import BUFFERS, Plan
from sottovoce.privacy.matrix_search import find_matrix
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.accounting.matrices import MATRICES, Identity, Participation, StrategyMatrix
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts
from sottovoce_evidence.sampling import Poisson


@dataclass(frozen=True)
class Compared(Facts):
    """One kind of noise at the ε of a plan, for one user added or removed."""

    noise: str
    sampling: str
    noise_over_clip: float | None  # None: it could not be found
    prefix_error: float | None
    buffers: int
    missing: str = ""


def compare_noise(plan: Plan) -> list[Compared]:
    """Every kind of noise at the same ε for one user added or removed, and Poisson sampling with as many user updates.

    Args:
        plan: one in which users join in turn or with a least separation.
    """
    joining = plan.joining
    if joining is None:
        raise SottoError("noise is compared where users join in turn or with a least separation")
    # All are one Gaussian over the run, whatever the matrix: the same ε is the same noise over the run's sensitivity.
    z = plan.noise_multiplier
    if plan.noise == Identity.kind:
        z /= Identity().sensitivity(joining)
    found = []
    for kind in MATRICES:
        sizes = (plan.bands or 0, plan.buffers or BUFFERS) if kind == plan.noise else (0, BUFFERS)
        found.append(_row(kind, plan.sampling, partial(find_matrix, kind, joining, *sizes), z, joining))
    return [*found, _poisson(plan, z, joining)]


def _row(kind: str, sampling: str, search: Callable[[], StrategyMatrix], z: float, joining: Participation) -> Compared:
    try:
        matrix = search()
        scale = z * matrix.sensitivity(joining)
    except SottoError as error:
        return Compared(kind, sampling, None, None, 0, str(error))
    rounds = joining.rounds
    return Compared(kind, sampling, scale, scale * matrix.prefix_error(rounds), matrix.buffers(rounds))


def _poisson(plan: Plan, z: float, joining: Participation) -> Compared:
    run = CorrelatedGaussian(z, Identity(), joining)
    sampler = Poisson(plan.cohort / plan.users)
    try:
        epsilon = accounting.epsilon([(run, 1)], plan.delta)
        own = accounting.calibrate(sampler.events([(1.0, plan.rounds)]), epsilon, plan.delta)
    except SottoError as error:
        return Compared(Identity.kind, "poisson", None, None, 0, str(error))
    return Compared(Identity.kind, "poisson", own, own * Identity().prefix_error(plan.rounds), 0)
