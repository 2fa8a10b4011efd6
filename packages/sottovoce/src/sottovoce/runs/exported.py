"""The folder of an exported model: which files it has, and that they are the ones that were written."""

from __future__ import annotations

import math
import stat
from pathlib import Path

from sottovoce.data.tokenizer_files import FILES as TOKENIZERS
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import TOKENS, Json, read_sealed, sha256_of

MANIFEST, CANARIES, PIECES = "manifest.json", "canaries.json", "pieces.json"
GRAPHS, BATCH = ("step", "sequence"), "batch"
_ONNX = tuple(f"{graph}.onnx" for graph in (*GRAPHS, BATCH))
FILES = frozenset({MANIFEST, CANARIES, PIECES, *TOKENIZERS, *_ONNX})


def read_manifest(folder: Path) -> Json:
    """The manifest of an export; its files must be those that were written.

    Guarantee: whoever made the export, all that its manifest names are plain files of the folder, under the names that
    an export has. No link is followed.
    """
    try:
        manifest = read_sealed(plain_file(folder / MANIFEST))
        for name, sha256 in _named(manifest).items():
            if sha256_of(plain_file(folder / name), math.inf if name in _ONNX else TOKENS) != sha256:
                raise DamagedRun(f"{folder / name} is not the file that was exported", "export it again")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{folder} holds no whole export ({type(error).__name__}: {error})"
        raise DamagedRun(what, "export it again") from None
    return manifest


def plain_file(path: Path) -> Path:
    """The same path. What is there must be a file: a link may lead to any file of the reader's."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a plain file")
    return path


def _named(manifest: Json) -> dict[str, str]:
    """The hash of every file that a manifest names."""
    graphs, words = manifest["graphs"], manifest["vocabulary"]
    named: list[tuple[Json, tuple[str, ...]]] = [(words, TOKENIZERS)]
    named += [(graphs[graph], (f"{graph}.onnx",)) for graph in {*GRAPHS, *graphs}]
    named += [(facts, (name,)) for name in (PIECES, CANARIES) if (facts := manifest[name.removesuffix(".json")])]
    for facts, allowed in named:
        if facts["file"] not in allowed or facts["file"] not in FILES:
            raise ValueError(f"{facts['file']!a} is no name of a file of an export")
    return {facts["file"]: facts["sha256"] for facts, _ in named}
