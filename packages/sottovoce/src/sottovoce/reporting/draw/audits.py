"""What audits found, as PNG: the tail of c(s), exposure of secrets, and the ROC curves of membership attacks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.audit.results import AttackResult, CanariesResult, ExposurePoint
from sottovoce.audit.tails import Tail
from sottovoce.reporting.draw import style
from sottovoce.reporting.draw.panels import Panel, Point, Scale, Series, draw_panels
from sottovoce.reporting.draw.style import ACCENT, BOTTOM, COLOURS, DEEP, INK, LEFT, MIDDLE, PANEL_HIGH, PANEL_WIDE, TOP
from sottovoce_evidence.accounting import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_tail(log_ratios: np.ndarray, tail: Tail) -> bytes:
    """Figure 3 of Popov et al. 2018: how many texts have a larger c(s), and by how many the fitted law is off.

    The larger half of the values is enough.
    """
    return draw_tails({"": (log_ratios, tail)})


def draw_tails(tails: Mapping[str, tuple[np.ndarray, Tail]]) -> bytes:
    """As `draw_tail`, one row for each of several tails, by name."""
    margin, gap, row_high = 0.25, 0.7, BOTTOM + PANEL_HIGH + TOP
    with style.drawing(2 * (LEFT + PANEL_WIDE) + gap + margin, len(tails) * row_high) as canvas:
        rows: list[tuple[Axes, Axes]] = []
        for place, (name, (log_ratios, tail)) in enumerate(tails.items(), 1):
            bottom = (len(tails) - place) * row_high + BOTTOM
            left, right = (
                style.add_axes(canvas, across, bottom, PANEL_WIDE, PANEL_HIGH)
                for across in (LEFT, LEFT + PANEL_WIDE + gap + LEFT)
            )
            _draw_counts(left, right, np.sort(log_ratios)[::-1], tail, f"{name}: " if name else "")
            rows.append((left, right))
        if len(rows) > 1:  # the same scales; on the right a tail keeps the width of its panel
            across, counts, off = (
                (min(low for low, _ in limits), max(top for _, top in limits))
                for limits in (
                    [left.get_xlim() for left, _ in rows],
                    [left.get_ylim() for left, _ in rows],
                    [right.get_ylim() for _, right in rows],
                )
            )
            for left, right in rows:
                left.set(xlim=across, ylim=counts)
                right.set(ylim=off)
        return style.to_png(canvas)


def _draw_counts(left: Axes, right: Axes, values: np.ndarray, tail: Tail, name: str) -> None:
    """The texts with a larger c(s) on the left, and on the right how far off the law is; values are falling."""
    beyond = np.linspace(tail.start, values[0], 200)
    shares = np.exp(-tail.alpha * (beyond - tail.start))
    upper = values[: tail.texts // 2]  # below the median there is nothing of the tail
    left.step(upper, np.arange(1, len(upper) + 1), where="post", color=DEEP)
    left.plot(beyond, tail.k * shares, color=ACCENT)
    left.set_yscale("log")
    left.set_ylim(0.7, len(upper) * 1.3)
    style.powers(left.yaxis)
    style.heading(left, f"{name}texts with a larger c(s)")
    style.label(left, f"α = {tail.alpha:.3g}", (beyond[60], tail.k * shares[60]), (6, 4), va="baseline", color=ACCENT)

    counted = np.searchsorted(-values, -beyond, side="right")
    error = np.sqrt(tail.k * shares * (1 - shares))
    off = counted - tail.k * shares
    right.step(beyond, off, where="post", color=DEEP)
    for sign in (1, -1):
        right.plot(beyond, sign * error, color=INK, linewidth=1)
    above = np.any(off[110:180] < -error[110:180])  # where the word would stand on the steps
    sign, away = (1, 5) if above else (-1, -11)
    style.label(right, "standard error", (beyond[110], sign * error[110]), (4, away), va="baseline", color=INK)
    low, top = right.get_ylim()
    right.set_ylim(low, top + 0.1 * (top - low))  # room for a word
    style.numbers(right.yaxis, 6, integer=True)
    style.heading(right, f"{name}texts beyond x, less those of the law")
    for axes in (left, right):
        _mark_start(axes, tail.start)


def _mark_start(axes: Axes, start: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.axvline(start, color=MIDDLE, linewidth=1, dashes=style.DASHES)
    style.label(
        axes, "tail", (start, 1), (4, -2), xycoords=("data", "axes fraction"), va="top", fontsize=8, color=MIDDLE
    )
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("log c(s)", loc="right", labelpad=1)


def draw_roc(attacks: Sequence[AttackResult]) -> bytes:
    """Shares of in users found against false alarms, both logarithmic: what is sure of a few shows at the left."""
    # One false alarm is the fewest that these out users can show.
    fewest = min(fpr for attack in attacks for fpr, _ in attack.roc if fpr > 0)
    least = 10.0 ** np.floor(np.log10(fewest) - 1e-9)
    side, margin = 3.4, 2.1
    with style.drawing(LEFT + side + margin, BOTTOM + side + TOP) as canvas:
        axes = style.add_axes(canvas, LEFT, BOTTOM, side, side)
        axes.plot([least, 1], [least, 1], color=INK, linewidth=1, dashes=style.DASHES)
        for place, (attack, colour) in enumerate(zip(attacks, COLOURS, strict=False)):
            axes.step(*zip(*attack.roc, strict=True), where="post", color=colour)
            text = f"{attack.attack}\nAUC {attack.auc:.3f} ({attack.low:.3f} to {attack.high:.3f})"
            how = {"xycoords": "axes fraction", "va": "top", "fontsize": 8}
            style.label(axes, text, (1, 1 - 0.14 * place), (9, 0), color=colour, **how)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            style.powers(axis, percent=True)
        axes.set_xlim(least, 1)
        axes.set_ylim(least, 1.05)
        axes.set_xlabel("out users taken for in users", loc="right", labelpad=1)
        style.heading(axes, "in users found")
        return style.to_png(canvas)


def draw_exposure(result: CanariesResult) -> bytes | None:
    """Exposure against the users who held a secret and, with other runs, against ε."""
    if not result.curve:
        return None
    runs = [(result.claimed, result.curve), *((other.epsilon, other.curve) for other in result.beside)]
    bits = Scale("exposure in bits", percent=False)
    holders = sorted({point.holders for _, points in runs for point in points})
    by_holders = []
    for (epsilon, points), colour in zip(runs, itertools.cycle(COLOURS)):
        shown = rounded_up(epsilon) if math.isfinite(epsilon) else "∞"
        by_holders.append(Series(f"ε = {shown}", [_point(point.holders, point) for point in points], colour))
    panels = [Panel("", by_holders, "users who held a secret", holders, scale=bits)]
    finite = sorted(((epsilon, points) for epsilon, points in runs if math.isfinite(epsilon)), key=itemgetter(0))
    if len(finite) > 1:
        by_epsilon = []
        for count, colour in zip(holders, itertools.cycle(COLOURS)):
            marks = [_point(epsilon, one) for epsilon, points in finite for one in points if one.holders == count]
            by_epsilon += [Series(f"held by {count}", marks, colour)] if marks else []
        panels.append(Panel("", by_epsilon, "ε", [float(f"{epsilon:.3g}") for epsilon, _ in finite], scale=bits))
    return draw_panels(panels)


def _point(x: float, point: ExposurePoint) -> Point:
    return Point(x, point.median, point.least, point.largest)
