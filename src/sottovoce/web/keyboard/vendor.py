"""Fetch onnxruntime-web once, so that the page needs no other host: `python -m sottovoce.web.keyboard.vendor`.

`npm pack` takes it from the registry that npm is set up for; the package must have the hash in this file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from sottovoce.errors import SottoError
from sottovoce.files import made_aside, write_aside

PACKAGE = "onnxruntime-web"
VERSION = "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
# Of the package, and as they are kept: not every web server knows what an .mjs is.
FILES = {"ort.wasm.bundle.min.mjs": "ort.js", "ort-wasm-simd-threaded.wasm": "ort.wasm"}
VENDOR = Path(__file__).parent / "vendor"
COMMAND = "python -m sottovoce.web.keyboard.vendor"
_STAMP = "vendored.json"
_WANTED = {"package": PACKAGE, "version": VERSION, "integrity": INTEGRITY}


def check_vendored(folder: Path = VENDOR) -> Path:
    """The folder with this version in it; an error that says how to get it where it is not there."""
    try:
        whole = json.loads((folder / _STAMP).read_text(encoding="utf-8")) == _WANTED
    except (OSError, ValueError):
        whole = False
    if not whole or not all((folder / name).is_file() for name in FILES.values()):
        raise SottoError(f"{PACKAGE} {VERSION}, which runs models in a browser, is not here; `{COMMAND}` fetches it")
    return folder


def vendor(folder: Path = VENDOR) -> Path:
    """Fetch the package, check its hash, and keep the files that the page loads."""
    npm = shutil.which("npm")
    if npm is None:
        raise SottoError(f"npm is not installed, and {PACKAGE} is on its registry; on Debian `apt-get install npm`")
    with TemporaryDirectory() as work:
        fetched = subprocess.run(
            [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent"], cwd=work, capture_output=True, text=True, check=False
        )
        archives = list(Path(work).glob("*.tgz"))
        if fetched.returncode or len(archives) != 1:
            reason = " ".join((fetched.stderr or fetched.stdout).split())[-300:]
            raise SottoError(f"npm could not fetch {PACKAGE}@{VERSION} ({reason}); is its registry within reach?")
        unpack(archives[0], folder)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    contents = archive.read_bytes()
    found = integrity_of(contents)
    if found != INTEGRITY:
        raise SottoError(f"{PACKAGE}@{VERSION} has the hash {found}, not {INTEGRITY}: it was changed; nothing is kept")
    if folder.exists():
        shutil.rmtree(folder)
    with made_aside(folder) as draft, tarfile.open(archive) as package:
        for name, kept in FILES.items():
            part = package.extractfile(f"package/dist/{name}")
            if part is None:
                raise SottoError(f"{PACKAGE}@{VERSION} holds no dist/{name}; choose another version")
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
            print(vendor())
    except SottoError as error:
        print("error:", error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
