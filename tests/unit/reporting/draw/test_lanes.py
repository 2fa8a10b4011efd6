from __future__ import annotations

import xml.etree.ElementTree as ET

from sottovoce.reporting.draw.lanes import Lane, draw_number_line


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
