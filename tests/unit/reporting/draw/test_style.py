from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from sottovoce.reporting.draw.style import drawing, label, numbers, powers, spread, tick_label, to_png, to_svg


def draw(name: str) -> str:
    with drawing(3, 2, name) as canvas:
        axes = canvas.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 10], [0.001, 1.0])
        axes.set_yscale("log")
        numbers(axes.xaxis, 5)
        powers(axes.yaxis, percent=True)
        label(axes, "<here>", (10, 1.0), (5, 0))
        return to_svg(canvas, name, "A title", "A description")


def test_an_svg_stands_alone_is_the_same_every_time_and_shares_no_id():
    svg = draw("one")
    assert svg == draw("one")
    root = ET.fromstring(svg)
    assert [child.text for child in root[:2]] == ["A title", "A description"]
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"<here>", "0.1%", "1%", "10%", "100%"} <= texts
    assert "<style" not in svg
    ids = re.findall(r'\sid="([^"]+)"', svg)
    assert ids
    assert not set(ids) & set(re.findall(r'\sid="([^"]+)"', draw("two")))
    assert set(re.findall(r"#([\w.-]+)[\")]", re.sub("#[0-9a-f]{6}", "", svg))) <= set(ids)


def test_a_png_is_the_same_every_time():
    def png() -> bytes:
        with drawing(1, 1) as canvas:
            canvas.add_axes((0.1, 0.1, 0.8, 0.8)).plot([1, 2], [1, 2])
            return to_png(canvas)

    assert png() == png()
    assert png().startswith(b"\x89PNG")


def test_numbers_along_an_axis():
    assert [tick_label(value) for value in (0.25, 12_500.0, 2e6)] == ["0.25", "12,500", "2e+06"]
    assert tick_label(0.125, percent=True) == "12.5%"
    assert tick_label(2_000_000, integer=True) == "2,000,000"


def test_labels_move_apart_and_stay_inside():
    assert spread([], 0.1) == []
    assert spread([0.2, 0.5], 0.1) == [0.2, 0.5]
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.5, 0.6])
    assert spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
