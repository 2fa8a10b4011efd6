from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.audit.registry import Registry
from sottovoce.commands.insert_canaries import initial_scores, read_registry, saved_canary_scores
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import DamagedRun

REGISTRY = Registry("9f86", 2, 0, 48, (("a", "b", "c"),), (("d", "e", "f"),), (1,))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.registry_file.write_text(json.dumps(REGISTRY.to_json()))
    return folder


def header(registry: Registry = REGISTRY) -> dict:
    return {"canaries": registry.summary().to_json()}


def test_the_registry_is_the_one_that_the_ledger_names(run: RunFolder) -> None:
    assert read_registry(run, header()) == REGISTRY
    assert read_registry(run, {}) is None
    other = Registry("9f86", 2, 0, 48, (("a", "b", "x"),), (), ())
    with pytest.raises(DamagedRun, match="is not what was inserted when"):
        read_registry(run, header(other))


@pytest.mark.parametrize("contents", ["", "{}", '{"users": 3}'])
def test_a_damaged_registry_is_refused(run: RunFolder, contents: str) -> None:
    run.registry_file.write_text(contents)
    with pytest.raises(DamagedRun, match=r"canaries"):
        read_registry(run, header())


def test_scores_begin_at_zero_and_are_never_made_up() -> None:
    assert initial_scores(REGISTRY).tolist() == [0.0]
    assert initial_scores(None) is None
    with pytest.raises(DamagedRun, match="no scores of the canaries"):
        saved_canary_scores(Checkpoint(1, {}, {}))
