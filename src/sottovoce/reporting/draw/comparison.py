"""Runs side by side, as SVG: utility against privacy, head words, and how results differ between users.

Runs are drawn by their letters: names of folders may be long, or contain markup that matplotlib reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.accounting import rounded_up
from sottovoce.reporting.draw.panels import Row, draw_histograms
from sottovoce.reporting.draw.style import (
    DASHES,
    INK,
    PAGE_WIDE,
    PAPER,
    drawing,
    heading,
    label,
    numbers,
    powers,
    spread,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HIGH = 3.1  # inches
_LANE, _FRAME = 0.42, 0.75
_RANGE = 4  # largest over smallest ε from which the axis is logarithmic


@dataclass(frozen=True)
class Spot:
    """A run: its ε (None: no guarantee), top-1, and half the interval of it where that is known."""

    letter: str
    colour: str
    epsilon: float | None
    top1: float
    within: float | None = None
    projected: bool = False  # the ε is of rounds that were not run yet

    def describe(self) -> str:
        guarantee = "no guarantee" if self.epsilon is None else f"ε = {rounded_up(self.epsilon)}"
        return f"{self.letter}: {guarantee}, top-1 {100 * self.top1:.3g}%."


def draw_utility(spots: Sequence[Spot]) -> str:
    """Top-1 against ε; runs without a guarantee are dashed lines across. One `<svg>`."""
    with drawing(PAGE_WIDE, _HIGH, "utility") as canvas:
        axes = canvas.add_axes((0.065, 0.15, 0.875, 0.73))
        _set_utility_axes(axes, spots, [spot.epsilon for spot in spots if spot.epsilon is not None])
        for spot in spots:
            if spot.epsilon is not None:
                _draw_spot(axes, spot, spot.epsilon)
        _draw_levels(axes, [spot for spot in spots if spot.epsilon is None])
        return to_svg(canvas, "utility", "Top-1 against ε", " ".join(spot.describe() for spot in spots))


def _draw_spot(axes: Axes, spot: Spot, epsilon: float) -> None:
    how: Any = {"fmt": "o", "markersize": 6, "capsize": 3, "elinewidth": 1.2, "clip_on": False, "color": spot.colour}
    error = None if spot.within is None else [spot.within]
    fill = PAPER if spot.projected else spot.colour
    axes.errorbar([epsilon], [spot.top1], yerr=error, markerfacecolor=fill, **how)
    label(axes, spot.letter, (epsilon, spot.top1), (8, 6), va="baseline", color=spot.colour, fontweight="bold")


def _set_utility_axes(axes: Axes, spots: Sequence[Spot], epsilons: list[float]) -> None:
    low = min(spot.top1 - (spot.within or 0) for spot in spots)
    high = max(spot.top1 + (spot.within or 0) for spot in spots)
    room = (high - low) * 0.12 or 0.01
    axes.set_ylim(max(0, low - room), high + room)
    axes.set_xlabel("ε", loc="right", labelpad=1)
    heading(axes, "top-1, share of targets", x=-0.05)
    numbers(axes.yaxis, 5, percent=True)
    if not epsilons:
        axes.set_xticks([])
    elif max(epsilons) / min(epsilons) > _RANGE:
        axes.set_xscale("log")
        axes.set_xlim(min(epsilons) / 1.4, max(epsilons) * 1.4)
        powers(axes.xaxis, between=(1, 2, 5))
    else:
        axes.set_xlim(0, max(epsilons) * 1.15)
        numbers(axes.xaxis, 8)


def _draw_levels(axes: Axes, spots: Sequence[Spot]) -> None:
    low, high = axes.get_ylim()
    heights = spread([(spot.top1 - low) / (high - low) for spot in spots], 0.08)
    for spot, height in zip(spots, heights, strict=True):
        axes.axhline(spot.top1, color=spot.colour, linewidth=1.2, dashes=DASHES)
        if spot.within is not None:
            axes.axhspan(spot.top1 - spot.within, spot.top1 + spot.within, color=spot.colour, alpha=0.12, linewidth=0)
        how = {"xycoords": "axes fraction", "fontweight": "bold"}
        label(axes, spot.letter, (1, height), (8, 0), color=spot.colour, **how)


def draw_head_words(columns: Sequence[str], rows: Sequence[Row], description: str) -> str:
    """Small histograms, a row for each run. One `<svg>`."""
    title = "Head words among ten predictions"
    return draw_histograms(columns, rows, lambda canvas: to_svg(canvas, "head-words", title, description))


def draw_spread(lanes: Sequence[tuple[str, str, Sequence[float]]]) -> str:
    """Letter, colour and the 5th, 25th, 50th, 75th and 95th percentile over users: a lane for each. One `<svg>`."""
    high = _FRAME + _LANE * len(lanes)
    with drawing(PAGE_WIDE, high, "spread", grid="x") as canvas:
        box = (0.065, 0.45 / high, 0.9, _LANE * len(lanes) / high)
        axes = canvas.add_axes(box, ylim=(len(lanes) - 0.5, -0.5), yticks=[])
        for place, (letter, colour, (p5, p25, p50, p75, p95)) in enumerate(lanes):
            axes.plot([p5, p95], [place, place], color=colour, linewidth=1.4)
            axes.plot([p25, p75], [place, place], color=colour, linewidth=9, alpha=0.45, solid_capstyle="butt")
            axes.plot([p50], [place], "o", markersize=6, color=colour, markerfacecolor=PAPER, clip_on=False)
            how = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontweight": "bold"}
            label(axes, letter, (0, place), (-10, 0), color=colour, **how)
        axes.set_xlim(left=0)
        numbers(axes.xaxis, 8, percent=True)
        axes.set_xlabel("top-1 of a user", loc="right", labelpad=1, color=INK)
        medians = " ".join(f"{letter}: median {100 * values[2]:.3g}%." for letter, _, values in lanes)
        return to_svg(canvas, "spread", "Top-1 over users", medians)
