"""A number line of ε: what is proved at most, what was shown at least, and estimates, each on a lane of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.accounting import rounded_up
from sottovoce.reporting.draw.style import ACCENT, DEEP, INK, PAGE_WIDE, PALE, PAPER, drawing, label, numbers, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LANE, _FRAME = 0.52, 0.62  # inches
_NAMES = 0.27  # share of the width that the names of the lanes take


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
        return f"{self.name}: {', '.join(parts) or 'no bound'}."

    @property
    def values(self) -> list[float]:
        return [value for value in (self.at_most, self.at_least, self.estimate) if value is not None]


def draw_number_line(lanes: Sequence[Lane], name: str = "bounds") -> str:
    """One `<svg>`; nothing where no lane has a number."""
    lanes = [lane for lane in lanes if lane.values]
    if not lanes:
        return ""
    end = 1.18 * max(max(value for lane in lanes for value in lane.values), 0.1)
    high = _FRAME + _LANE * len(lanes)
    with drawing(PAGE_WIDE, high, name, grid="x") as canvas:
        box = (_NAMES, 0.45 / high, 0.97 - _NAMES, _LANE * len(lanes) / high)
        axes = canvas.add_axes(box, xlim=(0, end), ylim=(len(lanes) - 0.5, -0.5), yticks=[])
        for place, lane in enumerate(lanes):
            _draw_lane(axes, lane, place, end)
        numbers(axes.xaxis, 8)
        axes.set_xlabel("ε", loc="right", labelpad=1)
        return to_svg(canvas, name, "Bounds and estimates of ε", " ".join(lane.describe() for lane in lanes))


def _draw_lane(axes: Axes, lane: Lane, place: int, end: float) -> None:
    label(axes, lane.name, (0, place), (-10, 0), xycoords=("axes fraction", "data"), ha="right", color=INK)
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
    label(axes, text, at, offset, ha=align, color=colour, fontsize=8.5)
