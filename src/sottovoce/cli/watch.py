"""`sotto watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.options import Flag, log

Runs = Annotated[list[Path], Parameter(negative=())]


def watch(runs: Runs, *, internal: Flag = False, host: str = "127.0.0.1", port: int = 8019) -> None:
    """Show runs as they go, on a page for this machine. Reads their files, writes nothing.

    Parameters
    ----------
    runs
        Folders of runs, drawn over one another. One that is not there yet is waited for.
    internal
        Also update norms, cohorts and users a second: exact figures of private data, for the owner only. The page
        then has an address that cannot be guessed.
    host
        Address to listen on. Another than this machine's own shows the page to all who reach it.
    port
        Port to listen on; 0 takes a free one.
    """
    from sottovoce.web.server import serve
    from sottovoce.web.watch.app import watch_app

    app, path = watch_app(runs, internal=internal, host=host)
    for run in runs:
        if not run.exists():
            log(f"{run} is not there yet; the page waits for it")

    def ready(address: str) -> None:
        print(f"{address.rstrip('/')}{path}  (Ctrl-C ends it; the runs go on)", flush=True)

    serve(app, port=port, host=host, ready=ready)
