from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from sottovoce.reporting.draw.style import DEEP
from sottovoce.reporting.draw.utility import Spot, draw_utility


@pytest.mark.parametrize("epsilons", [(0.1, 8.0), (4.0, 4.0), (None, None)])
def test_any_epsilons_have_an_axis(epsilons):
    drawn = draw_utility([Spot("A", DEEP, epsilons[0], 0.2), Spot("B", DEEP, epsilons[1], 0.2, 0.01, projected=True)])
    labels = {text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert {"A", "B"} <= labels


def test_an_epsilon_is_rounded_up():
    assert "ε = 4.63," in Spot("A", DEEP, 4.6212, 0.18).describe()
