from __future__ import annotations

import xml.etree.ElementTree as ET

from sottovoce.reporting.draw.style import DEEP
from sottovoce.reporting.draw.utility import Spot, draw_utility, frontier


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
