"""`sotto export`."""

from __future__ import annotations

from pathlib import Path

EXPORT = "sottovoce.commands.export.export_run"
MANIFEST = {
    "model": {"kind": "lstm", "parameters": 1_346_144},
    "graphs": {"step": {"bytes": 5_400_000}, "sequence": {"bytes": 5_500_000}},
    "parity": {"largest_difference": {"step": 1e-6, "sequence": 3e-6}, "bound": 1e-4},
    "privacy": {"private": True, "epsilon": 4.6231, "delta": 1e-6},
    "eight_bits": None,
}


def test_a_model_without_a_guarantee_gets_a_warning(sotto, stub, capsys, answer):
    export = stub(EXPORT, {**MANIFEST, "privacy": {"private": False, "epsilon": "infinity", "delta": 1e-6}})
    sotto(["export", "run", "--out", "onnx"])
    assert (export.places, export.names) == ((Path("run"), Path("onnx")), {"weights": "float32"})
    out, err = capsys.readouterr()
    assert "not private" in out
    assert err.startswith("warning: this model is not private")
    assert answer("export", "run", "--out", "onnx")["privacy"]["private"] is False
