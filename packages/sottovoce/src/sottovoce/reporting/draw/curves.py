"""Small line figures by round, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sottovoce.reporting.draw import style
from sottovoce.reporting.draw.style import DEEP, INK, PALE, PAPER
from sottovoce.reporting.pages import Drawing, Table
from sottovoce_evidence.accounting import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[int, float]]
T = TypeVar("T")

_WIDE, _HIGH = 4.8, 2.9  # inches
_MOST_POINTS = 300  # more are not seen at this size
_COLUMNS = 8  # of a figure's table
_FEW_POINTS = 12  # up to here every point gets a marker
_RANGE = 6  # largest over smallest from which a scale is logarithmic
_EDGE = 0.8  # ends beyond this share of the width are labelled at the right edge
_LABEL_GAP = 0.075  # least distance between two labels, as a share of the height


@dataclass(frozen=True)
class Line:
    """A labelled series by round. A label is the report's own words or the name of a run."""

    label: str
    points: Points
    colour: str = DEEP
    hollow: bool = False  # a marker alone, not filled: something that has not happened


@dataclass(frozen=True)
class Level:
    """A dashed line across."""

    label: str
    value: float


@dataclass(frozen=True)
class Figure:
    """Lines by round."""

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    percent: bool = False
    widen: bool = False  # to a logarithmic scale, where values differ much
    band: bool = False  # shade between the first line and the last
    bound: bool = False  # round numbers up, as those of an ε are

    def drawing(self, words: str, nothing: str) -> Drawing:
        """The picture with its numbers, for a page; `nothing` is said where no line has a point."""
        drawn = any(line.points for line in self.lines)
        return Drawing(self.title, words, self.svg(), self.numbers()) if drawn else Drawing(self.title, nothing)

    def svg(self) -> str:
        """One `<svg>` element."""
        with style.drawing(_WIDE, _HIGH, self.name) as canvas:
            room = style.room_for(one.label for one in (*self.lines, *self.levels))
            axes = canvas.add_axes((0.105, 0.155, 0.87 - room / _WIDE, 0.735))
            for line in self.lines:
                _draw_line(axes, line)
            for level in self.levels:
                axes.axhline(level.value, color=INK, linewidth=1, dashes=style.DASHES)
            if self.band:
                (rounds, low), (_, high) = (zip(*_thin(self.lines[end].points), strict=True) for end in (0, -1))
                axes.fill_between(rounds, low, high, color=PALE, alpha=0.15, linewidth=0)
            _set_axes(axes, self)
            _label_ends(axes, self)
            return style.to_svg(canvas, self.name, self.title, self.describe())

    def describe(self) -> str:
        """The figure in words, for those who cannot see it."""
        words = []
        for line in [line for line in self.lines if line.points]:
            (start, first), (end, last) = line.points[0], line.points[-1]
            begin = f"{self._number(first)} at round {start}, " if end != start else ""
            words.append(f"{line.label}: {begin}{self._number(last)} at round {end}.")
        words += [f"{level.label}: {self._number(level.value)}." for level in self.levels]
        return " ".join(words)

    def numbers(self) -> Table:
        """The figure as a table: all rounds that fit, the first and the last of every line among them."""
        lines = [line for line in self.lines if line.points]
        rounds = sorted({at for line in lines for at, _ in line.points})
        ends = {line.points[place][0] for line in lines for place in (0, -1)}
        choices = (sorted(ends | set(_even(rounds, most))) for most in range(_COLUMNS, 1, -1))
        chosen = next((choice for choice in choices if len(choice) <= _COLUMNS), sorted(ends))
        rows: list[tuple[str, Sequence[str] | str]] = [
            (line.label or self.unit, [self._number(dict(line.points).get(at)) for at in chosen]) for line in lines
        ]
        rows += [(level.label, self._number(level.value)) for level in self.levels]
        remark = "" if len(chosen) == len(rounds) else f"{len(chosen)} of the {len(rounds):,} rounds that are drawn."
        return Table(f"Numbers of {self.title}", "round", [f"{at:,}" for at in chosen], rows, remark)

    def _number(self, value: float | None) -> str:
        if value is None:
            return "–"
        if self.bound:
            return rounded_up(value)
        return f"{100 * value:.3g}%" if self.percent else f"{value:.4g}"


def _draw_line(axes: Axes, line: Line) -> None:
    points = _thin(line.points)
    if not points:
        return
    rounds, values = zip(*points, strict=True)
    if line.hollow:
        axes.plot(rounds, values, "o", markersize=5, color=line.colour, markerfacecolor=PAPER, clip_on=False)
        return
    marked = None if len(points) <= _FEW_POINTS else [len(points) - 1]
    axes.plot(rounds, values, marker="o", markersize=3.5, markevery=marked, color=line.colour, clip_on=False)


def _set_axes(axes: Axes, figure: Figure) -> None:
    values = [value for line in figure.lines for _, value in line.points] + [level.value for level in figure.levels]
    last = max((at for line in figure.lines for at, _ in line.points), default=1)
    axes.set_xlim(0, max(last, 1))
    axes.set_xlabel("round", loc="right", labelpad=1)
    style.numbers(axes.xaxis, 5, integer=True)
    style.heading(axes, figure.unit)
    low, high = min(values), max(values)
    if figure.widen and low > 0 and high / low > _RANGE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, high * 1.15)
        style.powers(axes.yaxis, percent=figure.percent, between=(1, 2, 5) if high / low < 300 else (1,))
    else:
        style.numbers(axes.yaxis, 5, percent=figure.percent)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 0.1
        axes.set_ylim(min(0, low), high + room)


def _label_ends(axes: Axes, figure: Figure) -> None:
    """Each line's name at its end, moved apart where they would touch."""
    right = axes.get_xlim()[1]
    named = [(line.points[-1], line.label, line.colour) for line in figure.lines if line.points]
    named += [((right, level.value), level.label, INK) for level in figure.levels]
    to_share = axes.transData + axes.transAxes.inverted()
    places: list[tuple[float, float]] = [tuple(to_share.transform(end)) for end, _, _ in named]
    # Ends near the right edge stand in one column of labels; a line that stops before it is labelled where it stops.
    edge = [index for index, (x, _) in enumerate(places) if x > _EDGE]
    for index, height in zip(edge, style.spread([places[index][1] for index in edge], _LABEL_GAP), strict=True):
        places[index] = (1.0, height)
    for place, (_, text, colour) in zip(places, named, strict=True):
        style.label(axes, style.short(text), place, (7, 0), xycoords="axes fraction", color=colour)


def _thin(points: Points) -> list[tuple[int, float]]:
    """Evenly fewer points, with the first and the last."""
    return _even(points, _MOST_POINTS)


def _even(values: Sequence[T], most: int) -> list[T]:
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[math.floor(index * step + 0.5)] for index in range(most)]
