"""An answer that the people of a store pay for, once: its room on disk is there before they do."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sottovoce.files import make_folder, reserved
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts, Json, pretty, sealed

Answer = TypeVar("Answer", bound=Facts)
ROOM = 4096  # bytes: an answer has some hundred


@contextmanager
def one_at_a_time(store: Path) -> Iterator[None]:
    """A process that asks the same meanwhile waits, and gets the same answer for nothing."""
    held = os.open(store, os.O_RDONLY)
    try:
        with suppress(OSError):  # where a file system has no locks, each of them is charged
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def pay_and_keep(
    file: Path, cost: str, charge: Callable[[], None], draw: Callable[[], Answer], about: Json | None = None
) -> Answer:
    """Charge for an answer, draw it, and keep it in a file, with the facts `about` it.

    Guarantee: the charge is made before the draw, and after the file has its room on disk: an answer that is paid for
    is not lost to a full disk. `cost` is what an error says was charged.
    """
    charged = "nobody was charged; check free space and permissions there, then ask again"
    try:
        make_folder(file.parent)
        with reserved(file, ROOM) as write:
            charge()
            charged = f"{cost} was charged for an answer that is lost, and is charged again if you ask again"
            answer = draw()
            write(pretty(sealed({**(about or {}), **answer.to_json()})))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SottoError(f"cannot write {error.filename or file} ({reason}); {charged}") from error
    return answer
