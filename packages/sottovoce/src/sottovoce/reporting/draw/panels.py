"""Figures of several panels, as PNG: curves over rounds, sweeps over a setting, small histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from sottovoce.reporting.draw import style
from sottovoce.reporting.draw.style import BOTTOM, DEEP, INK, LEFT, PANEL_HIGH, PANEL_WIDE, TOP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
_LETTER, _LINE = 0.068, 0.155  # inches: the size of labels
_CELL_WIDE, _CELL_HIGH = 1.25, 0.42  # inches: a small histogram


@dataclass(frozen=True)
class Scale:
    """The vertical axis. A curve that ends beyond `far` times the best has failed, and may leave the frame."""

    unit: str
    percent: bool
    far: float = 0.6  # above 1, less is better
    whole: bool = False  # show everything

    def has_failed(self, end: float, others: Sequence[float]) -> bool:
        """Is a value beyond `far` times the best of some others?"""
        return bool(others) and (end > self.far * min(others) if self.far > 1 else end < self.far * max(others))


TOP1 = Scale("top-1", percent=True)


@dataclass(frozen=True)
class Point:
    """A mean over seeds, with the least and the largest of them. One of a single seed has no spread to draw."""

    x: float
    mean: float
    low: float
    high: float
    has_spread: bool = True

    @staticmethod
    def of(x: float, values: Sequence[float]) -> Point:
        return Point(x, fmean(values), min(values), max(values), has_spread=len(values) > 1)


@dataclass(frozen=True)
class Series:
    """A line; without a label it is not named."""

    label: str
    points: Sequence[Point]
    colour: str = DEEP
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines over rounds, or over the values of a setting."""

    title: str
    series: Sequence[Series]
    x: str = "round"
    places: Sequence[float] = ()  # values of a setting: the axis is then logarithmic, with room for 0
    upright: tuple[float, str] | None = None  # a labelled line from bottom to top
    start: float = 0.0  # the first round
    scale: Scale = TOP1

    @property
    def points(self) -> list[Point]:
        return [point for series in self.series for point in series.points]

    def place(self, value: float) -> float:
        """Where a value stands: zero goes to the left of the smallest on a logarithmic axis."""
        least = min((one for one in self.places if one > 0), default=1.0)
        return value if value > 0 or not self.places else least / 2.5


def draw_panels(panels: Sequence[Panel], columns: int = 0) -> bytes:
    """Panels side by side, in rows of `columns` (0: one row), each line named at its end."""
    columns = columns or len(panels)
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    # A column is as wide as the longest name in it, and an arrow behind that.
    margins = [
        max(_LETTER * (len(series.label) + 2) + 0.25 for panel in panels[place::columns] for series in panel.series)
        for place in range(columns)
    ]
    wide, each = sum(LEFT + PANEL_WIDE + margin for margin in margins), BOTTOM + PANEL_HIGH + TOP
    with style.drawing(wide, each * len(rows)) as canvas:
        for up, row in enumerate(reversed(rows)):
            left = LEFT
            for panel, margin in zip(row, margins, strict=False):
                _draw(style.add_axes(canvas, left, up * each + BOTTOM, PANEL_WIDE, PANEL_HIGH), panel)
                left += PANEL_WIDE + margin + LEFT
        return style.to_png(canvas)


