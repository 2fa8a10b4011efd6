"""Lanes one above the other, as SVG: bounds of ε on a number line, and how top-1 differs between users."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.reporting.draw import style
from sottovoce.reporting.draw.style import ACCENT, DEEP, INK, PALE, PAPER
from sottovoce_evidence.accounting import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_NAMES = 2.27  # inches that the names of the lanes of a number line take


@dataclass(frozen=True)
class Lane:
    """One thing that has an ε: bounds of it from below and above, or an estimate; no bound where None."""

    name: str
    at_most: float | None = None
    at_least: float | None = None
    estimate: float | None = None

    def describe(self) -> str:
        parts = [f"at most {rounded_up(self.at_most)}"] if self.at_most is not None else []
        parts += [f"at least {self.at_least:.3g}"] if self.at_least is not None else []
        parts += [f"about {self.estimate:.3g}"] if self.estimate is not None else []
        return f"{self.name}: {', '.join(parts)}."

    @property
    def values(self) -> list[float]:
        return [value for value in (self.at_most, self.at_least, self.estimate) if value is not None]


def draw_number_line(lanes: Sequence[Lane]) -> str:
    """One `<svg>`; nothing where no lane has a number."""
    lanes = [lane for lane in lanes if lane.values]
    if not lanes:
        return ""
    end = 1.18 * max(0.1, *(value for lane in lanes for value in lane.values))
    with _lanes("bounds", len(lanes), 0.52, _NAMES) as (canvas, axes):
        axes.set_xlim(0, end)
        for place, lane in enumerate(lanes):
            _draw_lane(axes, lane, place, end)
        style.numbers(axes.xaxis, 8)
        axes.set_xlabel("ε", loc="right", labelpad=1)
        words = " ".join(lane.describe() for lane in lanes)
        return style.to_svg(canvas, "bounds", "Bounds and estimates of ε", words)


def draw_spread(lanes: Sequence[tuple[str, str, Sequence[float]]]) -> str:
    """Name, colour and the 5th, 25th, 50th, 75th and 95th percentile over users: a lane for each. One `<svg>`."""
    room = style.room_for(name for name, _, _ in lanes) + 0.15
    with _lanes("spread", len(lanes), 0.42, room) as (canvas, axes):
        for place, (name, colour, (p5, p25, p50, p75, p95)) in enumerate(lanes):
            axes.plot([p5, p95], [place, place], color=colour, linewidth=1.4)
            axes.plot([p25, p75], [place, place], color=colour, linewidth=9, alpha=0.45, solid_capstyle="butt")
            axes.plot([p50], [place], "o", markersize=6, color=colour, markerfacecolor=PAPER, clip_on=False)
            _name(axes, name, place, color=colour)
        axes.set_xlim(left=0)
        style.numbers(axes.xaxis, 8, percent=True)
        axes.set_xlabel("top-1 of a user", loc="right", labelpad=1)
        medians = " ".join(f"{name}: median {100 * values[2]:.3g}%." for name, _, values in lanes)
        return style.to_svg(canvas, "spread", "Top-1 over users", medians)


@contextmanager
def _lanes(name: str, count: int, each: float, left: float) -> Generator[tuple[Canvas, Axes], None, None]:
    """A canvas with axes for `count` lanes of `each` inches, with `left` inches for their names."""
    with style.drawing(style.PAGE_WIDE, 0.7 + each * count, name, grid="x") as canvas:
        box = (left, 0.45, style.PAGE_WIDE - left - 0.25, each * count)
        yield canvas, style.add_axes(canvas, *box, ylim=(count - 0.5, -0.5), yticks=[])


def _name(axes: Axes, text: str, place: int, **how: Any) -> None:
    style.label(axes, text, (0, place), (-10, 0), xycoords=("axes fraction", "data"), ha="right", **how)


def _draw_lane(axes: Axes, lane: Lane, place: int, end: float) -> None:
    _name(axes, lane.name, place, color=INK)
    if lane.at_most is not None or lane.at_least is not None:
        start, stop = lane.at_least or 0.0, end if lane.at_most is None else lane.at_most
        # A bound that was contradicted stands to the right of the claim, and is not hidden.
        colour = ACCENT if start > stop else PALE
        axes.plot([start, stop], [place, place], color=colour, alpha=0.35, linewidth=7, solid_capstyle="butt")
    if lane.at_most is not None:
        _mark(axes, (lane.at_most, place), f"≤ {rounded_up(lane.at_most)}", "|", DEEP)
    if lane.at_least is not None:  # above, where the other bound's figure may stand to the right
        above = lane.at_most is not None
        _mark(axes, (lane.at_least, place), f"≥ {lane.at_least:.3g}", ">", ACCENT, above=above)
    if lane.estimate is not None:
        _mark(axes, (lane.estimate, place), f"≈ {lane.estimate:.3g}", "o", DEEP)


def _mark(axes: Axes, at: tuple[float, int], text: str, marker: str, colour: str, *, above: bool = False) -> None:
    """A value at its place, with its figure to the right of it or above."""
    size, fill = 15 if marker == "|" else 6, PAPER if marker == "o" else colour
    axes.plot(*at, marker, markersize=size, markeredgewidth=1.8, color=colour, markerfacecolor=fill, clip_on=False)
    offset, align = ((0, 10), "center") if above else ((7, 0), "left")
    style.label(axes, text, at, offset, ha=align, color=colour, fontsize=8.5)
