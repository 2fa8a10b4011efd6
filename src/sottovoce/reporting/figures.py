"""Small line figures by round, as inline SVG that is the same to the byte every time."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from sottovoce.accounting import rounded_up
from sottovoce.reporting.pages import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Points = Sequence[tuple[int, float]]
T = TypeVar("T")

DEEP, MIDDLE, PALE, BESIDE = "#0f3557", "#2a6ca6", "#4a7ea9", "#a4541a"
INK, FAINT = "#55585c", "#d6d9dc"

STYLE = {
    "svg.fonttype": "none",  # text stays text: the page's font, readable aloud, found by a search
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that layout is the same everywhere
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
}
_MOST_POINTS = 300  # more are not seen at this size
_COLUMNS = 8  # of a figure's table
_FEW_POINTS = 12  # up to here every point gets a marker
_WIDE = 6  # largest over smallest from which a scale is logarithmic
_STEPS = (1, 2, 2.5, 5, 10)
_EDGE = 0.8  # ends beyond this share of the width are labelled at the right edge
_LABEL_GAP = 0.075  # least distance between two labels, as a share of the height


@dataclass(frozen=True)
class Line:
    """A labelled series by round; labels are the report's own words, never a user's or a run's."""

    label: str
    points: Points
    colour: str = DEEP
    dotted: bool = False
    hollow: bool = False  # a marker alone, not filled: something that has not happened


@dataclass(frozen=True)
class Level:
    """A dashed line across."""

    label: str
    value: float


@dataclass(frozen=True)
class Figure:
    """`band` shades between the first and the last of `lines`; `widen` allows a logarithmic scale. Numbers that
    `bound` something, such as an ε, are rounded up."""

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    percent: bool = False
    from_zero: bool = True
    widen: bool = False
    band: bool = False
    bound: bool = False

    def svg(self) -> str:
        """One `<svg>` element; its ids begin with the figure's name, so that several fit on one page."""
        return inline_svg(_draw(self), self.name, self.title, self.describe())

    def describe(self) -> str:
        """The figure in words, for those who cannot see it."""
        said = []
        for line in self.lines:
            if not line.points:
                continue
            (start, first), (end, last) = line.points[0], line.points[-1]
            begin = f"{self._number(first)} at round {start}, " if end != start else ""
            said.append(f"{line.label}: {begin}{self._number(last)} at round {end}.")
        said += [f"{level.label}: {self._number(level.value)}." for level in self.levels]
        return " ".join(said)

    def numbers(self) -> Table:
        """The figure as a table: all rounds that fit, the first and the last of every line among them."""
        lines = [line for line in self.lines if line.points]
        rounds = sorted({at for line in lines for at, _ in line.points})
        ends = {line.points[place][0] for line in lines for place in (0, -1)}
        chosen = rounds
        for most in range(_COLUMNS, 1, -1):
            chosen = sorted(ends | set(_even(rounds, most)))
            if len(chosen) <= _COLUMNS:
                break
        rows: list[tuple[str, Sequence[str] | str]] = []
        for line in lines:
            values = dict(line.points)
            rows.append((line.label or self.unit, [self._cell(values.get(at)) for at in chosen]))
        rows += [(level.label, self._number(level.value)) for level in self.levels]
        remark = "" if len(chosen) == len(rounds) else f"{len(chosen)} of the {len(rounds):,} rounds that are drawn."
        return Table(f"Numbers of {self.title}", "round", [f"{at:,}" for at in chosen], rows, remark)

    def _cell(self, value: float | None) -> str:
        return "–" if value is None else self._number(value)

    def _number(self, value: float) -> str:
        if self.bound:
            return rounded_up(value, 4)
        return f"{100 * value:.3g}%" if self.percent else f"{value:.4g}"


def _draw(figure: Figure) -> str:
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    with style.context(["default", {**STYLE, "svg.hashsalt": figure.name}]):
        canvas = Canvas(figsize=(4.8, 2.9), facecolor="none")
        labelled = bool(figure.levels) or any(line.label for line in figure.lines)
        axes = canvas.add_axes((0.105, 0.155, 0.715 if labelled else 0.87, 0.735), facecolor="none")
        for line in figure.lines:
            _draw_line(axes, line)
        for level in figure.levels:
            axes.axhline(level.value, color=INK, linewidth=1, dashes=(4, 3))
        if figure.band:
            low, high = _thin(figure.lines[0].points), _thin(figure.lines[-1].points)
            rounds, bottoms, tops = [at for at, _ in low], [value for _, value in low], [value for _, value in high]
            axes.fill_between(rounds, bottoms, tops, color=PALE, alpha=0.15, linewidth=0)
        _set_axes(axes, figure)
        _label_ends(axes, figure)
        return svg_of(canvas)


