"""What runs in the page is what was chosen, or nothing."""

from __future__ import annotations

import io
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