def _draw(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        xs = [panel.place(point.x) for point in series.points]
        how = {"color": series.colour, "linestyle": ":" if series.dotted else "-", "clip_on": len(xs) > 1}
        marker = "o" if panel.places or len(xs) < 12 else ""
        axes.plot(xs, [point.mean for point in series.points], marker=marker, markersize=3.5, **how)
        _draw_spread(axes, xs, series)
    _set_horizontal(axes, panel)
    axes.set_ylim(*_vertical_range(panel))
    style.numbers(axes.yaxis, 6, percent=panel.scale.percent)
    style.heading(axes, f"{panel.scale.unit}, {panel.title}" if panel.title else panel.scale.unit)
    _name_lines(axes, panel)


def _draw_spread(axes: Axes, xs: Sequence[float], series: Series) -> None:
    """A band between neighbours that both have a spread, and a bar where neither neighbour has one."""
    lows, highs = [point.low for point in series.points], [point.high for point in series.points]
    if lows == highs:
        return
    known = [point.has_spread for point in series.points]
    axes.fill_between(xs, lows, highs, where=known, color=series.colour, alpha=0.15, linewidth=0)
    beside = zip([False, *known], [*known[1:], False], strict=False)
    alone = [at for at, (one, other) in enumerate(beside) if known[at] and not (one or other)]
    for at in alone:
        axes.vlines(xs[at], lows[at], highs[at], color=series.colour, alpha=0.4, linewidth=3)


def _set_horizontal(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xlabel(panel.x, loc="right", labelpad=1)
    if not panel.places:
        axes.set_xlim(panel.start, max(point.x for point in panel.points))
        style.numbers(axes.xaxis, 5, integer=True)
        return
    shown = sorted(set(panel.places))
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([panel.place(value) for value in shown], [f"{value:g}" for value in shown], fontsize=8)
    axes.set_xlim(panel.place(shown[0]) / 1.15, panel.place(shown[-1]) * 1.15)
    if panel.upright is not None and shown[0] <= panel.upright[0] <= shown[-1] * 1.1:
        at, text = panel.upright
        axes.axvline(at, color=INK, linewidth=1, dashes=style.DASHES)
        how = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top", "fontsize": 8}
        style.label(axes, text, (at, 1), (-4, -2), color=INK, **how)


def _vertical_range(panel: Panel) -> tuple[float, float]:
    """Curves move steeply at first and differ by little at the end: the first tenth, and failures, are left out."""
    values = [point.mean for point in panel.points]
    low, high = min(values), max(values)
    if panel.places:  # bands are not cut
        low, high = min(point.low for point in panel.points), max(point.high for point in panel.points)
    elif not panel.scale.whole:
        early = panel.start + 0.1 * (max(point.x for point in panel.points) - panel.start)
        begun = sorted(
            next(point.mean for point in series.points if point.x >= min(early, series.points[-1].x))
            for series in panel.series
        )
        ends = [series.points[-1].mean for series in panel.series]
        middle, far = begun[len(begun) // 2], panel.scale.far
        if far > 1:
            low = min(point.low for point in panel.points)
            high = max([middle, *(end for end in ends if end < far * min(ends))])
        else:
            high = max(point.high for point in panel.points)
            low = min([middle, *(end for end in ends if end > far * max(ends))])
    room = (high - low) * 0.06 or 0.01
    return max(0.0, low - room), high + room


def _name_lines(axes: Axes, panel: Panel) -> None:
    """Each line's name in a column to the right, at the height of its end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    named = [series for series in panel.series if series.label]
    ends = [(series.points[-1].mean - low) / (high - low) for series in named]
    inside = [max(0.04, end if end <= 1 else 0.96) for end in ends]
    for series, end, height in zip(named, ends, style.spread(inside, _LINE / PANEL_HIGH), strict=True):
        # A line that ends outside the frame is still named, with where it went.
        text = f"{series.label} {'↓' if end < 0 else '↑' if end > 1 else ''}".rstrip()
        style.label(axes, text, (1, height), (9, 0), xycoords="axes fraction", color=series.colour)


@dataclass(frozen=True)
class Row:
    """A labelled row of histograms, one for each column."""

    label: str
    histograms: Sequence[Sequence[float]]


def draw_histograms(columns: Sequence[str], rows: Sequence[Row], finish: Callable[[Canvas], T] = style.to_png) -> T:
    """Rows of small histograms over 0, 1, 2, ..., with the mean marked."""
    margin = _LETTER * max(len(row.label) for row in rows) + 0.2
    wide, high = margin + len(columns) * (_CELL_WIDE + 0.12) + 0.1, 0.4 + len(rows) * _CELL_HIGH + 0.35
    with style.drawing(wide, high, "histograms") as canvas:
        for down, row in enumerate(rows):
            bottom = high - 0.4 - (down + 1) * _CELL_HIGH
            how = {"va": "center", "fontsize": 9, "color": DEEP, "parse_math": False}
            canvas.text(0.08 / wide, (bottom + 0.15) / high, row.label, **how)
            for across, shares in enumerate(row.histograms):
                left = margin + across * (_CELL_WIDE + 0.12)
                axes = style.add_axes(canvas, left, bottom, _CELL_WIDE, _CELL_HIGH - 0.1)
                _draw_histogram(axes, shares, with_ticks=down == len(rows) - 1)
                if down == 0:
                    axes.set_title(columns[across], fontsize=9, pad=5)
        return finish(canvas)


def _draw_histogram(axes: Axes, shares: Sequence[float], *, with_ticks: bool) -> None:
    axes.bar(range(len(shares)), shares, width=0.85, color=style.MIDDLE)
    axes.axvline(sum(count * share for count, share in enumerate(shares)), color=style.ACCENT, linewidth=1.2)
    axes.set_xlim(-0.6, len(shares) - 0.4)
    axes.set_ylim(0, max(shares) * 1.1)
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.spines["bottom"].set_color(style.FAINT)
    ticks = [0, 5, 10] if with_ticks else []
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
