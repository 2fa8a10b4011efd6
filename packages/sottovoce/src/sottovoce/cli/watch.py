"""`sotto watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.options import Flag, log, option


def watch(
    runs: Annotated[list[Path], Parameter(negative=(), help="Folders of runs. One that is missing is waited for.")],
    *,
    internal: Annotated[Flag, option("Also exact figures of private data, for the owner only.")] = False,
    host: Annotated[str, option("Address to listen on; others than this machine may reach it there.")] = "127.0.0.1",
    port: Annotated[int, option("Port to listen on; 0 takes a free one.")] = 8019,
) -> None:
    """Show runs as they go, on a page for this machine. Reads their files, writes nothing.

    Examples:
        sotto watch run
    """
    from sottovoce.commands.watch import watch_app
    from sottovoce.web.server import serve

    app, path = watch_app(runs, internal=internal, host=host)
    for run in runs:
        if not run.exists():
            log(f"{run} is not there yet; the page waits for it")

    def ready(address: str) -> None:
        print(f"{address.rstrip('/')}{path}  (Ctrl-C ends it; the runs go on)", flush=True)

    serve(app, port=port, host=host, ready=ready)
