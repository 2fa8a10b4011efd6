"""`sotto keyboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sottovoce.cli.options import Flag, log, option


def keyboard(
    run: Annotated[Path, option("Folder of a run, a release or an export. A run is exported first.")],
    other_run: Annotated[Path | None, option("Another one to show next to it.")] = None,
    /,
    *,
    port: Annotated[int, option("Where to listen; 0 takes a free port.")] = 8018,
    open: Annotated[Flag, option("Also open the page in a browser.")] = False,
) -> None:
    """Try a run's model in a browser: three suggestions, keystrokes counted, nothing sent.

    The page is for this machine alone, and the model runs inside it.
    """
    from sottovoce.web.keyboard.app import keyboard_app
    from sottovoce.web.server import serve

    def ready(address: str) -> None:
        print(f"keyboard: {address} (Ctrl-C ends it)", flush=True)
        if open:
            import webbrowser

            webbrowser.open(address)

    runs = [run] if other_run is None else [run, other_run]
    serve(keyboard_app(runs, log=log), port=port, ready=ready)
