"""Runs side by side, drawn: what is useful against what is private, and how unlike users fare.

Runs are drawn by their letters: names of folders may be long, or mean something to what draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.accounting import rounded_up
from sottovoce.reporting.figures import INK, STYLE, inline_svg, spread, svg_of, tick_label
from sottovoce.reporting.panels import Row, draw_histograms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_WIDE, _HIGH = 8.4, 3.1  # inches
_LANE, _FRAME = 0.42, 0.75
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
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    with style.context(["default", {**STYLE, "svg.hashsalt": "utility"}]):
        canvas = Canvas(figsize=(_WIDE, _HIGH), facecolor="none")
        axes = canvas.add_axes((0.065, 0.15, 0.875, 0.73), facecolor="none")
        private = [spot for spot in spots if spot.epsilon is not None]
        _set_utility_axes(axes, spots, [spot.epsilon for spot in private if spot.epsilon is not None])
        for spot in private:
            assert spot.epsilon is not None
            axes.errorbar(
                [spot.epsilon], [spot.top1], yerr=None if spot.within is None else [spot.within], fmt="o", markersize=6,
                color=spot.colour, markerfacecolor="#ffffff" if spot.projected else spot.colour, capsize=3,
                elinewidth=1.2, clip_on=False,
            )  # fmt: skip
            axes.annotate(
                spot.letter, (spot.epsilon, spot.top1), xytext=(8, 6), textcoords="offset points", color=spot.colour,
                fontweight="bold", annotation_clip=False,
            )  # fmt: skip
        _draw_levels(axes, [spot for spot in spots if spot.epsilon is None])
        text = svg_of(canvas)
    return inline_svg(text, "utility", "Top-1 against ε", " ".join(spot.describe() for spot in spots))


def _set_utility_axes(axes: Axes, spots: Sequence[Spot], epsilons: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low = min(spot.top1 - (spot.within or 0) for spot in spots)
    high = max(spot.top1 + (spot.within or 0) for spot in spots)
    room = (high - low) * 0.12 or 0.01
    axes.set_ylim(max(0, low - room), high + room)
    axes.set_xlabel("ε", loc="right", labelpad=1)
    axes.set_title("top-1, share of targets", loc="left", fontsize=9, x=-0.05, pad=9)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=True)))
    if not epsilons:
        axes.set_xticks([])
        return
    if max(epsilons) / min(epsilons) > _RANGE:
        axes.set_xscale("log")
        axes.set_xlim(min(epsilons) / 1.4, max(epsilons) * 1.4)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max(epsilons) * 1.15)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 2.5, 5, 10)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=False)))


def _draw_levels(axes: Axes, spots: Sequence[Spot]) -> None:
    low, high = axes.get_ylim()
    heights = spread([(spot.top1 - low) / (high - low) for spot in spots], 0.08)
    for spot, height in zip(spots, heights, strict=True):
        axes.axhline(spot.top1, color=spot.colour, linewidth=1.2, dashes=(4, 3))
        if spot.within is not None:
            axes.axhspan(spot.top1 - spot.within, spot.top1 + spot.within, color=spot.colour, alpha=0.12, linewidth=0)
        axes.annotate(
            spot.letter, (1, height), xycoords="axes fraction", xytext=(8, 0), textcoords="offset points", va="center",
            color=spot.colour, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def draw_head_words(columns: Sequence[str], rows: Sequence[Row], description: str) -> str:
    """Small histograms, a row for each run. One `<svg>`."""

    def finish(canvas: Canvas) -> str:
        canvas.set_facecolor("none")
        return svg_of(canvas)

    drawn = draw_histograms(columns, rows, finish)
    return inline_svg(drawn, "head-words", "Head words among ten predictions", description)


def draw_spread(lanes: Sequence[tuple[str, str, Sequence[float]]]) -> str:
    """Letter, colour and the 5th, 25th, 50th, 75th and 95th percentile over users: a lane for each. One `<svg>`."""
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    high = _FRAME + _LANE * len(lanes)
    with style.context(["default", {**STYLE, "svg.hashsalt": "spread", "axes.grid.axis": "x"}]):
        canvas = Canvas(figsize=(_WIDE, high), facecolor="none")
        axes = canvas.add_axes(
            (0.065, 0.45 / high, 0.9, _LANE * len(lanes) / high), facecolor="none", ylim=(len(lanes) - 0.5, -0.5),
            yticks=[],
        )  # fmt: skip
        for place, (letter, colour, (p5, p25, p50, p75, p95)) in enumerate(lanes):
            axes.plot([p5, p95], [place, place], color=colour, linewidth=1.4)
            axes.plot([p25, p75], [place, place], color=colour, linewidth=9, alpha=0.45, solid_capstyle="butt")
            axes.plot([p50], [place], "o", markersize=6, color=colour, markerfacecolor="#ffffff", clip_on=False)
            axes.annotate(
                letter, (0, place), xycoords=("axes fraction", "data"), xytext=(-10, 0), textcoords="offset points",
                ha="right", va="center", color=colour, fontweight="bold", annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 2.5, 5, 10)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=True)))
        axes.set_xlabel("top-1 of a user", loc="right", labelpad=1, color=INK)
        text = svg_of(canvas)
    said = " ".join(f"{letter}: median {100 * values[2]:.3g}%." for letter, _, values in lanes)
    return inline_svg(text, "spread", "Top-1 over users", said)
