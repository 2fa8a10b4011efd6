"""The notebooks run from the first cell to the last, in one namespace, as a person would run them."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from sottovoce.reporting.notebook import PagePath

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def run_cell(source: str, place: str, names: dict[str, Any]) -> Any:
    """Execute a cell and give the value of its last line, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    return eval(compile(ast.Expression(last.value), place, "eval"), names) if last else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_results(path: Path) -> None:
    """Results of one machine would be out of date at the next change."""
    for cell in cells_of(path):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
def test_from_a_csv_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number, cell in enumerate(cells_of(FOLDER / "csv_to_report.ipynb")):
            if cell["cell_type"] == "code":
                shown.append(run_cell("".join(cell["source"]), f"cell {number}", names))
    assert any("users to train on are few" in str(each.message) for each in warned)
    assert names["summary"].train_users > 250
    assert names["run"].statement.has_guarantee
    assert names["run"].round == names["run"].statement.rounds_planned == 5
    assert names["forecast"].epsilon == pytest.approx(names["run"].statement.epsilon)
    assert "see you … [" in capsys.readouterr().out
    assert isinstance(shown[-1], PagePath)
    assert "<html" in shown[-1].read_text(encoding="utf-8")
