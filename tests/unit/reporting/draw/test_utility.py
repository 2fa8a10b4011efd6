from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from sottovoce.reporting.draw.style import DEEP
from sottovoce.reporting.draw.utility import Spot, draw_utility, frontier


@pytest.mark.parametrize("epsilons", [(0.1, 8.0), (4.0, 4.0), (None, None)])
def test_any_epsilons_have_an_axis(epsilons):
    drawn = draw_utility([Spot("A", DEEP, epsilons[0], 0.2), Spot("B", DEEP, epsilons[1], 0.2, 0.01, projected=True)])
    labels = {text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert {"A", "B"} <= labels


def ticks(svg):
    texts = (text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"))
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
