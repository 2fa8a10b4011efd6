"""Which sum each release of a run was made of, by a keyed hash: so that the same one is recognised after a crash.

It lies with the secrets, for the owner alone, and goes when they go. A plain hash would let whoever guesses a sum
confirm it, and would undo the noise.
"""

from __future__ import annotations

import os
from pathlib import Path

from sottovoce.files import sync_folder

_NAME, _TAG = 16, 64  # characters


class Sums:
    """The tags of sums by the names of their releases. One that is damaged is as good as none."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tags: dict[str, str] = {}
        for path in sorted(folder.glob("round-*.sums")):
            for line in path.read_text(encoding="latin-1").split("\n"):
                name, _, tag = line.partition(" ")
                if (len(name), len(tag)) == (_NAME, _TAG):
                    self._tags[name] = tag

    def tag_of(self, release: str) -> str | None:
        return self._tags.get(release)

    def keep(self, first_round: int, release: str, tag: str) -> None:
        """Put a tag on disk before returning, beside the link that opens rounds from `first_round` on."""
        path = self._folder / f"round-{first_round:08d}.sums"
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"\n{release} {tag}".encode())  # a part of one does not spoil the next
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._folder)
        self._tags[release] = tag
