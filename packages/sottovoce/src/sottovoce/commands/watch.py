"""A page that shows runs as they go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.web.server import LOOPBACK
from sottovoce.web.watch.app import EVERY, make_app


def watch_app(paths: Sequence[Path], *, internal: bool = False, host: str = LOOPBACK, every: float = EVERY) -> Any:
    """A Starlette application for some runs, and the path of its page.

    An internal page has a random path, which other users of the machine do not know.

    Args:
        paths: the runs' folders.
        internal: also exact figures, for the owner alone.
        host: the address that the page will be served on.
        every: seconds between two looks at the files.
    """
    return make_app(paths, internal=internal, host=host, every=every)
