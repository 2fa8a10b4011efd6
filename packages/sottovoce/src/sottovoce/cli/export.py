"""`sotto export`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.cli.options import Json, Model, option
from sottovoce_evidence.errors import count_of, plain_number
from sottovoce_evidence.files import Json as JsonObject


def export(
    run: Model,
    *,
    out: Annotated[Path, option("New folder: step.onnx, sequence.onnx, tokenizer, manifest.json.")],
    weights: Annotated[Literal["float32", "8bit"], option("8bit: smaller, less exact; both are measured.")] = "float32",
    json: Json = False,
) -> None:
    """Write a run's model as ONNX, after comparing it with JAX.

    Examples:
        sotto export run --out onnx
    """
    from sottovoce.commands.export import export_run

    manifest = export_run(run, out, weights=weights)
    if json:
        print_json(manifest)
        return
    print_table(f"Export of {run}", _rows(manifest, out))
    if not manifest["privacy"]["private"] and manifest["privacy"].get("trained_on") != "public":
        print("warning: this model is not private; it may give away what people wrote", file=sys.stderr)


def _rows(manifest: JsonObject, out: Path) -> dict[str, str]:
    model, parity, privacy, smaller = (manifest[name] for name in ("model", "parity", "privacy", "eight_bits"))
    difference = max(parity["largest_difference"].values())
    graphs = ", ".join(manifest["graphs"])
    rows = {
        "model": f"{model['kind']}, {model['parameters']:,} parameters",
        graphs: _sizes(graph["bytes"] for graph in manifest["graphs"].values()),
        "largest difference from JAX": f"{difference:.2g} of at most {parity['bound']:g}",
    }
    if smaller:
        rows[f"{graphs} in float32"] = _sizes(smaller["bytes_float32"].values())
        rows["largest difference with 8 bits"] = f"{smaller['largest_difference']:.2g}"
        accuracy = "not measured: no held-out users at hand, or they were declared private"
        if smaller["top1"] is not None:
            scores = f"{smaller['top1']:.2%}, {smaller['top1_float32']:.2%}"
            accuracy = f"{scores} (about {count_of(smaller['users'], 'held-out user')})"
        rows["top-1 with 8 bits, float32"] = accuracy
    words = "public text only" if privacy.get("trained_on") == "public" else "not private"
    if privacy["private"]:
        words = f"ε = {shown_epsilon(privacy['epsilon'])} at δ = {plain_number(privacy['delta'])}"
    return {**rows, "privacy": words, "written": str(out)}


def _sizes(counts: Iterable[int]) -> str:
    return ", ".join(f"{count / 1e6:.3g} MB" for count in counts)
