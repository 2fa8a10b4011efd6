"""Programs of `benchmarks/` as modules, for tests of what they decide."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    if str(FOLDER) not in sys.path:  # some import others
        sys.path.append(str(FOLDER))
    path = FOLDER / f"{name}.py"
    spec = util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module
