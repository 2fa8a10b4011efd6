"""The keyboard page as a folder, and what it is told of planted canaries."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from asgi import get
from sottovoce.runs.exported import GRAPHS, read_manifest
from sottovoce.web.keyboard import app
from sottovoce.web.keyboard.app import Secret, keyboard_app, read_canaries, write_page
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import pretty, sealed, sha256_of

REGISTRY = {"prefix": 2, "secrets": [["my", "code", "is", "seven"], ["a", "b", "c"]], "holders": [4, 1]}


def test_secrets_are_parted_where_the_prefix_ends(tmp_path: Path) -> None:
    assert read_canaries(tmp_path) == []
    (tmp_path / "canaries.json").write_text(json.dumps(REGISTRY))
    assert read_canaries(tmp_path) == [Secret(("my", "code"), ("is", "seven"), 4), Secret(("a", "b"), ("c",), 1)]


def test_a_link_to_another_registry_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(REGISTRY))
    (tmp_path / "canaries.json").symlink_to(tmp_path / "mine.json")
    with pytest.raises(DamagedRun, match=r"canaries.json is not a plain file"):
        read_canaries(tmp_path)


def test_a_run_that_is_not_there_is_named_before_what_is_to_be_fetched(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(app, "check_vendored", lambda: pytest.fail("it was asked for"))
    with pytest.raises(SottoError, match=r"nothere' holds no model: there is no such folder"):
        keyboard_app([tmp_path / "nothere"])


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export and the runtime of the page, as files only."""
    folder = tmp_path / "private"
    for name in ("private/step.onnx", "private/vocabulary.txt", "runtime/ort.js"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    privacy = {"private": True, "epsilon": 4.6231, "delta": 1e-5}
    manifest = {"name": "private", "privacy": privacy, "vocabulary": {"file": "vocabulary.txt"}}
    manifest |= {"pieces": None, "canaries": None, "for_owner_alone": False}
    monkeypatch.setattr(app, "find_export", lambda path, log: folder)
    monkeypatch.setattr(app, "read_manifest", lambda path: manifest)
    monkeypatch.setattr(app, "check_vendored", lambda: tmp_path / "runtime")
    return folder


def test_a_model_for_its_owner_alone_has_an_address_of_its_own(exported: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("starlette", reason="needs the extra [keyboard]")
    manifest = app.read_manifest(exported)

    def with_model(**facts: object) -> tuple[Any, str]:
        monkeypatch.setattr(app, "read_manifest", lambda path: json.loads(json.dumps(manifest | facts)))
        return keyboard_app([exported])

    public, path = with_model()
    assert (path, get(public, "/models/0/step.onnx")[0]) == ("/", 200)
    private, path = with_model(for_owner_alone=True)
    assert len(path) > 20
    for name in ("", "models.json", "models/0/step.onnx", "vendor/ort.js", "base/base.css", "keyboard.js"):
        assert get(private, path + name)[0] == 200
        assert get(private, f"/{name}")[0] == 404
    write_page([exported], tmp_path / "page")
    graph = tmp_path / "page" / "models" / "0" / "step.onnx"
    assert [stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "page", graph)] == [0o700, 0o600]


def test_an_exported_page_has_all_that_it_asks_for_and_names_no_host(exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    assert write_page([exported], out)["models"][0]["privacy"]["epsilon_shown"] == "4.63"
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"models.json", "models/0/step.onnx", "models/0/vocabulary.txt", "vendor/ort.js"} <= files
    page = (out / "index.html").read_text()
    asked = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert asked
    assert set(asked) <= files  # relative, and there
    for name in files - {"vendor/ort.js"}:
        if name.endswith((".js", ".css", ".html")):
            assert not re.search(r"""https?://(?!www\.w3\.org/)|["'(`]/[a-z]""", (out / name).read_text()), name
    worker = (out / "offline.js").read_text()
    assert set(json.loads(re.search(r"FILES = (.*);", worker).group(1))) == files - {"offline.js"}
    with pytest.raises(SottoError, match="not an empty folder"):
        write_page([exported], out)


def test_a_page_has_no_file_from_outside_the_export(exported: Path, tmp_path: Path, monkeypatch) -> None:
    """Whatever the manifest of a stranger names."""
    (tmp_path / "notes.txt").write_text("my own")
    (exported / "sequence.onnx").write_text("a graph")
    graphs = {name: {"file": f"{name}.onnx", "sha256": sha256_of(exported / f"{name}.onnx")} for name in GRAPHS}
    manifest = app.read_manifest(exported) | {"graphs": graphs, "vocabulary": {"file": "../notes.txt"}}
    (exported / "manifest.json").write_bytes(pretty(sealed(manifest)))
    monkeypatch.setattr(app, "read_manifest", read_manifest)
    with pytest.raises(DamagedRun, match=r"notes\.txt' is no name of a file of an export"):
        write_page([exported], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_a_page_of_pieces_has_what_their_search_asks_for(exported: Path, tmp_path: Path, monkeypatch) -> None:
    named = {"vocabulary": {"file": "tokenizer.json"}, "pieces": {"file": "pieces.json"}}
    manifest = app.read_manifest(exported) | named
    for name in ("batch.onnx", "tokenizer.json", "pieces.json"):
        (exported / name).write_text(name)
    monkeypatch.setattr(app, "read_manifest", lambda path: manifest)
    write_page([exported], tmp_path / "page")
    files = {path.name for path in (tmp_path / "page" / "models" / "0").iterdir()}
    assert files == {"batch.onnx", "tokenizer.json", "pieces.json"}
