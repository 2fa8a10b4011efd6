"""`sotto resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sottovoce.cli.options import ALONE, Json, Processes, option
from sottovoce.cli.train import train_with


def resume(
    run: Annotated[Path, option("Folder of the run. Of several processes, only process 0 needs it.")],
    *,
    several: Processes = ALONE,
    store: Annotated[Path | None, option("Where another process than 0 has the store, if elsewhere.")] = None,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped or killed. Exit status 130 if Ctrl-C stops it again.

    Examples:
        sotto resume run
    """
    from sottovoce.commands import train

    train_with(several, train.resume, run, store=store, json=json)
