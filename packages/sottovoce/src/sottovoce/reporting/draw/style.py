"""The style that all figures share: colours, axes, labels, and how a canvas becomes SVG or PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

DEEP, MIDDLE, PALE, ACCENT = "#0f3557", "#2a6ca6", "#4a7ea9", "#a4541a"
INK, FAINT, PAPER = "#55585c", "#d6d9dc", "#ffffff"
COLOURS = (DEEP, ACCENT, "#5f8f3f", "#7d4f98", MIDDLE, "#bd8a12", "#3b9a9c", "#c2586a", "#7a7d80")
DASHES = (4, 3)

# inches: the axes of a panel of a PNG, and what is left and right of, above and below them
PANEL_WIDE, PANEL_HIGH = 3.7, 2.7
LEFT, BOTTOM, TOP = 0.55, 0.5, 0.45
PAGE_WIDE = 8.4  # a figure of an SVG that takes the width of a page
LETTER = 0.075  # inches: the width of a letter of a label
_DOTS = 160  # an inch of a PNG

_STYLE = {
    "svg.fonttype": "none",  # text stays text: the page's font, readable aloud, found by a search
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that layout is the same everywhere
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
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


@contextmanager
def drawing(wide: float, high: float, name: str = "", *, grid: str = "y") -> Generator[Canvas, None, None]:
    """A canvas of that many inches. Draw and save it inside the block; an SVG of the same `name` has the same ids."""
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    with style.context(["default", {**_STYLE, "svg.hashsalt": name, "axes.grid.axis": grid}]), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing")  # a page has fonts for names in any script
        yield Canvas(figsize=(wide, high), facecolor="none")


def to_png(canvas: Canvas) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format="png", dpi=_DOTS, facecolor=PAPER, metadata={"Software": None})
    return file.getvalue()


def to_svg(canvas: Canvas, name: str, title: str, description: str) -> str:
    """An `<svg>` element for a page, the same to the byte every time.

    Ids of figures with different names differ, so that several fit on one page; no style of it reaches the rest of
    the page. `title` and `description` are read aloud to those who cannot see it.
    """
    file = io.StringIO()
    # Without a date and without addresses of metadata schemes.
    canvas.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = file.getvalue().split("<svg", 1)[1].split(">", 1)[1]
    body = _LEFT_OUT.sub("", re.sub(r"\s+", " ", body)).replace("xlink:href", "href").replace("> <", "><")
    wide, high = (72 * inches for inches in canvas.get_size_inches())  # matplotlib writes points
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{body.strip()}'
    )


# Styles, comments, the font (the page has its own), and ids that nothing refers to and that all figures share.
_LEFT_OUT = re.compile(r"<style.*?</style>|<!--.*?-->|font-family: 'DejaVu Sans'; | id=\"[\w.]+_\d+\"|<g id=[^>]*/>")


def add_axes(canvas: Canvas, left: float, bottom: float, wide: float, high: float, **how: Any) -> Axes:
    """Axes at a place in inches."""
    across, up = canvas.get_size_inches()
    return canvas.add_axes((left / across, bottom / up, wide / across, high / up), **how)


def heading(axes: Axes, text: str, x: float = -0.09) -> None:
    """What the vertical axis shows, above it."""
    axes.set_title(text, loc="left", fontsize=9, x=x, pad=9)


def label(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """Text some points away from a place: of the data, or of the axes with `xycoords`."""
    # Names are of people's folders and tokens: a $ in them is not mathematics.
    defaults: Any = {"textcoords": "offset points", "va": "center", "annotation_clip": False, "parse_math": False}
    axes.annotate(text, at, xytext=offset, **(defaults | how))


def short(text: str, most: int = 16) -> str:
    """A name that fits in a figure. Names of runs are often alike at the beginning and differ at the end.

    >>> short("an-experiment-with-noise-2")
    'an-expe…-noise-2'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[: most - half - 1]}…{text[-half:]}"


def room_for(labels: Iterable[str]) -> float:
    """Inches that labels take to the right of an axis; 0 without labels."""
    longest = max((len(short(text)) for text in labels), default=0)
    return LETTER * longest + 0.12 if longest else 0.0


def numbers(axis: Axis, most: int, *, percent: bool = False, integer: bool = False) -> None:
    """Round numbers along an axis, at most `most` steps of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=(1, 2, 2.5, 5, 10), integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=percent, integer=integer)))


def powers(axis: Axis, *, percent: bool = False, between: Sequence[float] = (1,)) -> None:
    """Powers of ten along an axis that is logarithmic, and what is `between` them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=between))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=percent)))


def tick_label(value: float, *, percent: bool = False, integer: bool = False) -> str:
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if integer or 1000 <= abs(value) < 1e6 else f"{value:.4g}"


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
