"""A manifest names files of its own folder alone, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sottovoce.runs.exported import read_manifest
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import pretty, sealed, sha256_of

FILES = ("step.onnx", "sequence.onnx", "vocabulary.txt", "pieces.json", "canaries.json")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("my own")
    folder = tmp_path / "export"
    folder.mkdir()
    facts = {}
    for name in FILES:
        (folder / name).write_text(name)
        facts[name] = {"file": name, "sha256": sha256_of(folder / name)}
    graphs = {graph: facts[f"{graph}.onnx"] for graph in ("step", "sequence")}
    others = {name: facts[f"{name}.json"] for name in ("pieces", "canaries")}
    write(folder, {"graphs": graphs, "vocabulary": facts["vocabulary.txt"], **others})
    return folder


def write(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "manifest.json").write_bytes(pretty(sealed(manifest)))


def test_a_whole_export_is_read(export):
    assert set(read_manifest(export)["graphs"]) == {"step", "sequence"}


NOTES = {"file": "../notes.txt"}
LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a path": (lambda m: m["vocabulary"].update(NOTES), "is no name of a file of an export"),
    "a path without hash": (lambda m: m.update(vocabulary=NOTES), "is no name of a file of an export"),
    "an absolute path": (lambda m: m["vocabulary"].update(file="/etc/hostname"), "is no name"),
    "another file of the folder": (lambda m: m["vocabulary"].update(file="step.onnx"), "is no name"),
    "a path for pieces": (lambda m: m["pieces"].update(NOTES), "is no name"),
    "a path for canaries": (lambda m: m["canaries"].update(NOTES), "is no name"),
    "a path for a graph": (lambda m: m["graphs"]["step"].update(NOTES), "is no name"),
    "a graph of another name": (lambda m: m["graphs"].update({"../x": {"file": "../x.onnx"}}), "is no name"),
    "words for a name": (lambda m: m["vocabulary"].update(file=["vocabulary.txt"]), "holds no whole export"),
    "no hash": (lambda m: m["vocabulary"].pop("sha256"), "holds no whole export"),
    "no name": (lambda m: m.update(vocabulary={"size": 4}), "holds no whole export"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_names_files_of_an_export_with_their_hashes(export, lie):
    change, words = LIES[lie]
    manifest = json.loads((export / "manifest.json").read_text())
    change(manifest)
    write(export, manifest)
    with pytest.raises(DamagedRun, match=words) as caught:
        read_manifest(export)
    assert str(caught.value).endswith("export it again")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_link_is_not_followed(export, tmp_path, name):
    (export / name).rename(tmp_path / name)
    (export / name).symlink_to(tmp_path / name)
    with pytest.raises(DamagedRun, match="is not a plain file"):
        read_manifest(export)
