"""The notes of a release are the section of its version in the changelog."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n- later\n\n## 1.2.0 (2026-12-01)\n### Added\n- a thing\n\n## 1.2\n- older\n"


@pytest.fixture
def notes():
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / "tools" / "release_notes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.notes


def test_notes_are_the_section_of_the_version_and_no_other(notes):
    assert notes("v1.2.0", CHANGELOG, "1.2.0") == "### Added\n- a thing"


@pytest.mark.parametrize(("tag", "version"), [("v1.3.0", "1.2.0"), ("1.2.0", "1.2.0"), ("v1.3.0", "1.3.0")])
def test_a_tag_that_is_not_the_version_or_has_no_section_is_refused(notes, tag, version):
    with pytest.raises(SystemExit, match="error"):
        notes(tag, CHANGELOG, version)
