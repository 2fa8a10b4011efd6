"""The sums of a device as one vector of whole numbers, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sottovoce.federation.messages import Contribution
from sottovoce.privacy.mechanism import Mechanism
from sottovoce_evidence.recipe import Federation


@dataclass(frozen=True)
class Layout:
    """The order of a vector: all parameters, then the weight, the users and the bits of adaptive clipping.

    Where devices add the noise, only parameters are sent: exact counts beside them would tell the server more.
    """

    shapes: tuple[tuple[int, ...], ...]  # of the parameters
    bits: int
    counts: bool = True

    @property
    def size(self) -> int:
        return self.parameters + (2 + self.bits if self.counts else 0)

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def flatten(self, sums: Contribution) -> np.ndarray:
        parts = [leaf.astype(np.int64, copy=False).ravel() for leaf in sums.leaves]
        if self.counts:
            parts += [np.array([sums.weight, sums.users], np.int64), sums.bits.astype(np.int64, copy=False)]
        return np.concatenate(parts)

    def restore(self, vector: np.ndarray, task: str) -> Contribution:
        """The sums as one contribution; without counts these are zero."""
        leaves, start = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            leaves.append(vector[start : start + size].reshape(shape))
            start += size
        weight, users, bits = 0, 0, np.zeros(self.bits, np.int64)
        if self.counts:
            weight, users, bits = int(vector[start]), int(vector[start + 1]), vector[start + 2 :]
        return Contribution(task, users, weight, bits, leaves)


def largest_noise(mechanism: Mechanism, clip_norms: np.ndarray, layout: Layout) -> Callable[[int], int]:
    """What the noise of so many devices adds to one number of a vector at most; 0 where the server adds all noise."""
    devices = mechanism.devices
    if devices is None:
        return lambda count: 0
    return lambda count: devices.largest(mechanism.steps(clip_norms), count, layout.size)


def layout_of(sums: Contribution, federation: Federation) -> Layout:
    """The layout of a device's sums, as the recipe has it."""
    shapes = tuple(tuple(leaf.shape) for leaf in sums.leaves)
    return Layout(shapes, len(sums.bits), counts=federation.noise == "server")
