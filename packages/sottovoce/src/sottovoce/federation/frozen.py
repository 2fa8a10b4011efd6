"""The frozen part of a model across devices: it is sent once to each, which keeps it by its hash.

Every task names the hash. A device that lacks that part says so before it draws anybody; it then gets the part, and the
task once more. So all devices train beside the same frozen weights, or contribute nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.federation.aggregation.phases import DeviceSum, Phase, TaskAggregation
from sottovoce.federation.messages import MAX_BYTES, Code, FrozenPart, Nothing, Refused, largest_answer, read_answer
from sottovoce.files import make_folder, write_aside
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import load_arrays
from sottovoce_evidence.errors import DamagedRun, SottoError

KEPT = 2  # parts on a device: of the run it joins, and of the one before
_HASH = re.compile(r"[0-9a-f]{64}")


class FrozenParts:
    """The parts that a device keeps, in a folder of its own. A damaged file counts as none: the part is sent again.

    Guarantee: `load` gives arrays of exactly the hash it is asked for, or None.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            arrays = load_arrays(path, "")
        except DamagedRun:
            return None
        return arrays if digest(arrays) == name else None

    def keep(self, part: FrozenPart) -> None:
        """Write a part, if it is what its name says."""
        from safetensors.numpy import save

        path = self._path(part.name)
        if digest(part.arrays) != part.name:
            raise Refused(Code.MALFORMED)
        make_folder(self._folder, 0o700)
        write_aside(path, save(part.arrays), private=True)
        others = [each for each in self._folder.glob("*.safetensors") if each != path]
        for old in sorted(others, key=lambda each: each.stat().st_mtime)[: max(0, len(others) - KEPT + 1)]:
            old.unlink()

    def _path(self, name: str) -> Path:
        if not _HASH.fullmatch(name):  # it becomes the name of a file
            raise Refused(Code.MALFORMED)
        return self._folder / f"{name}.safetensors"


@dataclass(frozen=True)
class _Sending:
    """The phase that sends the part to devices that lack it."""

    messages: Mapping[str, bytes]
    taken: Callable[[str], None]
    max_answer_bytes: int = largest_answer(0, 0, 0)

    def take(self, device: str, answer: bytes) -> str:
        try:
            found = read_answer(answer)
        except Refused as refused:
            return refused.code.value
        if found != Nothing(Code.KEPT):
            return found.code.value if isinstance(found, Nothing) else Code.MALFORMED.value
        self.taken(device)
        return Code.KEPT.value


class WithFrozen:
    """An aggregation of a model with a frozen part: those who lack it get it, and then their task again."""

    def __init__(self, aggregator: TaskAggregation, part: bytes):
        self._aggregator, self._part = aggregator, part
        self._sent = 0

    def phases(self) -> Iterator[Phase]:
        yield self._aggregator.first
        have: list[str] = []
        self._sent = len(self._aggregator.lacking)
        yield _Sending(dict.fromkeys(self._aggregator.lacking, self._part), have.append)
        self._aggregator.ask_again(have)
        yield self._aggregator.first
        yield from self._aggregator.rest()

    def total(self) -> DeviceSum:
        return self._aggregator.total()._replace(frozen_bytes=len(self._part) * self._sent)


def frozen_part(federation: str, arrays: Mapping[str, np.ndarray]) -> FrozenPart:
    """The message for the frozen part of a run's model. Its name is the one in the run's ledger."""
    return FrozenPart(federation, digest(dict(arrays)), dict(arrays))


def check_size(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse a frozen part that is more than one message holds."""
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BYTES - 2**20:
        raise SottoError(
            f"the frozen part of the model has {size:,} bytes, and devices take messages of {MAX_BYTES:,} at most; "
            f"choose a smaller model, or simulate the run"
        )
