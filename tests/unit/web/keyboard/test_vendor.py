"""What runs in the page is what was chosen, or nothing."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from sottovoce.errors import SottoError
from sottovoce.web.keyboard import vendor


def package(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, contents in files.items():
            part = tarfile.TarInfo(f"package/dist/{name}")
            part.size = len(contents)
            archive.addfile(part, io.BytesIO(contents))
    return path


def test_a_package_with_another_hash_is_refused_and_the_old_one_stays(tmp_path, monkeypatch):
    archive = package(tmp_path / "package.tgz", dict.fromkeys(vendor.FILES, b"code"))
    with pytest.raises(SottoError, match="it was changed; nothing is kept"):
        vendor.unpack(archive, tmp_path / "vendor")
    assert not (tmp_path / "vendor").exists()
    monkeypatch.setattr(vendor, "INTEGRITY", vendor.integrity_of(archive.read_bytes()))
    vendor.unpack(archive, tmp_path / "vendor")
    assert {path.name for path in (tmp_path / "vendor").iterdir()} == {*vendor.FILES.values(), "vendored.json"}
    with pytest.raises(SottoError, match="it was changed"):
        vendor.unpack(package(tmp_path / "other.tgz", dict.fromkeys(vendor.FILES, b"else")), tmp_path / "vendor")
    assert (tmp_path / "vendor" / "ort.js").read_bytes() == b"code"


def test_what_is_not_there_or_of_another_version_is_told_with_the_command(tmp_path):
    with pytest.raises(SottoError, match=r"is not here; `python -m sottovoce\.web\.keyboard\.vendor` fetches it"):
        vendor.check_vendored(tmp_path)
    for name in vendor.FILES.values():
        (tmp_path / name).write_bytes(b"code")
    stamp = {"package": vendor.PACKAGE, "version": "0.0.1", "integrity": vendor.INTEGRITY}
    (tmp_path / "vendored.json").write_text(json.dumps(stamp))
    with pytest.raises(SottoError, match="is not here"):
        vendor.check_vendored(tmp_path)


def test_without_npm_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(vendor.shutil, "which", lambda name: None)
    with pytest.raises(SottoError, match="npm is not installed"):
        vendor.vendor(tmp_path / "vendor")
