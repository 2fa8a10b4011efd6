"""Folders in memory, for data that must not reach a disk."""

from __future__ import annotations

import re
import secrets as os_entropy
from pathlib import Path

from sottovoce_evidence.errors import SottoError

MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # how a space in a name is written there


def in_memory(folder: Path) -> Path:
    """Refuse a folder that is not in memory: updates without noise must not reach a disk."""
    remedy = "use a folder in memory (tmpfs), on Linux one below /dev/shm"
    if not folder.is_dir():
        raise SottoError(f"{folder} is not a folder; {remedy}")
    place = folder.resolve()
    kinds = {}
    for line in MOUNTS.read_text().splitlines() if MOUNTS.exists() else ():
        _, mounted, kind, *_ = line.split()
        kinds[Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), mounted))] = kind
    kind = next((kinds[parent] for parent in (place, *place.parents) if parent in kinds), "unknown")
    if kind not in ("tmpfs", "ramfs"):
        raise SottoError(f"{folder} is on {kind}, and updates without noise must not reach a disk; {remedy}")
    return place


def remove_states(folder: Path, federation: str) -> None:
    """Remove every database of a federation, and the files that SQLite makes next to it, which keep deleted rows."""
    for path in folder.glob(f"link-{federation}-*"):
        path.unlink(missing_ok=True)


def new_state(folder: Path, federation: str) -> Path:
    """An empty database for its owner alone; older ones of the federation are removed.

    It has a new name: a SuperLink whose server was just killed still removes files of the old one.
    """
    remove_states(folder, federation)
    path = folder / f"link-{federation}-{os_entropy.token_hex(4)}.db"
    path.touch(mode=0o600)  # SQLite's other files get the same mode
    return path
