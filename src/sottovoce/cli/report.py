"""`sotto report`."""

from __future__ import annotations

from pathlib import Path

from sottovoce.cli.options import Flag, Run


def report(run: Run, *, beside: Path | None = None, internal: Flag = False) -> None:
    """Write a run's report: one HTML file that opens anywhere.

    Parameters
    ----------
    beside
        Another run, such as one without privacy: the report shows both, and what this one loses by how frequent words
        are and by group of held-out users.
    internal
        Also update norms, the share clipped and what audits found of people's text: exact figures of private data, for
        the owner only.
    """
    import sottovoce

    print(sottovoce.report_run(run, internal=internal, beside=beside))
