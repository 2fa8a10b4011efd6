"""Templates into pages: one look, one way to escape, and a figure's numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from sottovoce_evidence.files import Json


@dataclass(frozen=True)
class Table:
    """The numbers of a figure. Cells of a row that are one text hold for all columns."""

    about: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str] | str]]
    remark: str = ""


@dataclass(frozen=True)
class Bar:
    """A labelled bar that begins at 0; `share` is of the whole width."""

    label: str
    share: float
    shown: str
    remark: str = ""
    quiet: bool = False  # to compare with


@dataclass(frozen=True)
class Drawing:
    """A figure of a page: a title, words, and a picture with its numbers where there is something to draw."""

    title: str
    words: str
    svg: str = ""
    numbers: Table | None = None


def render_page(template: str, view: Json) -> str:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_source)
    )
    return environment.get_template(template).render(view)


def _source(name: str) -> str:
    return (resources.files("sottovoce.reporting") / name).read_text(encoding="utf-8")
