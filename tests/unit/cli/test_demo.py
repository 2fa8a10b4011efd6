"""`sotto demo`."""

from __future__ import annotations

from sottovoce.cli.display import progress_of_rounds
from sottovoce.commands.demo import DemoResult

DEMO = "sottovoce.commands.demo.run_demo"


def test_both_models_are_shown_next_to_the_baseline(sotto, stub, result, capsys, tmp_path):
    demo = stub(DEMO, DemoResult(result(), result(private=False), 0.071))
    sotto(["demo", "--out", str(tmp_path / "demo")])
    assert demo.places == (tmp_path / "demo",)
    assert demo.names["progress"] is progress_of_rounds
    page = capsys.readouterr().out
    rows = [line.split() for line in page.splitlines()]
    assert ["most", "frequent", "token", "0", "7.1%"] in rows
    assert ["private", "4.63", "25.0%", "40.0%", "12.5"] in rows
    assert ["not", "private", "∞", "25.0%", "40.0%", "12.5"] in rows
    assert "ε = 4.63 at δ = 1e-6 for each user" in page
    assert str(tmp_path / "run" / "report.html") in page


def test_a_demo_that_was_stopped_says_how_to_begin_again(sotto, stub, capsys):
    stub(DEMO, None)
    sotto(["demo"], status=130)
    assert capsys.readouterr().out == "\nstopped; delete demo and run `sotto demo` again\n"