def svg_of(canvas: Canvas) -> str:
    """A drawing as a file, the same to the byte every time."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(canvas)
    file = io.StringIO()
    # Without a date and without addresses of metadata schemes.
    canvas.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return file.getvalue()


def _draw_line(axes: Axes, line: Line) -> None:
    points = _thin(line.points)
    if not points:
        return
    rounds, values = zip(*points, strict=True)
    if line.hollow:
        axes.plot(rounds, values, "o", markersize=5, color=line.colour, markerfacecolor="#ffffff", clip_on=False)
        return
    few = len(points) <= _FEW_POINTS
    axes.plot(
        rounds, values, color=line.colour, linestyle=":" if line.dotted else "-", marker="o", markersize=3.5,
        markevery=None if few else [len(points) - 1], clip_on=False,
    )  # fmt: skip


def _set_axes(axes: Axes, figure: Figure) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    values = [value for line in figure.lines for _, value in line.points] + [level.value for level in figure.levels]
    last = max((at for line in figure.lines for at, _ in line.points), default=1)
    axes.set_xlim(0, max(last, 1))
    axes.set_xlabel("round", loc="right", labelpad=1)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.0f}"))
    axes.set_title(figure.unit, loc="left", fontsize=9, x=-0.09, pad=9)
    low, high = min(values), max(values)
    if figure.widen and low > 0 and high / low > _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, high * 1.15)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        room = (high - low) * 0.08 or abs(high) * 0.1 or 0.1
        axes.set_ylim(min(0, low) if figure.from_zero else low - room, high + room)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, figure.percent)))


def tick_label(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _label_ends(axes: Axes, figure: Figure) -> None:
    """Each line's name at its end, moved apart where they would touch."""
    right = axes.get_xlim()[1]
    named = [(line.points[-1], line.label, line.colour) for line in figure.lines if line.points]
    named += [((right, level.value), level.label, INK) for level in figure.levels]
    to_share = axes.transData + axes.transAxes.inverted()
    places: list[tuple[float, float]] = [tuple(to_share.transform(end)) for end, _, _ in named]
    # Ends near the right edge stand in one column of labels; a line that stops before it is labelled where it stops.
    edge = [index for index, (x, _) in enumerate(places) if x > _EDGE]
    for index, height in zip(edge, spread([places[index][1] for index in edge], _LABEL_GAP), strict=True):
        places[index] = (1.0, height)
    for place, (_, label, colour) in zip(places, named, strict=True):
        axes.annotate(
            label, place, xycoords="axes fraction", xytext=(7, 0), textcoords="offset points", va="center",
            color=colour, annotation_clip=False,
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights up until they are `gap` apart, then back down from the top where they left the figure."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    if order:
        moved[order[-1]] = min(moved[order[-1]], max(1.0, heights[order[-1]]))
    for below, above in reversed(list(pairwise(order))):
        moved[below] = min(moved[below], moved[above] - gap)
    return moved


def _thin(points: Points) -> list[tuple[int, float]]:
    """Evenly fewer points, with the first and the last."""
    return _even(points, _MOST_POINTS)


def _even(values: Sequence[T], most: int) -> list[T]:
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[math.floor(index * step + 0.5)] for index in range(most)]


_NAMESPACE = re.compile(r"^\{.*\}")


def inline_svg(text: str, name: str, title: str, description: str) -> str:
    """matplotlib's file as an element of a page: no style that leaks, ids of its own, words for who cannot see it."""
    root = ET.fromstring(text)
    parents = {child: parent for parent in root.iter() for child in parent}
    used = set(re.findall(r"#([\w.]+)", " ".join(value for node in root.iter() for value in node.attrib.values())))
    for node in list(root.iter()):
        node.tag = _NAMESPACE.sub("", node.tag)
        if node.tag == "style":
            parents[node].remove(node)
            continue
        node.tail = None
        attributes = {_NAMESPACE.sub("", key): value for key, value in node.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        node.attrib.clear()
        for key, value in attributes.items():
            node.set(key, _rename(key, value, name))
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("xmlns", "http://www.w3.org/2000/svg")  # a figure cut out of the page still opens
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    for position, (tag, words) in enumerate((("title", title), ("desc", description))):
        node = ET.Element(tag, {"id": f"{name}-{tag}"})
        node.text = words
        root.insert(position, node)
    return ET.tostring(root, encoding="unicode")


def _rename(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        return value.replace("font-family: 'DejaVu Sans'; ", "")
    if key == "d":
        return " ".join(value.split())
    return re.sub(r"^(url\()?#", rf"\g<0>{name}-", value)
