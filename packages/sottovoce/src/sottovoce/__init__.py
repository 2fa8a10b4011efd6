"""Language models trained on people's text with user-level differential privacy."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# Imported on first use: `sotto plan` must not wait for jax. The names and their homes stand in __init__.pyi.
_LIST = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOMES = {name.name: str(one.module) for one in _LIST if isinstance(one, ast.ImportFrom) for name in one.names}
__all__ = sorted(_HOMES)  # pyrefly: ignore


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sottovoce")
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
