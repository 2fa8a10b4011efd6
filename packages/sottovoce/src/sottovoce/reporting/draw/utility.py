"""Utility against privacy, as SVG: a point for each run, and the best that is known for each ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.reporting.draw import style
from sottovoce_evidence.accounting import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE, _HIGH = 4.8, 3.4  # inches
_RANGE = 20  # largest over smallest ε from which the axis is logarithmic
_CLEAR = 6  # points from the middle of a name within which no dashed line should pass
_GAP = 0.06  # least distance between two names, as a share of the height


@dataclass(frozen=True)
class Spot:
    """A run or a baseline: its ε (None: no guarantee, or none needed), top-1, and half its interval where known."""

    name: str
    colour: str
    epsilon: float | None
    top1: float
    within: float | None = None
    projected: bool = False  # the ε is of rounds that were not run yet

    def describe(self) -> str:
        guarantee = "" if self.epsilon is None else f"ε = {rounded_up(self.epsilon)}, "
        return f"{self.name}: {guarantee}top-1 {100 * self.top1:.3g}%."


def draw_utility(spots: Sequence[Spot]) -> str:
    """Top-1 against ε, both from 0; what has no ε is a dashed line across. One `<svg>`."""
    points = [(spot, spot.epsilon) for spot in spots if spot.epsilon is not None]
    levels = [spot for spot in spots if spot.epsilon is None]
    room = style.room_for(spot.name for spot in levels)
    with style.drawing(_WIDE, _HIGH, "utility") as canvas:
        axes = canvas.add_axes((0.105, 0.14, 0.86 - room / _WIDE, 0.76))
        _set_axes(axes, spots, [epsilon for _, epsilon in points])
        _draw_levels(axes, levels)
        best = frontier([(epsilon, spot.top1) for spot, epsilon in points])
        if len(best) > 1:
            axes.step(*zip(*best, strict=True), where="post", color=style.PALE, linewidth=1.2, zorder=1)
        for spot, epsilon in points:
            _draw_point(axes, spot, epsilon, levels, above=(epsilon, spot.top1) in best)
        return style.to_svg(canvas, "utility", "Top-1 against ε", " ".join(spot.describe() for spot in spots))


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs of ε and top-1, those for which no other has as much top-1 at the same ε or less; the smallest first.

    >>> frontier([(8, 0.15), (2, 0.12), (4, 0.11), (2, 0.1)])
    [(2, 0.12), (8, 0.15)]
    """
    best: list[tuple[float, float]] = []
    for epsilon, top1 in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or top1 > best[-1][1]:
            best.append((epsilon, top1))
    return best


def _draw_point(axes: Axes, spot: Spot, epsilon: float, levels: Sequence[Spot], *, above: bool) -> None:
    """The name of a point on the frontier stands above it to the left, where the line is not; the others' below it.

    Where a dashed line would pass through the name, it stands elsewhere.
    """
    how: Any = {"fmt": "o", "markersize": 6, "capsize": 3, "elinewidth": 1.2, "clip_on": False, "color": spot.colour}
    error = None if spot.within is None else [spot.within]
    fill = style.PAPER if spot.projected else spot.colour
    axes.errorbar([epsilon], [spot.top1], yerr=error, markerfacecolor=fill, **how)
    name, (across, up) = style.short(spot.name), _place(axes, (epsilon, spot.top1))
    wide = style.LETTER * len(name) / (_WIDE * axes.get_position().width)  # of the name, as a share of the axes
    left = across > wide if above else across + wide > 1
    high = 72 * _HIGH * axes.get_position().height
    lines = [high * (_place(axes, (epsilon, level.top1))[1] - up) for level in levels]
    usual = 8 if above and left else -9
    lift = clear_of(lines, (usual, -usual, *((0, 3, -3) if left else ()), 2 * usual, -2 * usual))
    how = {"ha": "right" if left else "left", "color": spot.colour}
    style.label(axes, name, (epsilon, spot.top1), (-7 if left else 7, lift), **how)


def clear_of(lines: Sequence[float], choices: Sequence[float]) -> float:
    """The first of several heights of a name that is clear of all lines, or else the one that is farthest from them.

    >>> clear_of([5.6, -11.8], [8, -9, 0, -3])
    -3
    """
    return max(choices, key=lambda height: min([_CLEAR, *(abs(height - line) for line in lines)]))


def _place(axes: Axes, point: tuple[float, float]) -> Any:
    """As shares of the axes."""
    return (axes.transData + axes.transAxes.inverted()).transform(point)


def _set_axes(axes: Axes, spots: Sequence[Spot], epsilons: list[float]) -> None:
    axes.set_ylim(0, 1.15 * max(spot.top1 + (spot.within or 0) for spot in spots) or 0.1)
    axes.set_xlabel("ε", loc="right", labelpad=1)
    style.heading(axes, "top-1, share of targets", x=-0.12)
    style.numbers(axes.yaxis, 5, percent=True)
    if not epsilons:
        axes.set_xticks([])
    elif max(epsilons) / min(epsilons) > _RANGE:
        axes.set_xscale("log")
        axes.set_xlim(min(epsilons) / 1.4, max(epsilons) * 1.4)
        style.powers(axes.xaxis, between=(1, 2, 5))
    else:
        axes.set_xlim(0, max(epsilons) * 1.1)
        style.numbers(axes.xaxis, 8)


def _draw_levels(axes: Axes, spots: Sequence[Spot]) -> None:
    heights = style.spread([_place(axes, (1, spot.top1))[1] for spot in spots], _GAP)
    for spot, height in zip(spots, heights, strict=True):
        axes.axhline(spot.top1, color=spot.colour, linewidth=1.2, dashes=style.DASHES)
        if spot.within is not None:
            axes.axhspan(spot.top1 - spot.within, spot.top1 + spot.within, color=spot.colour, alpha=0.12, linewidth=0)
        style.label(axes, style.short(spot.name), (1, height), (7, 0), xycoords="axes fraction", color=spot.colour)
