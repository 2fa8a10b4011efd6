"""Figures as PNG, several panels each: curves over rounds, sweeps over a setting, small histograms."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sottovoce.reporting.figures import BESIDE, DEEP, FAINT, INK, MIDDLE, STYLE, spread, tick_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
COLOURS = (DEEP, BESIDE, "#5f8f3f", "#7d4f98", MIDDLE, "#bd8a12", "#3b9a9c", "#c2586a", "#7a7d80")
_DOTS = 160  # a side inch
_WIDE, _HIGH, _LETTER, _LINE = 3.7, 2.7, 0.068, 0.155  # inches: the axes of a panel, and the size of its labels
_LEFT, _BOTTOM, _TOP = 0.55, 0.5, 0.45


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
    """Panels side by side, in rows of so many (0: one row), each line named at its end."""
    from matplotlib import style

    columns = columns or len(panels)
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    # A column is as wide as the longest name in it, and an arrow behind that.
    margins = [
        max(_LETTER * (len(series.label) + 2) + 0.25 for panel in panels[place::columns] for series in panel.series)
        for place in range(columns)
    ]
    wide = sum(_LEFT + _WIDE + margin for margin in margins)
    each = _BOTTOM + _HIGH + _TOP
    high = each * len(rows)
    with style.context(["default", STYLE]):
        canvas = canvas_of(wide, high)
        for down, row in enumerate(rows):
            left = 0.0
            for panel, margin in zip(row, margins, strict=False):
                bottom = (len(rows) - 1 - down) * each + _BOTTOM
                box = ((left + _LEFT) / wide, bottom / high, _WIDE / wide, _HIGH / high)
                _draw(canvas.add_axes(box), panel)
                left += _LEFT + _WIDE + margin
        return png_of(canvas)


def canvas_of(wide: float, high: float) -> Canvas:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(wide, high), facecolor="#ffffff", dpi=_DOTS)
    FigureCanvasAgg(canvas)
    return canvas


def png_of(canvas: Canvas) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _draw(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    place = _placing(panel.places)
    for series in panel.series:
        xs = [place(point.x) for point in series.points]
        axes.plot(
            xs, [point.mean for point in series.points], color=series.colour, linestyle=":" if series.dotted else "-",
            marker="o" if panel.places or len(xs) < 12 else "", markersize=3.5, clip_on=len(xs) > 1,
        )  # fmt: skip
        lows, highs = [point.low for point in series.points], [point.high for point in series.points]
        if lows != highs:
            axes.fill_between(xs, lows, highs, color=series.colour, alpha=0.15, linewidth=0)
    _set_horizontal(axes, panel, place)
    axes.set_ylim(*_vertical_range(panel))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=panel.scale.percent)))
    heading = f"{panel.scale.unit} — {panel.title}" if panel.title else panel.scale.unit
    axes.set_title(heading, loc="left", fontsize=9, x=-0.09, pad=9)
    _name_lines(axes, panel, place)


def _placing(places: Sequence[float]):
    """Where a value stands: zero goes to the left of the smallest on a logarithmic axis."""
    positive = [value for value in places if value > 0]
    least = min(positive, default=1.0)
    return lambda value: value if value > 0 or not places else least / 2.5


def _set_horizontal(axes: Axes, panel: Panel, place) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.set_xlabel(panel.x, loc="right", labelpad=1)
    if not panel.places:
        xs = [point.x for series in panel.series for point in series.points]
        axes.set_xlim(min(0, *xs) if panel.start == 0 else panel.start, max(xs))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10), integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.0f}"))
        return
    shown = sorted(set(panel.places))
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([place(value) for value in shown], [f"{value:g}" for value in shown], fontsize=8)
    axes.set_xlim(place(shown[0]) / 1.15, place(shown[-1]) * 1.15)
    if panel.upright is not None and shown[0] <= panel.upright[0] <= shown[-1] * 1.1:
        axes.axvline(panel.upright[0], color=INK, linewidth=1, dashes=(4, 3))
        axes.annotate(
            panel.upright[1], (panel.upright[0], 1), xycoords=("data", "axes fraction"), xytext=(-4, -2), fontsize=8,
            textcoords="offset points", ha="right", va="top", color=INK,
        )  # fmt: skip


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


def _name_lines(axes: Axes, panel: Panel, place) -> None:
    """Each line's name in a column to the right, at the height of its end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    heights, labels = [], []
    named = [series for series in panel.series if series.label]
    for series in named:
        height = (series.points[-1].mean - low) / (high - low)
        # A line that ends outside the frame is still named, with where it went.
        labels.append(f"{series.label} {'↓' if height < 0 else '↑' if height > 1 else ''}".rstrip())
        heights.append(min(max(0.04, height), 0.96) if not 0 <= height <= 1 else max(0.04, height))
    gap = _LINE / _HIGH
    for series, height, label in zip(named, spread(heights, gap), labels, strict=True):
        axes.annotate(
            label, (1, height), xycoords="axes fraction", xytext=(9, 0), textcoords="offset points", va="center",
            color=series.colour, annotation_clip=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A labelled row of histograms, one for each column."""

    label: str
    histograms: Sequence[Sequence[float]]


def draw_histograms(columns: Sequence[str], rows: Sequence[Row], finish: Callable[[Canvas], T] = png_of) -> T:
    """Rows of small histograms over 0, 1, 2, ..., with the mean marked."""
    from matplotlib import style

    label = _LETTER * max(len(row.label) for row in rows) + 0.2
    cell_wide, cell_high = 1.25, 0.42
    wide, high = label + len(columns) * (cell_wide + 0.12) + 0.1, 0.4 + len(rows) * cell_high + 0.35
    with style.context(["default", {**STYLE, "svg.hashsalt": "histograms"}]):
        canvas = canvas_of(wide, high)
        for down, row in enumerate(rows):
            bottom = high - 0.4 - (down + 1) * cell_high
            canvas.text(0.08 / wide, (bottom + 0.15) / high, row.label, va="center", fontsize=9, color=DEEP)
            for across, shares in enumerate(row.histograms):
                left = label + across * (cell_wide + 0.12)
                axes = canvas.add_axes((left / wide, bottom / high, cell_wide / wide, (cell_high - 0.1) / high))
                axes.bar(range(len(shares)), shares, width=0.85, color=MIDDLE)
                mean = sum(count * share for count, share in enumerate(shares))
                axes.axvline(mean, color=BESIDE, linewidth=1.2)
                axes.set_xlim(-0.6, len(shares) - 0.4)
                axes.set_ylim(0, max(shares) * 1.1)
                axes.grid(visible=False)
                axes.set_yticks([])
                axes.spines["bottom"].set_color(FAINT)
                last = down == len(rows) - 1
                axes.set_xticks([0, 5, 10] if last else [], ["0", "5", "10"] if last else [], fontsize=8)
                if down == 0:
                    axes.set_title(columns[across], fontsize=9, pad=5)
        return finish(canvas)
