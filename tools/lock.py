"""Write requirements/*.lock: one version of every package that the distributions need, with its hashes.

They hold for all systems and for Python 3.11 and later: each file of a package has its hash. Versions that are in a
lock file already are kept, unless `--upgrade` is given. No file names a package index: pip chooses it.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILE = (
    "uv",
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-package",
    "sottovoce-evidence",
    "packages/evidence/pyproject.toml",
    "packages/sottovoce/pyproject.toml",
    "-",
)
# The largest first: the others take their versions from it.
EXTRAS = {"browser": ("dev", "keyboard", "browser"), "dev": ("dev",), "docs": ("docs",), "core": ()}


def main() -> None:
    project = tomllib.loads((ROOT / "packages/sottovoce/pyproject.toml").read_text(encoding="utf-8"))
    # The build requirements are locked too; hatchling needs one more for an editable install.
    build = "\n".join([*project["build-system"]["requires"], "editables>=0.5"])
    for name, extras in EXTRAS.items():
        chosen = [part for extra in extras for part in ("--extra", extra)]
        same = ["-c", "requirements/browser.lock"] if extras != EXTRAS["browser"] else sys.argv[1:]
        command = [str(Path(sys.executable).parent / COMPILE[0]), *COMPILE[1:], *chosen, *same]
        command += ["-o", f"requirements/{name}.lock"]
        subprocess.run(command, input=build, text=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
