"""Texts that a person reads, each kept whole in a file beside its test, so that a change of words is read as one."""

from __future__ import annotations

import os
from pathlib import Path


def assert_kept(file: Path, text: str) -> None:
    """What is written is what was kept. SOTTOVOCE_SNAPSHOTS=write keeps what is written now; read the change."""
    if os.environ.get("SOTTOVOCE_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
