"""lstm.cu with one of the patches of this folder: python benchmarks/variants/patched.py NAME > OTHER.cu"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "sottovoce" / "kernels" / "lstm.cu"


def patched(name: str) -> str:
    """The source with a unified diff applied, of which every line that it keeps or takes away must be there."""
    old = SOURCE.read_text(encoding="utf-8").splitlines(keepends=True)
    new, place = [], 0
    for line in (HERE / f"{name}.patch").read_text(encoding="utf-8").splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            found = re.match(r"@@ -(\d+)", line)
            assert found is not None
            start = int(found[1]) - 1
            new += old[place:start]
            place = start
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[place] == line[1:], f"{name}.patch was made for another lstm.cu: line {place + 1}"
            new += [] if line.startswith("-") else [old[place]]
            place += 1
    return "".join(new + old[place:])


if __name__ == "__main__":
    sys.stdout.write(patched(sys.argv[1]))
