"""What the server does with the answers of devices: check, clip again, add up exactly. Nothing here knows Flower."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, largest_answer, read_answer
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import SAFE_SHARE
from sottovoce.privacy.estimators import WEIGHT_STEP
from sottovoce.privacy.fixed_point import BIT_STEP, MOST
from sottovoce.privacy.mechanism import Mechanism

log = logging.getLogger("sottovoce.collecting")
_ROUNDING = 1 - 1e-9  # more than a norm in float64 can fall short, and far less than the margin of a device's own clip


class DeviceSum(NamedTuple):
    """Σ w_k Δ_k, Σ w_k and Σ bits over the devices that answered, and how they answered (private)."""

    total: Any
    weight: Any
    bits: Any
    users: int
    answers: Mapping[str, int]  # how many devices contributed, and how many did not, by `Code`
    sizes: tuple[int, int] = (0, 0)  # bytes of the task, and of all answers

    def diagnostics(self) -> dict[str, Any]:
        """Exact figures of the cohort: private."""
        down, up = self.sizes
        return {
            "users": self.users, "weight": float(self.weight), "answers": dict(self.answers), "task_bytes": down,
            "answer_bytes": up,
        }  # fmt: skip


class Collected:
    """The answers to one task, added up as they come.

    Guarantee: what one device adds is bounded by what the server knows of it, whatever it sends: at most its registered
    users, at most their weight, and at most S times that weight in norm, in each part that is clipped. A device counts
    once; one that sends what is not understood counts for nothing.
    """

    def __init__(
        self,
        task: str,
        registered: Mapping[str, int],
        mechanism: Mechanism,
        clip_norms: np.ndarray,
        like: LanguageModel,
    ):
        self._task, self._registered, self._mechanism = task, registered, mechanism
        self._clip_norms, self._grid = np.asarray(clip_norms, np.float64), mechanism.grid(clip_norms)
        leaves, self._structure = jax.tree.flatten(like)
        self._shapes = [leaf.shape for leaf in leaves]
        # Of an honest answer, the most; whoever carries answers need not take more from a device.
        self.most_bytes = largest_answer(sum(leaf.size for leaf in leaves), len(leaves), len(clip_norms))
        kind = np.int64 if self._grid is not None else np.float64
        self._leaves = [np.zeros(shape, kind) for shape in self._shapes]
        self._weight, self._users, self._bytes = 0, 0, 0
        self._bits = np.zeros(len(clip_norms), np.int64)
        self._codes: dict[str, str] = {}

    def take(self, device: str, message: bytes) -> str:
        """Add a device's answer; "joined", or why it adds nothing. It never raises, whatever the device sent."""
        self._bytes += len(message)
        try:
            if device not in self._registered:
                raise Refused(Code.STRANGER)
            if device in self._codes:
                return Code.TWICE.value
            if len(message) > self.most_bytes:
                raise Refused(Code.MALFORMED)
            answer = read_answer(message)
            if isinstance(answer, Nothing):
                raise Refused(answer.code)
            self._check(answer, self._registered[device])
            self._add(answer)
            code = "joined"
        except Refused as refused:
            code = refused.code.value
        except Exception:  # what nobody thought of: the sums are as they were, and the others count
            log.exception("the answer of %s cannot be counted", device)
            code = Code.FAILED.value
        self._codes[device] = code
        return code

    def _check(self, answer: Contribution, registered: int) -> None:
        if answer.task != self._task:
            raise Refused(Code.TWICE)  # the answer to an earlier task, which was counted or came too late
        kinds = (np.int32, np.int64) if self._grid is not None else (np.float32,)
        if [leaf.shape for leaf in answer.leaves] != self._shapes or any(
            leaf.dtype not in kinds for leaf in answer.leaves
        ):
            raise Refused(Code.MALFORMED)
        if not all(np.isfinite(leaf).all() for leaf in answer.leaves):
            raise Refused(Code.MALFORMED)
        if answer.bits.shape != self._bits.shape or answer.bits.dtype != np.int64:
            raise Refused(Code.MALFORMED)
        # Whole numbers are compared as they are: in floating point a large one is an error.
        if not (0 < answer.users <= registered and 0 <= answer.weight <= answer.users / WEIGHT_STEP):
            raise Refused(Code.BOUNDS)
        if answer.bits.max() > answer.users or answer.bits.min() < -answer.users:
            raise Refused(Code.BOUNDS)
        if self._users + answer.users > MOST:  # of more, a sum would not be exact
            raise Refused(Code.BOUNDS)

    def _add(self, answer: Contribution) -> None:
        weight = answer.weight * WEIGHT_STEP
        # With weight-aware clips w·Δ is within S for each user, whatever the weights are.
        share = answer.users if self._mechanism.clipping.weight_aware else weight
        leaves = answer.leaves if self._grid is None else self._clip(answer.leaves, self._clip_norms * share)
        totals = [total + leaf for total, leaf in zip(self._leaves, leaves, strict=True)]
        bits = self._bits + answer.bits
        # All of it or nothing: from here on nothing can fail.
        self._leaves, self._bits = totals, bits
        self._weight += answer.weight
        self._users += answer.users

    def _clip(self, leaves: list[np.ndarray], bounds: np.ndarray) -> list[np.ndarray]:
        """Each part within its bound. One that is stays as it is, to the bit; what is cut is cut towards zero."""
        assert self._grid is not None
        parts = zip(self._mechanism.clipping.parts(leaves), bounds, strict=True)
        return [leaf for part, bound in parts for leaf in _within(part, bound / self._grid)]

    def codes(self) -> dict[str, str]:
        """How each device answered; those that did not are away."""
        return {name: self._codes.get(name, Code.AWAY.value) for name in self._registered}

    def missing(self) -> set[str]:
        return set(self._registered) - set(self._codes)

    def summed(self, task_bytes: int = 0) -> DeviceSum:
        """The sums, in float64, which holds them exactly."""
        scale = 1.0 if self._grid is None else self._grid
        total = self._structure.unflatten([leaf.astype(np.float64) * scale for leaf in self._leaves])
        weight, bits = np.float64(self._weight * WEIGHT_STEP), self._bits * BIT_STEP
        answers = Counter(self.codes().values())
        return DeviceSum(total, weight, bits, self._users, answers, (task_bytes, self._bytes))


def _within(leaves: Iterable[np.ndarray], bound: float) -> list[np.ndarray]:
    """Whole numbers whose joint norm is at most `bound`."""
    leaves = [leaf.astype(np.int64) for leaf in leaves]
    length = float(np.sqrt(sum(float(np.sum(np.square(leaf.astype(np.float64)))) for leaf in leaves)))
    if length <= bound * _ROUNDING:
        return leaves
    share = bound * SAFE_SHARE / length
    return [np.trunc(leaf * share).astype(np.int64) for leaf in leaves]
