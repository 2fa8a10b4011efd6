"""Build sdists and wheels into dist/, install the wheels into a fresh environment outside the tree, and run them there.

Each wheel is built from its sdist, so both are tried. What is installed are the versions of requirements/core.lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LARGEST = 1050  # MB that a plain install adds to an empty environment
LARGEST_FOR_REVIEWERS = 400  # MB of an environment with the evidence alone
LARGEST_WHEEL = 8  # MB; the weights of the base are 2.7 of them


def run(*command: object, where: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["XDG_CONFIG_HOME"] = str(where / "config")  # where the key that signs is made
    done = subprocess.run([str(part) for part in command], cwd=where, env=clean, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(map(str, command))} ended with status {done.returncode}\n{done.stdout}")
    return done.stdout


def build(package: str, dist: Path, work: Path) -> Path:
    work.mkdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", work, where=ROOT / "packages" / package)
    with tarfile.open(next(work.glob("*.tar.gz"))) as packed:
        packed.extractall(work, filter="data")
    unpacked = next(path for path in work.iterdir() if path.is_dir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, where=unpacked)
    shutil.move(next(work.glob("*.tar.gz")), dist)
    return dist / next(name for name in os.listdir(dist) if name.startswith(unpacked.name) and name.endswith(".whl"))


def megabytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) // 1_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as found:
        aside = Path(found)
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        evidence, wheel = (build(name, ROOT / "dist", aside / name) for name in ("evidence", "sottovoce"))
        if wheel.stat().st_size > LARGEST_WHEEL * 1_000_000:
            raise SystemExit(f"error: {wheel.name} has {wheel.stat().st_size:,} bytes; what does not belong is in it")
        environment = aside / "environment"
        run(sys.executable, "-m", "venv", environment, where=aside)
        empty = megabytes(environment)
        pip = (environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--no-deps", "--require-hashes", "-r", ROOT / "requirements/core.lock", where=aside)
        run(*pip, "--no-deps", evidence, wheel, where=aside)
        size = megabytes(environment) - empty
        if size > LARGEST:
            raise SystemExit(f"error: a plain install takes {size:,} MB; at most {LARGEST:,} MB are allowed")
        print(run(environment / "bin/sotto", "demo", "--out", "demo", where=aside))
        if not (aside / "demo/private/report.html").stat().st_size:
            raise SystemExit("error: the demo wrote no report")
        print(f"{wheel.name}: a plain install takes {size:,} MB, and the demo runs")
        verify_alone(evidence, environment / "bin/sotto", aside)


def verify_alone(evidence: Path, sotto: Path, aside: Path) -> None:
    """A release of the demo is verified where the library is not: with the evidence alone."""
    run(sotto, "release", "demo/private", "--out", "release", "--yes", where=aside)
    environment = aside / "reviewer"
    run(sys.executable, "-m", "venv", environment, where=aside)
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", evidence, where=aside)
    size = megabytes(environment)
    if size > LARGEST_FOR_REVIEWERS:
        raise SystemExit(
            f"error: {evidence.name} alone takes {size:,} MB; at most {LARGEST_FOR_REVIEWERS:,} are allowed"
        )
    print(run(environment / "bin/sotto-verify", "release", where=aside))
    print(f"{evidence.name}: alone it takes {size:,} MB, and verifies a release")


if __name__ == "__main__":
    main()
