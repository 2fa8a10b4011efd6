"""`sotto export` and `sotto keyboard`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table, shown_epsilon

Flag = Annotated[bool, Parameter(negative=())]


def export(
    run: Path,
    *,
    out: Path,
    format: Literal["onnx"] = "onnx",
    weights: Literal["float32", "8bit"] = "float32",
    json: Flag = False,
) -> None:
    """Write a run's model as ONNX, after comparing it with JAX.

    Parameters
    ----------
    run
        Folder of a run.
    out
        New folder: step.onnx, sequence.onnx, vocabulary.txt, manifest.json.
    format
        onnx is the only one.
    weights
        8bit: smaller, less exact; says how many bytes it saves and how much accuracy it costs.
    json
        One JSON object: the manifest.
    """
    from sottovoce.web.keyboard.export import export_run

    del format
    manifest = export_run(run, out, weights=weights)
    if json:
        print_json(manifest)
        return
    print_table(f"Export of {run}", _rows(manifest, out))
    if not manifest["privacy"]["private"]:
        print("warning: this model is not private; it may give away what people wrote", file=sys.stderr)


def _rows(manifest: dict[str, Any], out: Path) -> dict[str, str]:
    parity, privacy, smaller = manifest["parity"], manifest["privacy"], manifest["eight_bits"]
    sizes = {graph: one["bytes"] for graph, one in manifest["graphs"].items()}
    differences = parity["largest_difference"].values()
    rows = {
        "model": f"{manifest['model']['kind']}, {manifest['model']['parameters']:,} parameters",
        "step, sequence": ", ".join(f"{size / 1e6:.3g} MB" for size in sizes.values()),
        "largest difference from JAX": f"{max(differences):.2g} of at most {parity['bound']:g}",
    }
    if smaller:
        before = smaller["bytes_float32"]
        rows["step, sequence in float32"] = ", ".join(f"{size / 1e6:.3g} MB" for size in before.values())
        rows["largest difference with 8 bits"] = f"{smaller['largest_difference']:.2g}"
        rows["top-1 with 8 bits, float32"] = (
            "no held-out users at hand"
            if smaller["top1"] is None
            else f"{smaller['top1']:.2%}, {smaller['top1_float32']:.2%} (about {smaller['users']} held-out users)"
        )
    proved = f"ε = {shown_epsilon(privacy['epsilon'])} at δ = {privacy['delta']:g}"
    return {**rows, "privacy": proved if privacy["private"] else "not private", "written": str(out)}


def keyboard(run: Path, other_run: Path | None = None, /, *, port: int = 8018, open: Flag = False) -> None:
    """Try a run's model in a browser: three suggestions, keystrokes counted, nothing sent.

    The page is for this machine alone, and the model runs inside it.

    Parameters
    ----------
    run
        Folder of a run, or of an export. A run is exported into its folder `onnx` first.
    other_run
        Another one to show beside it.
    port
        Where to listen; 0 takes a free port.
    open
        Also open the page in a browser.
    """
    from sottovoce.web.keyboard.app import keyboard_app
    from sottovoce.web.server import serve

    def ready(address: str) -> None:
        print(f"keyboard: {address} (Ctrl-C ends it)", flush=True)
        if open:
            import webbrowser

            webbrowser.open(address)

    runs = [run] if other_run is None else [run, other_run]
    app = keyboard_app(runs, log=lambda line: print(line, file=sys.stderr, flush=True))
    serve(app, port=port, ready=ready)
