"""Fetch what the page runs, once, so that it needs no other host: `python -m sottovoce.web.keyboard.vendor`.

`npm pack` takes the packages from the registry that npm is set up for; each must have the hash in this file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sottovoce.files import made_aside, write_aside
from sottovoce_evidence.errors import SottoError


@dataclass(frozen=True)
class Package:
    """A package of npm's registry."""

    name: str
    version: str
    integrity: str
    purpose: str
    # Those of its folder `dist`, and as they are kept: not every web server knows what an .mjs is.
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


PACKAGES = (
    Package(
        "onnxruntime-web",
        "1.30.0",
        "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        "runs models in a browser",
        {"ort.wasm.bundle.min.mjs": "ort.js", "ort-wasm-simd-threaded.wasm": "ort.wasm"},
    ),
    Package(
        "@huggingface/tokenizers",
        "0.2.0",
        "sha512-LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        "reads tokenizer.json in a browser",
        {"tokenizers.min.mjs": "tokenizers.js"},
    ),
)
VENDOR = Path(__file__).parent / "vendor"
COMMAND = "python -m sottovoce.web.keyboard.vendor"
_LONGEST = 300  # seconds for a package
_STAMP = "vendored.json"
_WANTED = {package.name: {"version": package.version, "integrity": package.integrity} for package in PACKAGES}


def check_vendored(folder: Path = VENDOR) -> Path:
    """The folder with these versions in it; an error that says how to get what is not there."""
    try:
        found = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    for package in PACKAGES:
        here = all((folder / name).is_file() for name in package.files.values())
        if not here or found.get(package.name) != _WANTED[package.name]:
            what = f"{package.name} {package.version}, which {package.purpose}"
            raise SottoError(f"{what}, is not here; `{COMMAND}` fetches it")
    return folder


def vendor(folder: Path = VENDOR) -> Path:
    """Fetch the packages, check their hashes, and keep the files that the page loads."""
    npm = shutil.which("npm")
    if npm is None:
        names = " and ".join(package.name for package in PACKAGES)
        raise SottoError(f"npm is not installed, and {names} are on its registry; on Debian `apt-get install npm`")
    with TemporaryDirectory() as work:
        unpack([_fetch(npm, package, Path(work) / str(place)) for place, package in enumerate(PACKAGES)], folder)
    return folder


def _fetch(npm: str, package: Package, work: Path) -> Path:
    """The archive of a package, in a folder that is made for it."""
    work.mkdir()
    command = [npm, "pack", str(package), "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        fetched = subprocess.run(
            [*command, "--fetch-timeout=30000"], cwd=work, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        raise SottoError(f"npm did not fetch {package} in {_LONGEST} s; is its registry within reach?") from None
    archives = list(work.glob("*.tgz"))
    if fetched.returncode or len(archives) != 1:
        reason = " ".join((fetched.stderr or fetched.stdout).split())[-300:]
        raise SottoError(f"npm could not fetch {package} ({reason}); is its registry within reach?")
    return archives[0]


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Keep files of the archives of `PACKAGES`, in their order. All hashes are checked before anything is changed."""
    for package, archive in zip(PACKAGES, archives, strict=True):
        found = integrity_of(archive.read_bytes())
        if found != package.integrity:
            changed = f"{package} has the hash {found}, not {package.integrity}"
            raise SottoError(f"{changed}: it was changed; nothing is kept")
    if folder.exists():
        shutil.rmtree(folder)
    with made_aside(folder) as draft:
        for package, path in zip(PACKAGES, archives, strict=True):
            with tarfile.open(path) as archive:
                for name, kept in package.files.items():
                    part = archive.extractfile(f"package/dist/{name}")
                    if part is None:
                        raise SottoError(f"{package} holds no dist/{name}; choose another version")
                    write_aside(draft / kept, part.read())
        write_aside(draft / _STAMP, json.dumps(_WANTED).encode() + b"\n")


def integrity_of(contents: bytes) -> str:
    """The hash of a package as npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(contents).digest()).decode()


def main() -> None:
    try:
        try:
            print(check_vendored())
        except SottoError:
            print(f"fetching {' and '.join(map(str, PACKAGES))} from npm's registry ...", file=sys.stderr, flush=True)
            print(vendor())
    except SottoError as error:
        print("error:", error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
