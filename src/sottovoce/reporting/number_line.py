"""A number line of ε: what is proved at most, what was shown at least, and estimates, each on a lane of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.accounting import rounded_up
from sottovoce.reporting.figures import BESIDE, DEEP, INK, PALE, STYLE, inline_svg, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LANE, _FRAME, _WIDE = 0.52, 0.62, 8.4  # inches
_NAMES = 0.27  # share of the width that the names of the lanes take


@dataclass(frozen=True)
class Lane:
    """One thing that has an ε: it is `at_least` and `at_most` so much, or estimated; no bound where None."""

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
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    lanes = [lane for lane in lanes if lane.values]
    if not lanes:
        return ""
    end = 1.18 * max(max(value for lane in lanes for value in lane.values), 0.1)
    high = _FRAME + _LANE * len(lanes)
    with style.context(["default", {**STYLE, "svg.hashsalt": name, "axes.grid.axis": "x"}]):
        canvas = Canvas(figsize=(_WIDE, high), facecolor="none")
        axes = canvas.add_axes(
            (_NAMES, 0.45 / high, 0.97 - _NAMES, _LANE * len(lanes) / high), facecolor="none", xlim=(0, end),
            ylim=(len(lanes) - 0.5, -0.5), yticks=[],
        )  # fmt: skip
        for place, lane in enumerate(lanes):
            axes.annotate(
                lane.name, (0, place), xycoords=("axes fraction", "data"), xytext=(-10, 0), textcoords="offset points",
                ha="right", va="center", color=INK, annotation_clip=False,
            )  # fmt: skip
            if lane.at_most is not None or lane.at_least is not None:
                start, stop = lane.at_least or 0.0, end if lane.at_most is None else lane.at_most
                # A bound that was contradicted stands to the right of the claim, and is not hidden.
                colour = BESIDE if start > stop else PALE
                axes.plot([start, stop], [place, place], color=colour, alpha=0.35, linewidth=7, solid_capstyle="butt")
            if lane.at_most is not None:
                _mark(axes, lane.at_most, place, f"≤ {rounded_up(lane.at_most)}", "|", DEEP)
            if lane.at_least is not None:  # above, where the other bound's figure may stand to the right
                label = f"≥ {lane.at_least:.3g}"
                _mark(axes, lane.at_least, place, label, ">", BESIDE, above=lane.at_most is not None)
            if lane.estimate is not None:
                _mark(axes, lane.estimate, place, f"≈ {lane.estimate:.3g}", "o", DEEP)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 2.5, 5, 10)))
        axes.set_xlabel("ε", loc="right", labelpad=1)
        text = svg_of(canvas)
    return inline_svg(text, name, "Bounds and estimates of ε", " ".join(lane.describe() for lane in lanes))


def _mark(axes: Axes, value: float, place: int, label: str, marker: str, colour: str, *, above: bool = False) -> None:
    """A value at its place, with its figure to the right of it or above."""
    axes.plot(
        [value], [place], marker, markersize=15 if marker == "|" else 6, markeredgewidth=1.8, color=colour,
        markerfacecolor="#ffffff" if marker == "o" else colour, clip_on=False,
    )  # fmt: skip
    offset, align = ((0, 10), "center") if above else ((7, 0), "left")
    axes.annotate(
        label, (value, place), xytext=offset, textcoords="offset points", ha=align, va="center",
        color=colour, fontsize=8.5, annotation_clip=False,
    )  # fmt: skip
