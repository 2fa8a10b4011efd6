"""`sotto report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sottovoce.cli.options import Flag, Run, option


def report(
    run: Run,
    *,
    other: Annotated[Path | None, option("Another run, such as one without privacy: shows both.", "--beside")] = None,
    internal: Annotated[Flag, option("Also exact figures of private data, for the owner only.")] = False,
) -> None:
    """Write a run's report: one HTML file that opens anywhere.

    Examples:
        sotto report run
    """
    from sottovoce.commands.report import report_run

    print(report_run(run, internal=internal, other=other))
