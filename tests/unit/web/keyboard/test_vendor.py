"""What runs in the page is what was chosen, or nothing."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest

from sottovoce.web.keyboard import vendor
from sottovoce_evidence.errors import SottoError


def package(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, contents in files.items():
            part = tarfile.TarInfo(f"package/dist/{name}")
            part.size = len(contents)
            archive.addfile(part, io.BytesIO(contents))
    return path


def archives(folder, code):
    folder.mkdir()
    return [
        package(folder / f"{place}.tgz", dict.fromkeys(each.files, code)) for place, each in enumerate(vendor.PACKAGES)
    ]


def test_a_package_with_another_hash_is_refused_and_the_old_one_stays(tmp_path, monkeypatch):
    right = archives(tmp_path / "right", b"code")
    with pytest.raises(SottoError, match="it was changed; nothing is kept"):
        vendor.unpack(right, tmp_path / "vendor")
    assert not (tmp_path / "vendor").exists()
    known = zip(vendor.PACKAGES, right, strict=True)
    chosen = [replace(each, integrity=vendor.integrity_of(path.read_bytes())) for each, path in known]
    monkeypatch.setattr(vendor, "PACKAGES", chosen)
    vendor.unpack(right, tmp_path / "vendor")
    kept = {path.name for path in (tmp_path / "vendor").iterdir()}
    assert kept == {"ort.js", "ort.wasm", "tokenizers.js", "vendored.json"}
    other = archives(tmp_path / "other", b"else")
    with pytest.raises(SottoError, match=r"tokenizers@.* it was changed"):
        vendor.unpack([right[0], other[1]], tmp_path / "vendor")
    assert (tmp_path / "vendor" / "ort.js").read_bytes() == b"code"


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_there_or_of_another_version_is_told_with_the_command(tmp_path, place):
    with pytest.raises(SottoError, match=r"is not here; `python -m sottovoce\.web\.keyboard\.vendor` fetches it"):
        vendor.check_vendored(tmp_path)
    stamp = {each.name: {"version": each.version, "integrity": each.integrity} for each in vendor.PACKAGES}
    for each in vendor.PACKAGES:
        for name in each.files.values():
            (tmp_path / name).write_bytes(b"code")
    (tmp_path / "vendored.json").write_text(json.dumps(stamp))
    assert vendor.check_vendored(tmp_path) == tmp_path
    name = vendor.PACKAGES[place].name
    stamp[name]["version"] = "0.0.1"
    (tmp_path / "vendored.json").write_text(json.dumps(stamp))
    with pytest.raises(SottoError, match=f"^{name} .* is not here"):
        vendor.check_vendored(tmp_path)


def test_without_its_registry_it_ends_in_one_line(tmp_path, monkeypatch, capsys):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho \"$@\" >&2\necho 'npm error ENOTFOUND' >&2\nexit 1\n")
    npm.chmod(0o700)
    monkeypatch.setattr(vendor.shutil, "which", lambda name: str(npm))
    monkeypatch.setattr(vendor, "check_vendored", lambda: vendor.vendor(tmp_path / "vendor"))
    with pytest.raises(SystemExit, match="2"):
        vendor.main()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("fetching onnxruntime-web@")
    assert "--fetch-retries=1" in said[1]
    assert "npm error ENOTFOUND); is its registry within reach?" in said[1]
    assert len(said) == 2
    npm.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(vendor, "_LONGEST", 0.1)
    with pytest.raises(SottoError, match=r"npm did not fetch onnxruntime-web@.* in 0\.1 s; is its registry"):
        vendor.vendor(tmp_path / "vendor")


def test_without_npm_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(vendor.shutil, "which", lambda name: None)
    with pytest.raises(SottoError, match="npm is not installed"):
        vendor.vendor(tmp_path / "vendor")
