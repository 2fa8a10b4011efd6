from __future__ import annotations

import xml.etree.ElementTree as ET

from sottovoce.reporting.draw.lanes import Lane, draw_number_line, draw_spread
from sottovoce.reporting.draw.style import DEEP


def labels(svg: str) -> set[str | None]:
    return {text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_every_bound_has_its_figure_and_its_words():
    lanes = [Lane("proved", at_most=4.6231), Lane("shown", 1.357, 0.4444), Lane("guessed", estimate=0.4321)]
    svg = draw_number_line(lanes)
    assert {"≤ 4.63", "≤ 1.36", "≥ 0.444", "≈ 0.432", "ε", "proved", "shown", "guessed"} <= labels(svg)
    assert "shown: at most 1.36, at least 0.444." in svg


def test_a_lane_without_a_number_is_not_drawn():
    assert draw_number_line([Lane("nothing")]) == ""
    assert "nothing" not in draw_number_line([Lane("nothing"), Lane("proved", at_most=1.0)])


def test_a_contradicted_claim_is_drawn():
    assert {"≤ 1", "≥ 2.5"} <= labels(draw_number_line([Lane("shown", at_most=1.0, at_least=2.5)]))


def test_a_lane_for_each_run():
    svg = draw_spread([("A", DEEP, [0.1, 0.2, 0.3, 0.4, 0.5]), ("B", DEEP, [0.0, 0.1, 0.25, 0.3, 0.6])])
    assert "A: median 30%. B: median 25%." in svg
