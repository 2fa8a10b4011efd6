"""Line figures by round: what is drawn is in the table and in the words."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from sottovoce.reporting.draw.curves import Figure, Level, Line


def test_numbers_are_those_that_are_drawn():
    lines = [Line("a", [(at, at / 8) for at in range(1, 101)]), Line("b", [(40, 2.5)], hollow=True), Line("c", [])]
    table = Figure("f", "t", "u", lines, [Level("l", 9.0)]).numbers()
    assert len(table.columns) == 8
    assert {"1", "40", "100"} <= set(table.columns)
    (a, of_a), (b, of_b), level = table.rows
    assert (a, b, level) == ("a", "b", ("l", "9"))
    assert dict(zip(table.columns, of_a, strict=True))["40"] == "5"
    assert [cell for cell in of_b if cell != "–"] == ["2.5"]
    few = Figure("f", "t", "u", [Line("", [(3, 0.25), (5, 0.5)])], percent=True).numbers()
    assert (few.columns, few.rows, few.remark) == (["3", "5"], [("u", ["25%", "50%"])], "")


def test_a_wide_scale_is_logarithmic_and_a_long_run_is_thinned():
    wide = Figure("f", "t", "u", [Line("a", [(at, 10 ** (4 - at / 2000)) for at in range(1, 5001)])], widen=True).svg()
    labels = [text.text for text in ET.fromstring(wide).iter("{http://www.w3.org/2000/svg}text")]
    assert {"100", "1,000", "10,000"} <= set(labels)
    assert len(wide) < 20_000


def test_flat_and_zero_values_have_a_scale():
    for value in (0.0, 2.0):
        ET.fromstring(Figure("f", "t", "u", [Line("a", [(1, value), (2, value)])], [Level("l", value)]).svg())


def test_a_bound_is_rounded_up():
    spent = Figure("f", "t", "ε", [Line("spent", [(1, 3.16334)])], bound=True)
    assert spent.describe() == "spent: 3.17 at round 1."
    assert spent.numbers().rows == [("spent", ["3.17"])]
