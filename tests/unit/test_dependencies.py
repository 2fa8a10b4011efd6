"""What is installed is locked by hashes, and its licences are told and allowed."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", ROOT / "tools" / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_a_lock_has_hashes_and_no_place(path):
    text = path.read_text(encoding="utf-8")
    packages = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(packages) > 40
    for package in packages:
        assert re.match(r"[a-z0-9-]+==[^ ]+( ;.*)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+$", package), package[:80]
    assert "://" not in text
    assert not re.search(r"^(torch|opendp|tensorflow|nvidia-)", text, re.MULTILINE)  # too large to come in unnoticed


def test_locks_hold_what_the_project_asks_for(licences):
    project = tomllib.loads((ROOT / "packages/sottovoce/pyproject.toml").read_text(encoding="utf-8"))
    core, dev, browser = (licences.locked(f"{name}.lock") for name in ("core", "dev", "browser"))
    assert core.items() < dev.items() < browser.items()  # of the same versions
    names = {re.match(r"[\w-]+", asked)[0].lower() for asked in project["project"]["dependencies"]}
    assert names - {"sottovoce-evidence"} <= set(core)
    assert {"pytest", "ruff", "flwr"} <= set(dev) - set(core)


def test_licences_are_told_and_allowed(licences):
    assert licences.problems() == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True), ("GPL-3.0-only", False), ("MIT AND GPL-2.0-or-later", False), ("MIT OR GPL-2.0-only", True),
        ("BSD-3-Clause AND (MIT AND Zlib)", True), ("Other/Proprietary License", False), ("", False),
    ],
)  # fmt: skip
def test_which_licences_are_allowed(licences, expression, allowed):
    assert licences.is_allowed(expression) == allowed


def test_a_dependency_that_is_not_on_the_page_is_named(licences, tmp_path, monkeypatch):
    page = licences.PAGE.read_text(encoding="utf-8")
    changed = re.sub(r"^\| scipy .*\n", "", page, flags=re.MULTILINE).replace("| numpy | ", "| numpy | AGPL-3.0 AND ")
    (tmp_path / "licences.md").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(licences, "PAGE", tmp_path / "licences.md")
    found = licences.problems()
    assert any(line.startswith("scipy is not on docs/reference/licences.md") for line in found)
    assert any(line.startswith("numpy is under AGPL-3.0") for line in found)
