from __future__ import annotations

from unittest.mock import Mock

import pytest

from sottovoce.reporting.draw.panels import (
    Panel,
    Point,
    Row,
    Scale,
    Series,
    _draw_spread,
    _vertical_range,
    draw_histograms,
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


def test_a_sweep_has_room_for_zero_and_an_upright_line():
    sweep = Panel("", [line("a", 0.1, 0.2, 0.15)], "noise", places=(0.0, 1.0, 3.0), upright=(1.0, "the paper's"))
    size(draw_panels([sweep]))


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


def test_the_band_of_a_sweep_is_not_cut():
    low, high = _vertical_range(Panel("", [line("a", 0.1, 0.2, 0.15)], "noise", places=(1.0, 2.0, 3.0)))
    assert low < 0.09
    assert high > 0.21


def test_a_curve_that_failed_leaves_the_frame():
    good, failed = line("good", *[0.05] + 20 * [0.2]), line("failed", *21 * [0.01])
    low, high = _vertical_range(Panel("", [good, failed]))
    assert low > 0.01
    assert high > 0.21
    whole = Panel("", [good, failed], scale=Scale("top-1", percent=True, whole=True))
    assert _vertical_range(whole)[0] < 0.01
    falling = Scale("perplexity", percent=False, far=1.6)  # less is better: `good` is the failure here
    low, high = _vertical_range(Panel("", [failed, failed, good], scale=falling))
    assert low < 0.01
    assert high < 0.2


def test_histograms_have_a_row_and_a_column_each():
    rows = [Row("a", [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), Row("b", [[0.2, 0.3, 0.5], [0.0, 0.5, 0.5]])]
    wide, high = size(draw_histograms(["top 10", "top 50"], rows))
    fewer = size(draw_histograms(["top 10", "top 50"], rows[:1]))
    assert fewer[0] == wide
    assert fewer[1] < high
