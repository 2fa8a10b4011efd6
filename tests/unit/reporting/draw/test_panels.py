from __future__ import annotations

from unittest.mock import Mock

import pytest

from sottovoce.reporting.draw.panels import (
    Panel,
    Point,
    Series,
    _draw_spread,
    draw_panels,
)


def line(label: str, *means: float) -> Series:
    return Series(label, [Point(at + 1, mean, mean - 0.01, mean + 0.01) for at, mean in enumerate(means)])


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.slow
def test_panels_stand_in_rows():
    panel = Panel("a panel", [line("a", 0.1, 0.2), line("b", 0.1, 0.15)])
    wide, high = size(draw_panels([panel, panel]))
    assert size(draw_panels([panel, panel], columns=1)) == (pytest.approx(wide / 2, abs=1), 2 * high)
    assert draw_panels([panel]) == draw_panels([panel])


def test_a_band_lies_between_settings_with_several_seeds_alone():
    """A band that narrowed to a setting with one seed would say that it is certain there."""

    def spread(*seeds: int) -> tuple[list[bool], list[float]]:
        points = [Point.of(at, [0.1 + 0.01 * seed for seed in range(count)]) for at, count in enumerate(seeds)]
        axes = Mock()
        _draw_spread(axes, range(len(seeds)), Series("", points))
        assert axes.fill_between.call_count <= 1
        bands = axes.fill_between.call_args.kwargs["where"] if axes.fill_between.called else []
        return bands, [call.args[0] for call in axes.vlines.call_args_list]

    assert spread(3, 3, 3) == ([True] * 3, [])
    assert spread(3, 3, 1, 3, 1) == ([True, True, False, True, False], [3])
    assert spread(3, 1, 1, 2) == ([True, False, False, True], [0, 3])
    assert spread(1, 1) == ([], [])
