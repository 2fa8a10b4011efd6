"""Utility against privacy, as SVG.

Runs are drawn by their letters: names of folders may be long, or contain markup that matplotlib reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.accounting import rounded_up
from sottovoce.reporting.draw import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    with style.drawing(style.PAGE_WIDE, 3.1, "utility") as canvas:
        axes = canvas.add_axes((0.065, 0.15, 0.875, 0.73))
        _set_axes(axes, spots, [spot.epsilon for spot in spots if spot.epsilon is not None])
        for spot in spots:
            if spot.epsilon is not None:
                _draw_spot(axes, spot, spot.epsilon)
        _draw_levels(axes, [spot for spot in spots if spot.epsilon is None])
        return style.to_svg(canvas, "utility", "Top-1 against ε", " ".join(spot.describe() for spot in spots))


def _draw_spot(axes: Axes, spot: Spot, epsilon: float) -> None:
    how: Any = {"fmt": "o", "markersize": 6, "capsize": 3, "elinewidth": 1.2, "clip_on": False, "color": spot.colour}
    error = None if spot.within is None else [spot.within]
    fill = style.PAPER if spot.projected else spot.colour
    axes.errorbar([epsilon], [spot.top1], yerr=error, markerfacecolor=fill, **how)
    style.label(axes, spot.letter, (epsilon, spot.top1), (8, 6), va="baseline", color=spot.colour, fontweight="bold")


def _set_axes(axes: Axes, spots: Sequence[Spot], epsilons: list[float]) -> None:
    low = min(spot.top1 - (spot.within or 0) for spot in spots)
    high = max(spot.top1 + (spot.within or 0) for spot in spots)
    room = (high - low) * 0.12 or 0.01
    axes.set_ylim(max(0, low - room), high + room)
    axes.set_xlabel("ε", loc="right", labelpad=1)
    style.heading(axes, "top-1, share of targets", x=-0.05)
    style.numbers(axes.yaxis, 5, percent=True)
    if not epsilons:
        axes.set_xticks([])
    elif max(epsilons) / min(epsilons) > _RANGE:
        axes.set_xscale("log")
        axes.set_xlim(min(epsilons) / 1.4, max(epsilons) * 1.4)
        style.powers(axes.xaxis, between=(1, 2, 5))
    else:
        axes.set_xlim(0, max(epsilons) * 1.15)
        style.numbers(axes.xaxis, 8)


def _draw_levels(axes: Axes, spots: Sequence[Spot]) -> None:
    low, high = axes.get_ylim()
    heights = style.spread([(spot.top1 - low) / (high - low) for spot in spots], 0.08)
    for spot, height in zip(spots, heights, strict=True):
        axes.axhline(spot.top1, color=spot.colour, linewidth=1.2, dashes=style.DASHES)
        if spot.within is not None:
            axes.axhspan(spot.top1 - spot.within, spot.top1 + spot.within, color=spot.colour, alpha=0.12, linewidth=0)
        how = {"xycoords": "axes fraction", "fontweight": "bold"}
        style.label(axes, spot.letter, (1, height), (8, 0), color=spot.colour, **how)
