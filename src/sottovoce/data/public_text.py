"""Public text that goes to devices with the model, to be rehearsed there: nobody's, so it costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


@dataclass(frozen=True, eq=False)
class PublicText:
    """All of it as one stream of tokens, and the names of what it was made from."""

    tokens: np.ndarray
    vocabulary: str
    fingerprint: str

    def excerpts(self, rows: np.ndarray, size: int, key: bytes) -> np.ndarray:
        """For each of these users a run of `size` tokens. The key is the round's: another round has other text."""
        last = self.tokens.size - size
        picked = np.empty((len(rows), size), np.int32)
        for place, row in enumerate(rows):
            drawn = blake2b(int(row).to_bytes(8, "little"), key=key, digest_size=8).digest()
            start = int.from_bytes(drawn, "little") % (last + 1)
            picked[place] = self.tokens[start : start + size]
        return picked
