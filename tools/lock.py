"""Write requirements/*.lock: every package that the ranges of pyproject.toml lead to, of one version, with its hashes.

For all systems and Pythons from 3.11 on: a hash stands there for each file that the package has. Versions that are in a
lock file already stay, unless `--upgrade` is given. No file says where packages come from: that is up to pip.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILE = (
    "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate",
    "--no-header", "--no-emit-index-url", "--no-emit-find-links", "pyproject.toml", "-",
)  # fmt: skip
# The largest first: the versions of the others are its own.
EXTRAS = {"browser": ("dev", "keyboard", "browser"), "dev": ("dev",), "core": ()}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # The package itself is built from what is locked too; hatchling wants one more where it is installed in place.
    build = "\n".join([*project["build-system"]["requires"], "editables>=0.5"])
    for name, extras in EXTRAS.items():
        chosen = [part for extra in extras for part in ("--extra", extra)]
        same = ["-c", "requirements/browser.lock"] if extras != EXTRAS["browser"] else sys.argv[1:]
        command = [str(Path(sys.executable).parent / COMPILE[0]), *COMPILE[1:], *chosen, *same]
        command += ["-o", f"requirements/{name}.lock"]
        subprocess.run(command, input=build, text=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
