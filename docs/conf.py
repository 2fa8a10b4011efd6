"""The documentation as a site: `make docs` builds it into site/."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "sottovoce"
html_title = "sottovoce"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
html_show_copyright = False

# The menu of the site. Pages on their own are Markdown that any viewer shows, so it is not written in one of them.
MENU = {
    "Tutorials": ["tutorial/*"],
    "How-to": ["how-to/*"],
    "Reference": ["reference/*"],
    "Explanation": ["explanation/*", "*", "decisions/index"],
    "Results": ["results/*"],
}


LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", ":glob:", *options, "", *pages, "```", ""])


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the menu to the index, and write links to folders and to pages outside docs/ as text: the site lacks them."""
    docs = Path(app.srcdir)

    def text_or_link(link: re.Match[str]) -> str:
        target = (docs / page).parent.joinpath(link[2]).resolve()
        missing = target.is_dir() or (target.suffix == ".md" and not target.is_relative_to(docs))
        return link[1] if missing else link[0]

    source[0] = LINK.sub(text_or_link, source[0])
    if page == "index":
        source[0] += "".join(toctree(pages, f":caption: {caption}") for caption, pages in MENU.items())
    if page == "decisions/index":
        source[0] += toctree(["2*"])


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
