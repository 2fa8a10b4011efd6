"""The plain sum of the answers of devices: check, clip again, add up exactly."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from sottovoce.federation.aggregation.phases import JOINED, DeviceSum, Phase, Say, log
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, digest, largest_answer, read_answer
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import CLIPS, SAFE_SHARE
from sottovoce.privacy.estimators import WEIGHT_STEP
from sottovoce.privacy.fixed_point import BIT_STEP, MOST
from sottovoce.privacy.mechanism import Mechanism
from sottovoce_evidence.errors import SottoError

_ROUNDING = 1 - 1e-9  # more than the error of a norm in float64, and far less than the margin of a device's own clip


class Aggregator:
    """The plain aggregation: every registered device gets one task, and its answer is added up as it comes.

    Guarantee: what one device adds is bounded by what the server knows of it, for any answer: at most its registered
    users, at most their weight, and at most S times that weight in norm, in each part that is clipped. A device counts
    once. An answer that cannot be read adds nothing.
    """

    def __init__(
        self,
        task: bytes,
        registered: Mapping[str, int],
        mechanism: Mechanism,
        clip_norms: np.ndarray,
        params: LanguageModel,
        say: Say = log.warning,
    ):
        self._clipping = mechanism.clipping
        if type(self._clipping) not in CLIPS.values():
            name, known = type(self._clipping).__name__, ", ".join(CLIPS)
            raise SottoError(f"the server cannot check the clip {name}; register it in CLIPS, or use one of {known}")
        self._say, self.messages = say, dict.fromkeys(registered, task)
        self._task, self._task_bytes, self._registered = digest(task), len(task), registered
        self._clip_norms, self._grid = np.asarray(clip_norms, np.float64), mechanism.grid(clip_norms)
        leaves, self._structure = jax.tree.flatten(params)
        self.max_answer_bytes = largest_answer(sum(leaf.size for leaf in leaves), len(leaves), len(clip_norms))
        self._leaves = [np.zeros(leaf.shape, np.float64 if self._grid is None else np.int64) for leaf in leaves]
        self._weight, self._users, self._bytes = 0, 0, 0
        self._bits = np.zeros(len(clip_norms), np.int64)
        self._codes: dict[str, str] = {}
        self.lacking: list[str] = []  # devices that lack the frozen part: they may answer once more

    @property
    def first(self) -> Phase:
        return self

    def rest(self) -> Iterator[Phase]:
        yield from ()

    def phases(self) -> Iterator[Phase]:
        yield self.first
        yield from self.rest()

    def ask_again(self, devices: Iterable[str]) -> None:
        """The next phase asks these devices alone."""
        self.messages = {device: self.messages[device] for device in devices}

    def take(self, device: str, answer: bytes) -> str:
        """Add a device's answer: "joined", or the code that says why it adds nothing. It never raises."""
        self._bytes += len(answer)
        if device not in self._registered:
            return Code.STRANGER.value
        if device in self._codes:
            return Code.TWICE.value
        try:
            if len(answer) > self.max_answer_bytes:
                raise Refused(Code.MALFORMED)
            contribution = read_answer(answer)
            if isinstance(contribution, Nothing):
                raise Refused(contribution.code)
            if contribution.task != self._task:
                raise Refused(Code.TWICE)  # the answer to an earlier task, which was counted or came too late
            self._check(contribution, self._registered[device])
            self._add(contribution)
            code = JOINED
        except Refused as refused:
            code = refused.code.value
            if refused.code is Code.FROZEN and device not in self.lacking:
                self.lacking.append(device)
                return code
        except Exception:  # noqa: BLE001 -- not foreseen: the sums are as they were, and the other devices count
            self._say(f"the answer of {device} cannot be counted\n{traceback.format_exc()}")
            code = Code.FAILED.value
        self._codes[device] = code
        return code

    def total(self) -> DeviceSum:
        """The sums, in float64, which holds them exactly."""
        scale = 1.0 if self._grid is None else self._grid
        total = self._structure.unflatten([leaf.astype(np.float64) * scale for leaf in self._leaves])
        weight, bits = np.float64(self._weight * WEIGHT_STEP), self._bits * BIT_STEP
        lacking = dict.fromkeys(self.lacking, Code.FROZEN.value)
        answers = Counter({**lacking, **self._codes}.get(device, Code.AWAY.value) for device in self._registered)
        return DeviceSum(total, weight, bits, self._users, answers, (self._task_bytes, self._bytes))

    def _check(self, answer: Contribution, registered: int) -> None:
        dtypes = (np.int32, np.int64) if self._grid is not None else (np.float32,)
        if not (
            [leaf.shape for leaf in answer.leaves] == [leaf.shape for leaf in self._leaves]
            and all(leaf.dtype in dtypes and np.isfinite(leaf).all() for leaf in answer.leaves)
            and answer.bits.shape == self._bits.shape
            and answer.bits.dtype == np.int64
        ):
            raise Refused(Code.MALFORMED)
        # Integers are compared as they are: a large one cannot be converted to floating point.
        if not (
            0 <= answer.users <= registered
            and 0 <= answer.weight <= answer.users / WEIGHT_STEP
            and -answer.users <= answer.bits.min() <= answer.bits.max() <= answer.users
            and self._users + answer.users <= MOST  # a sum over more users would not be exact
        ):
            raise Refused(Code.BOUNDS)

    def _add(self, answer: Contribution) -> None:
        share = answer.weight * WEIGHT_STEP
        leaves = answer.leaves
        if self._grid is not None:
            parts = zip(self._clipping.parts(leaves), self._clip_norms * share / self._grid, strict=True)
            leaves = [leaf for part, bound in parts for leaf in within(part, bound)]
        totals = [total + leaf for total, leaf in zip(self._leaves, leaves, strict=True)]
        bits = self._bits + answer.bits
        # All of it or nothing: from here on nothing can fail.
        self._leaves, self._bits = totals, bits
        self._weight += answer.weight
        self._users += answer.users


def within(leaves: Iterable[np.ndarray], bound: float) -> list[np.ndarray]:
    """Integers whose joint norm is at most `bound`: unchanged if they are within it, else scaled and cut to zero."""
    leaves = [leaf.astype(np.int64) for leaf in leaves]
    length = float(np.sqrt(sum(float(np.sum(np.square(leaf.astype(np.float64)))) for leaf in leaves)))
    if length <= bound * _ROUNDING:
        return leaves
    share = bound * SAFE_SHARE / length
    return [np.trunc(leaf * share).astype(np.int64) for leaf in leaves]
