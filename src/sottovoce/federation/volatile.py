"""Folders in memory: what must not reach a disk."""

from __future__ import annotations

import re
from pathlib import Path

from sottovoce.errors import SottoError

MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # how a space in a name is written there


def in_memory(folder: Path) -> Path:
    """A folder that is in memory: updates that are not noised must not reach a disk."""
    if not folder.is_dir():
        raise SottoError(
            f"{folder} is not a folder; make one in memory (on Linux below /dev/shm), for the link's state"
        )
    place = folder.resolve()
    kinds = {}
    for line in MOUNTS.read_text().splitlines() if MOUNTS.exists() else ():
        _, mounted, kind, *_ = line.split()
        kinds[Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), mounted))] = kind
    kind = next((kinds[parent] for parent in (place, *place.parents) if parent in kinds), "unknown")
    if kind not in ("tmpfs", "ramfs"):
        raise SottoError(
            f"{folder} is on {kind}, and what devices send is not noised yet: it must not reach a disk; use a folder "
            f"in memory (tmpfs), such as one below /dev/shm"
        )
    return place


def new_database(path: Path) -> None:
    """An empty database of SQLite, for its owner alone, in place of one that was left behind."""
    remove_database(path)
    path.touch(mode=0o600)  # what SQLite keeps beside it gets the same mode


def remove_database(path: Path) -> None:
    """With what SQLite keeps beside it. Rows that were deleted are in such files still."""
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{end}").unlink(missing_ok=True)
