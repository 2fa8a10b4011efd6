"""Figures of several panels, as PNG: curves over rounds, sweeps over a setting, small histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sottovoce.reporting.draw.style import (
    ACCENT,
    BOTTOM,
    DASHES,
    DEEP,
    FAINT,
    INK,
    LEFT,
    MIDDLE,
    PANEL_HIGH,
    PANEL_WIDE,
    TOP,
    drawing,
    heading,
    label,
    numbers,
    spread,
    to_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
_LETTER, _LINE = 0.068, 0.155  # inches: the size of labels
_CELL_WIDE, _CELL_HIGH = 1.25, 0.42  # inches: a small histogram


@dataclass(frozen=True)
class Scale:
    """The vertical axis. A curve that ends beyond `far` times the best has failed, and may leave the frame; above 1,
    less is better. A `whole` axis shows everything."""

    unit: str
    percent: bool
    far: float = 0.6
    whole: bool = False

    @property
    def falling(self) -> bool:
        return self.far > 1


TOP1 = Scale("top-1", percent=True)


@dataclass(frozen=True)
class Point:
    """A mean over seeds, with the least and the largest of them."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """A line; without a label it is not named."""

    label: str
    points: Sequence[Point]
    colour: str = DEEP
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """`places` are where the horizontal axis is read, if not by round: it is then logarithmic, with room for 0.

    `upright` is a labelled line from bottom to top. `start` is from where on the vertical scale must show everything.
    """

    title: str
    series: Sequence[Series]
    x: str = "round"
    places: Sequence[float] = ()
    upright: tuple[float, str] | None = None
    start: float = 0.0
    scale: Scale = TOP1


def draw_panels(panels: Sequence[Panel], columns: int = 0) -> bytes:
    """Panels side by side, in rows of `columns` (0: one row), each line named at its end."""
    columns = columns or len(panels)
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    # A column is as wide as the longest name in it, and an arrow behind that.
    margins = [
        max(_LETTER * (len(series.label) + 2) + 0.25 for panel in panels[place::columns] for series in panel.series)
        for place in range(columns)
    ]
    wide = sum(LEFT + PANEL_WIDE + margin for margin in margins)
    each = BOTTOM + PANEL_HIGH + TOP
    high = each * len(rows)
    with drawing(wide, high) as canvas:
        for down, row in enumerate(rows):
            left = 0.0
            for panel, margin in zip(row, margins, strict=False):
                bottom = (len(rows) - 1 - down) * each + BOTTOM
                box = ((left + LEFT) / wide, bottom / high, PANEL_WIDE / wide, PANEL_HIGH / high)
                _draw(canvas.add_axes(box), panel)
                left += LEFT + PANEL_WIDE + margin
        return to_png(canvas)


def _draw(axes: Axes, panel: Panel) -> None:
    place = _placing(panel.places)
    for series in panel.series:
        xs = [place(point.x) for point in series.points]
        how = {"color": series.colour, "linestyle": ":" if series.dotted else "-", "clip_on": len(xs) > 1}
        marker = "o" if panel.places or len(xs) < 12 else ""
        axes.plot(xs, [point.mean for point in series.points], marker=marker, markersize=3.5, **how)
        lows, highs = [point.low for point in series.points], [point.high for point in series.points]
        if lows != highs:
            axes.fill_between(xs, lows, highs, color=series.colour, alpha=0.15, linewidth=0)
    _set_horizontal(axes, panel, place)
    axes.set_ylim(*_vertical_range(panel))
    numbers(axes.yaxis, 6, percent=panel.scale.percent)
    heading(axes, f"{panel.scale.unit} — {panel.title}" if panel.title else panel.scale.unit)
    _name_lines(axes, panel)


def _placing(places: Sequence[float]) -> Callable[[float], float]:
    """Where a value stands: zero goes to the left of the smallest on a logarithmic axis."""
    positive = [value for value in places if value > 0]
    least = min(positive, default=1.0)
    return lambda value: value if value > 0 or not places else least / 2.5


def _set_horizontal(axes: Axes, panel: Panel, place: Callable[[float], float]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xlabel(panel.x, loc="right", labelpad=1)
    if not panel.places:
        xs = [point.x for series in panel.series for point in series.points]
        axes.set_xlim(min(0, *xs) if panel.start == 0 else panel.start, max(xs))
        numbers(axes.xaxis, 5, integer=True)
        return
    shown = sorted(set(panel.places))
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([place(value) for value in shown], [f"{value:g}" for value in shown], fontsize=8)
    axes.set_xlim(place(shown[0]) / 1.15, place(shown[-1]) * 1.15)
    if panel.upright is not None and shown[0] <= panel.upright[0] <= shown[-1] * 1.1:
        at, text = panel.upright
        axes.axvline(at, color=INK, linewidth=1, dashes=DASHES)
        how = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top", "fontsize": 8}
        label(axes, text, (at, 1), (-4, -2), color=INK, **how)


def _vertical_range(panel: Panel) -> tuple[float, float]:
    """Curves all move steeply at first and differ by little at the end: what is left out is the first tenth, and
    whatever ends far from the best."""
    values = [point.mean for series in panel.series for point in series.points]
    low, high = min(values), max(values)
    if not panel.places and not panel.scale.whole:
        last = max(point.x for series in panel.series for point in series.points)
        early = panel.start + 0.1 * (last - panel.start)
        begun = sorted(
            next(point.mean for point in series.points if point.x >= min(early, series.points[-1].x))
            for series in panel.series
        )
        ends = [series.points[-1].mean for series in panel.series]
        middle, far = begun[len(begun) // 2], panel.scale.far
        if panel.scale.falling:
            low = min(point.low for series in panel.series for point in series.points)
            high = max([middle, *(end for end in ends if end < far * min(ends))])
        else:
            high = max(point.high for series in panel.series for point in series.points)
            low = min([middle, *(end for end in ends if end > far * max(ends))])
    room = (high - low) * 0.06 or 0.01
    return max(0.0, low - room), high + room


def _name_lines(axes: Axes, panel: Panel) -> None:
    """Each line's name in a column to the right, at the height of its end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    heights, labels = [], []
    named = [series for series in panel.series if series.label]
    for series in named:
        height = (series.points[-1].mean - low) / (high - low)
        # A line that ends outside the frame is still named, with where it went.
        labels.append(f"{series.label} {'↓' if height < 0 else '↑' if height > 1 else ''}".rstrip())
        heights.append(min(max(0.04, height), 0.96) if not 0 <= height <= 1 else max(0.04, height))
    for series, height, text in zip(named, spread(heights, _LINE / PANEL_HIGH), labels, strict=True):
        label(axes, text, (1, height), (9, 0), xycoords="axes fraction", color=series.colour)


