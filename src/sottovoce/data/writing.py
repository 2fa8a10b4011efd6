"""Writing the split of a store."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import TracebackType

import numpy as np

# A record batch holds less than this, or one user: its 32-bit offsets cannot overflow while a user is below it too.
BATCH_TOKENS = 2**22
_NONE = np.zeros(0, np.uint8)


class SplitWriter:
    """Writes one split, a record batch at a time.

    Where a batch ends depends on the users alone, so that the same users always give the same file.
    """

    def __init__(self, path: Path, vocabulary_size: int) -> None:
        import pyarrow as pa

        self.users = self.tokens = 0
        wide = vocabulary_size > 2**16
        self._names: list[str] = []
        self._lengths = [0]
        self._buffer = array("I" if wide else "H")
        self._unknown, self._unknown_lengths = bytearray(), [0]
        tokens = pa.list_(pa.uint32() if wide else pa.uint16())
        self._schema = pa.schema([("user", pa.string()), ("tokens", tokens), ("unknown", pa.list_(pa.uint8()))])
        # Not compressed: a compressed file cannot be mapped.
        self._file = pa.ipc.new_file(str(path), self._schema)

    def add(self, name: str, tokens: np.ndarray, unknown: np.ndarray = _NONE) -> None:
        """One user; `unknown` holds the lengths of the words outside the vocabulary."""
        if self._names and len(self._buffer) + len(tokens) > BATCH_TOKENS:
            self._flush()
        self._names.append(name)
        self._lengths.append(len(tokens))
        self._buffer.frombytes(np.asarray(tokens, self._buffer.typecode).tobytes())
        self._unknown += np.asarray(unknown, np.uint8).tobytes()
        self._unknown_lengths.append(len(unknown))
        self.users += 1
        self.tokens += len(tokens)

    def _flush(self) -> None:
        import pyarrow as pa

        values = np.frombuffer(self._buffer, dtype=self._buffer.typecode)
        lists = pa.ListArray.from_arrays(np.cumsum(self._lengths, dtype=np.int32), values)
        letters = np.frombuffer(bytes(self._unknown), np.uint8)
        unknown = pa.ListArray.from_arrays(np.cumsum(self._unknown_lengths, dtype=np.int32), letters)
        self._file.write_batch(pa.record_batch([pa.array(self._names), lists, unknown], schema=self._schema))
        self._names, self._lengths, self._buffer = [], [0], array(self._buffer.typecode)
        self._unknown, self._unknown_lengths = bytearray(), [0]

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._names:
                self._flush()
        finally:
            self._file.close()
