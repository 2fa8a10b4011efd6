"""Print the notes of a release: its section of CHANGELOG.md.

    python tools/release_notes.py v1.2.3

Exit status 1 where the package has another version, or the changelog has no section for it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(tag: str, changelog: str, version: str) -> str:
    """The section of a version. A tag is `v` and the version of pyproject.toml."""
    if tag != f"v{version}":
        raise SystemExit(f"error: the tag is {tag}, and pyproject.toml has version {version}; make them agree")
    section = rf"^## \[?{re.escape(version)}\]?(?=\s).*?\n(.*?)(?=^## |\Z)"
    found = re.search(section, changelog, re.DOTALL | re.MULTILINE)
    if found is None or not found[1].strip():
        raise SystemExit(f"error: CHANGELOG.md has no section `## {version}`; rename `Unreleased` and write the date")
    return found[1].strip()


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), project["version"]))
