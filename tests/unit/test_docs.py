"""The documents say what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sottovoce.models.registry import KINDS, defaults
from sottovoce.recipe import SECTIONS

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "differential privacy for users" in printed
    assert len([line for line in example.splitlines() if line.strip() and not line.strip().startswith("#")]) <= 20


def test_the_model_of_ones_own_is_trained(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "your-own-model.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "your-own-model.md", "exec"), {"__name__": "your_own_model"})
    printed = capsys.readouterr().out
    assert "differential privacy for users" in printed
    assert 0 < float(printed.splitlines()[-1]) < 1


def test_the_sizes_of_the_family_are_those_of_its_code():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \| [\d,]+ \|$", page, re.MULTILINE))
    assert list(rows) == list(KINDS)
    for kind, keys in rows.items():
        said = dict(re.findall(r"`(\w+)` ([\w.]+)", keys))
        assert said == {
            name: "as" if value is None else str(value).lower() for name, value in defaults(kind).items()
        }, kind


def test_every_key_of_a_recipe_is_documented():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for section, kind in SECTIONS.items():
        part = text.split(f"## [{section}]")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", part, re.MULTILINE))
        assert rows == {item.name: item.metadata["meaning"] for item in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_named_among_the_pitfalls_exists():
    text = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:unit|statistical|end_to_end|equivalence)/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 15
    for file, test in named:
        contents = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {test}(" in contents if test else "def test_" in contents
