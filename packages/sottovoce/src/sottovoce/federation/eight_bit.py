"""Whole numbers in one byte each, without loss: how a device of one user sends an update that was quantised.

`local.compression = "8bit"` makes every number of an update a multiple of the unit of its row, from -127 to 127. What
is sent lies on the grid of the round: the update was clipped, weighted and cut to whole steps since, each with its own
rounding. So a row has at most 128 magnitudes, each near a multiple of one unit. Sent are the multiples in a byte each,
the unit, and for each multiple in the row by how many steps it is off. The numbers that the server reads are those that
the device had, to the last one. A row that does not fit is no such row, and its array is sent as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LARGEST = 127
_MOST_STEPS = 2.0**40  # of a unit: far above what a user can send, and far below what wraps round


@dataclass(frozen=True)
class Coded:
    """An array of whole numbers. The last axis is a row."""

    multiples: np.ndarray  # int8, in the shape of the array
    units: np.ndarray  # float64, of each row
    off: np.ndarray  # int8: of each magnitude in a row, from the least, row after row

    @property
    def nbytes(self) -> int:
        return self.multiples.nbytes + self.units.nbytes + self.off.nbytes


def encode(numbers: np.ndarray) -> Coded | None:
    """The numbers in a byte each; None where that would lose something, or save nothing.

    Guarantee: `decode` gives the same numbers.
    """
    rows = _rows(numbers.astype(np.int64, copy=False))
    units = np.abs(rows).max(axis=1, initial=0) / LARGEST
    if not np.all(units <= _MOST_STEPS):
        return None
    multiples = np.rint(rows / np.where(units > 0, units, 1.0)[:, None]).astype(np.int8)
    sizes = np.abs(multiples.astype(np.int64))
    off = np.abs(rows) - _near(sizes, units)
    if off.size and not (off.min() >= -LARGEST and off.max() <= LARGEST):
        return None
    table, place = np.zeros((len(rows), LARGEST + 1), np.int8), np.arange(len(rows))[:, None]
    table[place, sizes] = off
    coded = Coded(multiples.reshape(numbers.shape), units, table[_present(sizes)])
    found = decode(coded)
    return coded if found is not None and np.array_equal(found, numbers) and coded.nbytes < 4 * numbers.size else None


def decode(coded: Coded) -> np.ndarray | None:
    """The numbers, in 64 bits; None where the parts do not belong together. The sender may be hostile."""
    if coded.multiples.dtype != np.int8 or coded.units.dtype != np.float64 or coded.off.dtype != np.int8:
        return None
    rows = _rows(coded.multiples).astype(np.int64)
    sizes = np.abs(rows)
    fits = coded.units.shape == (len(rows),) and bool(np.all((coded.units >= 0) & (coded.units <= _MOST_STEPS)))
    if not fits or sizes.max(initial=0) > LARGEST:
        return None
    present = _present(sizes)
    if coded.off.shape != (int(present.sum()),):
        return None
    table = np.zeros(present.shape, np.int64)
    table[present] = coded.off
    magnitudes = _near(sizes, coded.units) + np.take_along_axis(table, sizes, axis=1)
    return (np.sign(rows) * magnitudes).reshape(coded.multiples.shape)


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.reshape(-1, max(array.size, 1))


def _near(sizes: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Multiples of the units in whole steps: one product in float64, which is the same on every machine."""
    return np.floor(sizes * units[:, None]).astype(np.int64)


def _present(sizes: np.ndarray) -> np.ndarray:
    """Which magnitudes there are in each row."""
    found = np.zeros((len(sizes), LARGEST + 1), np.bool_)
    found[np.arange(len(sizes))[:, None], sizes] = True
    return found