@dataclass(frozen=True)
class Row:
    """A labelled row of histograms, one for each column."""

    label: str
    histograms: Sequence[Sequence[float]]


def draw_histograms(columns: Sequence[str], rows: Sequence[Row], finish: Callable[[Canvas], T] = to_png) -> T:
    """Rows of small histograms over 0, 1, 2, ..., with the mean marked."""
    margin = _LETTER * max(len(row.label) for row in rows) + 0.2
    wide, high = margin + len(columns) * (_CELL_WIDE + 0.12) + 0.1, 0.4 + len(rows) * _CELL_HIGH + 0.35
    with drawing(wide, high, "histograms") as canvas:
        for down, row in enumerate(rows):
            bottom = high - 0.4 - (down + 1) * _CELL_HIGH
            canvas.text(0.08 / wide, (bottom + 0.15) / high, row.label, va="center", fontsize=9, color=DEEP)
            for across, shares in enumerate(row.histograms):
                left = margin + across * (_CELL_WIDE + 0.12)
                axes = canvas.add_axes((left / wide, bottom / high, _CELL_WIDE / wide, (_CELL_HIGH - 0.1) / high))
                _draw_histogram(axes, shares, with_ticks=down == len(rows) - 1)
                if down == 0:
                    axes.set_title(columns[across], fontsize=9, pad=5)
        return finish(canvas)


def _draw_histogram(axes: Axes, shares: Sequence[float], *, with_ticks: bool) -> None:
    axes.bar(range(len(shares)), shares, width=0.85, color=MIDDLE)
    axes.axvline(sum(count * share for count, share in enumerate(shares)), color=ACCENT, linewidth=1.2)
    axes.set_xlim(-0.6, len(shares) - 0.4)
    axes.set_ylim(0, max(shares) * 1.1)
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.spines["bottom"].set_color(FAINT)
    ticks = [0, 5, 10] if with_ticks else []
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
