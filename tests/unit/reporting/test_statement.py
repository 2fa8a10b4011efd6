"""The statement of a run's folder, and the total of its store."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from builders import make_statement, statement_json

from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian, epsilon
from sottovoce_evidence.errors import DamagedRun

ROUNDS = [(SampledGaussian(1.0, "poisson", 0.01), 10)]


@pytest.mark.parametrize("fact", ["epsilon", "rounds_done", "mechanism", "charged"])
def test_a_statement_that_lacks_facts_is_damaged(fact: str, tmp_path: Path) -> None:
    values = {name: value for name, value in statement_json().items() if name != fact}
    (tmp_path / "privacy.json").write_text(json.dumps(values))
    with pytest.raises(DamagedRun, match=rf"lacks facts of a statement .*{fact}.*sotto resume"):
        read_statement(RunFolder(tmp_path))


def test_a_statement_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text(json.dumps(statement_json()))
    assert read_statement(RunFolder(tmp_path)) == make_statement()


def test_the_total_of_a_store_is_of_its_charges() -> None:
    total = with_store_total(make_statement(), ROUNDS)
    assert (total.epsilon_store, total.relation_store) == (epsilon(ROUNDS, 1e-6), "add-or-remove-one-user")
    assert with_store_total(make_statement(), [*ROUNDS, (NonPrivate(), 1)]).epsilon_store == math.inf
    public = make_statement(private=False)
    assert with_store_total(public, ROUNDS) == public
