"""`sotto report`."""

from __future__ import annotations

from typing import Annotated

from sottovoce.cli.options import Flag, Run, option


def report(
    run: Run,
    *,
    internal: Annotated[Flag, option("Also exact figures of private data, for the owner only.")] = False,
) -> None:
    """Write a run's report: one HTML file that opens anywhere.

    Examples:
        sotto report run
    """
    from sottovoce.commands.report import report_run

    print(report_run(run, internal=internal))
