from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands.retrain import count_steps, refuse_own_code
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.ledger import chained


def test_steps_are_counted() -> None:
    seen = []
    step = count_steps(lambda done, total: seen.append((done, total)), 3)
    for _ in range(3):
        step()
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_code_that_no_recipe_describes_is_not_trained_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.ledger_file.write_bytes(chained([{"ledger": 1, "code": "Tiny of the caller"}]))
    refuse_own_code(run, SimpleNamespace(code="Tiny of the caller"))
    with pytest.raises(SottoError, match="was trained with Tiny of the caller, which only Python knows"):
        refuse_own_code(run, SimpleNamespace(code="the lstm of the recipe"))
