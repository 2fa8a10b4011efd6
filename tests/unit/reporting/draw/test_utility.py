from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from sottovoce.reporting.draw.style import DEEP
from sottovoce.reporting.draw.utility import Spot, clear_of, draw_utility, frontier


@pytest.mark.parametrize("epsilons", [(0.1, 8.0), (4.0, 4.0), (None, None)])
def test_any_epsilons_have_an_axis(epsilons):
    drawn = draw_utility([Spot("A", DEEP, epsilons[0], 0.2), Spot("B", DEEP, epsilons[1], 0.2, 0.01, projected=True)])
    labels = {text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert {"A", "B"} <= labels


def texts_of(svg):
    return ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")


def ticks(svg):
    texts = (text.text or "" for text in texts_of(svg))
    return [text for text in texts if text[:1].isdigit()]


def test_both_axes_begin_at_zero():
    drawn = ticks(draw_utility([Spot("A", DEEP, 4.0, 0.2), Spot("B", DEEP, 8.0, 0.21)]))
    assert drawn[0] == "0"
    assert "0%" in drawn


def test_the_frontier_leaves_out_what_another_run_beats():
    assert frontier([(8, 0.15), (2, 0.12), (4, 0.11), (2, 0.1)]) == [(2, 0.12), (8, 0.15)]
    assert frontier([]) == []


def test_an_epsilon_is_rounded_up():
    assert "ε = 4.63," in Spot("A", DEEP, 4.6212, 0.18).describe()


def test_no_dashed_line_passes_through_the_name_of_a_run():
    assert clear_of([], [8, -9]) == 8
    assert clear_of([6], [8, -9]) == -9
    assert clear_of([5.6, -11.8], [8, -9, 0, -3]) == -3

    def height(*levels):
        """Of the name, from the bottom; the highest spot keeps the axis as it is."""
        svg = draw_utility([Spot("A", DEEP, 8.0, 0.155), Spot("top", DEEP, 2.0, 0.3), *levels])
        return next(-float(str(text.get("y"))) for text in texts_of(svg) if text.text == "A")

    usual = height()
    assert height(Spot("far", DEEP, None, 0.05)) == usual
    assert height(Spot("near", DEEP, None, 0.14)) > usual + 5  # a line where the name was: it stands higher
