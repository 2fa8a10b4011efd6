"""`sotto export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.cli.options import Json, Run
from sottovoce.files import Json as JsonObject


def export(
    run: Run,
    *,
    out: Path,
    format: Literal["onnx"] = "onnx",
    weights: Literal["float32", "8bit"] = "float32",
    json: Json = False,
) -> None:
    """Write a run's model as ONNX, after comparing it with JAX.

    Parameters
    ----------
    out
        New folder: step.onnx, sequence.onnx, vocabulary.txt, manifest.json.
    format
        onnx is the only one.
    weights
        8bit: smaller, less exact; says how many bytes it saves and how much accuracy it costs.
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


def _rows(manifest: JsonObject, out: Path) -> dict[str, str]:
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
