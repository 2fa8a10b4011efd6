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
SMALLER = {
    "bytes_float32": {"step": 21_600_000, "sequence": 22_000_000},
    "largest_difference": 0.02,
    "top1": 0.12,
    "top1_float32": 0.125,
    "users": 200,
}


def test_an_export_shows_size_parity_and_privacy(sotto, stub, capsys):
    export = stub(EXPORT, MANIFEST)
    sotto(["export", "run", "--out", "onnx"])
    assert export.places == (Path("run"), Path("onnx"))
    assert export.names == {"weights": "float32"}
    out, err = capsys.readouterr()
    for words in ("lstm, 1,346,144 parameters", "5.4 MB, 5.5 MB", "3e-06 of at most 0.0001", "ε = 4.63 at δ = 1e-6"):
        assert words in out
    assert "8 bits" not in out
    assert err == ""


def test_eight_bits_show_what_they_save_and_cost(sotto, stub, capsys):
    export = stub(EXPORT, {**MANIFEST, "eight_bits": SMALLER})
    sotto(["export", "run", "--out", "onnx", "--weights", "8bit"])
    assert export.names == {"weights": "8bit"}
    page = capsys.readouterr().out
    assert "21.6 MB, 22 MB" in page
    assert "12.00%, 12.50% (about 200 held-out users)" in page
    stub(EXPORT, {**MANIFEST, "eight_bits": {**SMALLER, "top1": None}})
    sotto(["export", "run", "--out", "onnx", "--weights", "8bit"])
    assert "no held-out users at hand" in capsys.readouterr().out


def test_a_model_without_a_guarantee_gets_a_warning(sotto, stub, capsys, answer):
    stub(EXPORT, {**MANIFEST, "privacy": {"private": False, "epsilon": "infinity", "delta": 1e-6}})
    sotto(["export", "run", "--out", "onnx"])
    out, err = capsys.readouterr()
    assert "not private" in out
    assert err.startswith("warning: this model is not private")
    assert answer("export", "run", "--out", "onnx")["privacy"]["private"] is False
