"""What a notebook shows in place of a text: a small table, or a whole page in a frame."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import PosixPath

FRAME_HEIGHT = 640


def html_table(title: str, rows: Mapping[str, str]) -> str:
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="text-align:left"><b>{escape(title)}</b></caption>{lines}</table>'


def html_frame(page: str) -> str:
    """A page of its own styles, which change nothing around it. It may run no script."""
    size = f'width="100%" height="{FRAME_HEIGHT}" style="border:0"'
    return f'<iframe srcdoc="{escape(page)}" sandbox="allow-same-origin" {size}></iframe>'


class PagePath(PosixPath):
    """The path of a page. A notebook shows the page."""

    def _repr_html_(self) -> str:
        return html_frame(self.read_text(encoding="utf-8"))
