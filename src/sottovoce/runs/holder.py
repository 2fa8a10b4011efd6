"""Which copy of a run's folder goes on at no further charge.

A store is charged ahead for the rounds of a run. Were the folder copied and both copies taken up, their rounds would
differ and be paid for once. So the store and the folder hold a token that changes whenever the run is taken up: a copy
is left with an old one.
"""

from __future__ import annotations

import secrets as os_entropy
from pathlib import Path

from sottovoce.files import write_aside

_NAME, _MINE, _NEXT = "holder.name", "holder", "holder.next"


def take_up(folder: Path, store: Path) -> bool:
    """Make this folder the one that holds its run; True if it was already.

    The folder knows its next token before the store does, so that a crash in between does not make it a stranger.
    """
    if not (folder / _NAME).exists():
        # Not the name of the run, which two runs of one seed share.
        write_aside(folder / _NAME, os_entropy.token_hex(16).encode(), private=True)
    theirs = store / "holders" / _read(folder / _NAME)
    known = _read(theirs)
    rightful = known != "" and known in (_read(folder / _MINE), _read(folder / _NEXT))
    token = os_entropy.token_hex(16)
    theirs.parent.mkdir(mode=0o700, exist_ok=True)
    for path in (folder / _NEXT, theirs, folder / _MINE):
        write_aside(path, token.encode(), private=True)
    return rightful


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""
