"""Verbs that call one function and print what it gives: they end well, as a table and as one JSON object."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands.bench import Measurement
from sottovoce.commands.demo import DemoResult
from sottovoce.commands.doctor import Checkup
from sottovoce.commands.init import FirstRecipe
from sottovoce.commands.tokenizer import TrainedTokenizer
from sottovoce_evidence.bases import Base
from sottovoce_evidence.verify import FAILED, PASSED, UNCHECKED, Accounted, Check, Verification

CARD = Base(
    "tiny", "lstm", {"hidden": 5}, "words", 60, "colours", 1200, "CC0", "a command", 2.0, 0.25, 12.5, {},
    "public", "en", None,
)  # fmt: skip
MANIFEST = {
    "model": {"kind": "lstm", "parameters": 1_346_144},
    "graphs": {"step": {"bytes": 5_400_000}, "sequence": {"bytes": 5_500_000}},
    "parity": {"largest_difference": {"step": 1e-6, "sequence": 3e-6}, "bound": 1e-4},
    "privacy": {"private": False, "epsilon": "infinity", "delta": 1e-6},
    "eight_bits": None,
}
MADE = {  # the command: the function below it, and what that gives
    "base train text --out made": ("base.train_base", SimpleNamespace(out=Path("made"), base=CARD)),
    "bench --cohort 7": ("bench.measure", Measurement("chip", "float32", 7, 25, 1234.5, 197e3, 0.08, 0.2, 2.5, 2**30)),
    "export run --out onnx": ("export.export_run", MANIFEST),
    "init store": ("init.write_recipe", FirstRecipe("[privacy]\nusers = 3900\n", 3900, ("a note",))),
    "doctor --no-bench": (
        "doctor.examine",
        Checkup({"python": "3"}, "Linux", "cpu", 2, 2, 2**33, 2**33, "/runs", {"export": ["jax2onnx"]}, 12.5, ["slow"]),
    ),
    "tokenizer train a.txt --out t.json --public": (
        "tokenizer.train_tokenizer",
        TrainedTokenizer("tokenizer.json", "bpe", 8000, "9f86", 3.25),
    ),
}


@pytest.mark.parametrize("command", MADE)
def test_what_a_verb_gives_is_printed_as_a_table_or_as_one_object(command, stub, sotto, answer, capsys):
    function, given = MADE[command]
    stub(f"sottovoce.commands.{function}", given)
    sotto(command.split())
    assert capsys.readouterr().out.strip()
    assert isinstance(answer(*command.split()), dict)


def test_the_demo_shows_both_models_and_says_where_it_was_stopped(sotto, stub, result, capsys):
    stub("sottovoce.commands.demo.run_demo", DemoResult(result(), result(private=False), 0.071))
    sotto(["demo"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["private", "4.63", "25.0%", "40.0%", "12.5"] in rows
    assert ["not", "private", "∞", "25.0%", "40.0%", "12.5"] in rows
    stub("sottovoce.commands.demo.run_demo")
    sotto(["demo"], status=130)


FINE = Verification(
    "out", True, True, "SHA256:abc", 2.0, 1e-6, (Check("files", PASSED, "are \x1bthose"),),
    (Accounted("PLD", 2.0), Accounted("other", None)), ("a note", "WARNING: δ"), ("everything",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "verified", "status"), [(PASSED, True, 0), (FAILED, False, 1), (UNCHECKED, False, 1)]
)
def test_a_release_of_which_a_check_failed_or_was_not_made_has_status_1(stub, sotto, capsys, outcome, verified, status):
    checks = (*FINE.checks, Check("own code", outcome, "a clip"))
    stub("sottovoce_evidence.verify.verify_release", replace(FINE, verified=verified, checks=checks))
    sotto(["verify", "out"], status)
    out = capsys.readouterr().out
    assert "\\x1bthose" in out
    assert out.startswith("WARNING: δ\n")
    assert ("own code" in out.splitlines()[-1]) == bool(status)
