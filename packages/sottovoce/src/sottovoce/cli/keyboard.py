"""`sotto keyboard`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.options import Flag, log, option


def keyboard(
    models: Annotated[
        list[Path],
        Parameter(negative=(), help="Up to three, side by side: folders of runs, releases or exports, or a base."),
    ],
    *,
    export: Annotated[Path | None, option("Write the page into this new folder instead, for any web server.")] = None,
    port: Annotated[int, option("Where to listen; 0 takes a free port.")] = 8018,
    open: Annotated[Flag, option("Also open the page in a browser.")] = False,
) -> None:
    """Try models in a browser: three suggestions each, keystrokes counted, nothing sent.

    The page is for this machine alone, and the models run inside it. A run is exported into its folder `onnx` first.
    Where a model is for its owner alone, so is the address.

    Examples:
        sotto keyboard run
    """
    from sottovoce.web.keyboard.app import keyboard_app, write_page
    from sottovoce.web.server import serve

    if export is not None:
        found = write_page(models, export, log=log)
        for model in found["models"]:
            if not model["privacy"]["private"] and model["privacy"].get("trained_on") != "public":
                log(f"warning: {model['name']} is not private; it may give away what people wrote")
        size = sum(path.stat().st_size for path in export.rglob("*") if path.is_file())
        show = f"python -m http.server --directory {shlex.quote(str(export))}"
        print(f"{export} ({size / 1e6:.0f} MB); to see it: {show}")
        return

    app, path = keyboard_app(models, log=log)

    def ready(address: str) -> None:
        address = f"{address.rstrip('/')}{path}"
        print(f"keyboard: {address} (Ctrl-C ends it)", flush=True)
        if open and path != "/":  # all accounts see with what a program was started
            log("a model is for you alone, so no browser was started with its address: open it yourself")
        elif open:
            import webbrowser

            webbrowser.open(address)

    serve(app, port=port, ready=ready)
