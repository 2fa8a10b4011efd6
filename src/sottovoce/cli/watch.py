"""`sotto watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative=())]
Runs = Annotated[list[Path], Parameter(negative=())]


def watch(runs: Runs, *, internal: Flag = False, host: str = "127.0.0.1", port: int = 8019) -> None:
    """Show runs as they go, on a page for this machine. Reads their files, writes nothing.

    Parameters
    ----------
    runs
        Folders of runs, drawn over one another. One that is not there yet is waited for.
    internal
        Also update norms, cohorts and users a second: exact figures of private data, for the owner only. The page
        then has an address that nobody can guess.
    host
        Address to listen on. Another than this machine's own shows the page to whoever reaches it.
    port
        Port to listen on; 0 takes a free one.
    """
    from sottovoce.web.server import serve
    from sottovoce.web.watch.app import watch_app

    app, path = watch_app(runs, internal=internal, host=host)
    for run in runs:
        if not run.exists():
            print(f"{run} is not there yet; the page waits for it", file=sys.stderr)

    def ready(address: str) -> None:
        print(f"{address.rstrip('/')}{path}  (Ctrl-C ends it; the runs go on)", flush=True)

    serve(app, port=port, host=host, ready=ready)
