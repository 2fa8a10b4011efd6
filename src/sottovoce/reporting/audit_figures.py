"""What audits found, as PNG: the tail of c(s), and the curves of attacks on membership."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.audit.membership import Attack
from sottovoce.audit.tails import Tail
from sottovoce.reporting.figures import BESIDE, DEEP, INK, MIDDLE, STYLE, tick_label
from sottovoce.reporting.panels import COLOURS, canvas_of, png_of

_WIDE, _HIGH = 3.7, 2.7  # inches: the axes of a panel
_LEFT, _BOTTOM, _TOP = 0.55, 0.5, 0.45


def draw_tail(log_ratios: np.ndarray, tail: Tail) -> bytes:
    """Figure 3 of Popov et al. 2018: how many texts have a larger c(s), and by how many the fitted law is off.

    The larger half of the values is enough.
    """
    from matplotlib import style
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    values = np.sort(log_ratios)[::-1]
    upper = values[: tail.texts // 2]  # below the median there is nothing of the tail
    counts = np.arange(1, len(upper) + 1)
    margin, gap = 0.25, 0.7
    wide, high = 2 * (_LEFT + _WIDE) + gap + margin, _BOTTOM + _HIGH + _TOP
    with style.context(["default", STYLE]):
        canvas = canvas_of(wide, high)
        left, right = (
            canvas.add_axes((from_left / wide, _BOTTOM / high, _WIDE / wide, _HIGH / high))
            for from_left in (_LEFT, _LEFT + _WIDE + gap + _LEFT)
        )

        beyond = np.linspace(tail.start, values[0], 200)
        shares = np.exp(-tail.alpha * (beyond - tail.start))
        left.step(upper, counts, where="post", color=DEEP)
        left.plot(beyond, tail.k * shares, color=BESIDE)
        left.set_yscale("log")
        left.set_ylim(0.7, len(upper) * 1.3)
        left.yaxis.set_major_locator(LogLocator())
        left.yaxis.set_minor_locator(NullLocator())
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=False)))
        left.set_title("texts with a larger c(s)", loc="left", fontsize=9, x=-0.09, pad=9)
        left.annotate(
            f"α = {tail.alpha:.3g}", (beyond[60], tail.k * shares[60]), xytext=(6, 4), textcoords="offset points",
            color=BESIDE,
        )  # fmt: skip

        counted = np.searchsorted(-values, -beyond, side="right")
        error = np.sqrt(tail.k * shares * (1 - shares))
        right.step(beyond, counted - tail.k * shares, where="post", color=DEEP)
        for sign in (1, -1):
            right.plot(beyond, sign * error, color=INK, linewidth=1)
        right.annotate(
            "standard error", (beyond[110], -error[110]), xytext=(4, -11), textcoords="offset points", color=INK
        )
        low, top = right.get_ylim()
        right.set_ylim(low, top + 0.1 * (top - low))  # room for a word
        right.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        right.set_title("texts beyond x, less those of the law", loc="left", fontsize=9, x=-0.09, pad=9)
        for axes in (left, right):
            axes.axvline(tail.start, color=MIDDLE, linewidth=1, dashes=(4, 3))
            axes.annotate(
                "tail", (tail.start, 1), xycoords=("data", "axes fraction"), xytext=(4, -2), fontsize=8,
                textcoords="offset points", va="top", color=MIDDLE,
            )  # fmt: skip
            axes.xaxis.set_major_locator(MaxNLocator(6))
            axes.set_xlabel("log c(s)", loc="right", labelpad=1)
        return png_of(canvas)


def draw_roc(attacks: Sequence[Attack]) -> bytes:
    """Shares of in users found against false alarms, both logarithmic: what is sure of a few shows at the left."""
    from matplotlib import style
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    # One false alarm is the fewest that these out users can show.
    least = 10.0 ** np.floor(np.log10(min(attack.fprs[attack.fprs > 0].min() for attack in attacks)) - 1e-9)
    side, margin = 3.4, 2.1
    wide, high = _LEFT + side + margin, _BOTTOM + side + _TOP
    with style.context(["default", STYLE]):
        canvas = canvas_of(wide, high)
        axes = canvas.add_axes((_LEFT / wide, _BOTTOM / high, side / wide, side / high))
        axes.plot([least, 1], [least, 1], color=INK, linewidth=1, dashes=(4, 3))
        for place, (attack, colour) in enumerate(zip(attacks, COLOURS, strict=False)):
            axes.step(attack.fprs, attack.tprs, where="post", color=colour)
            axes.annotate(
                f"{attack.name}\nAUC {attack.auc:.3f} ({attack.low:.3f} to {attack.high:.3f})", (1, 1 - 0.14 * place),
                xycoords="axes fraction", xytext=(9, 0), textcoords="offset points", va="top", color=colour,
                annotation_clip=False, fontsize=8,
            )  # fmt: skip
        for scale, locator in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
            scale("log")
            locator.set_major_locator(LogLocator())
            locator.set_minor_locator(NullLocator())
            locator.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=True)))
        axes.set_xlim(least, 1)
        axes.set_ylim(least, 1.05)
        axes.set_xlabel("out users taken for in users", loc="right", labelpad=1)
        axes.set_title("in users found", loc="left", fontsize=9, x=-0.09, pad=9)
        return png_of(canvas)
