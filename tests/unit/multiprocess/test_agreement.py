from __future__ import annotations

from dataclasses import replace

import pytest

from sottovoce.multiprocess.agreement import ProcessFacts, disagreement

FACTS = ProcessFacts("store", "program", "code", "layout", "fingerprint", reproducible=True)


def test_facts_survive_the_way_as_bytes_and_other_versions_are_read():
    assert ProcessFacts.from_bytes(FACTS.to_bytes()) == FACTS
    assert ProcessFacts.from_bytes(b'{"program": "later", "new key": 1}') == ProcessFacts(program="later")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("store", "process 1 has another store than process 0"),
        ("program", "process 1 has another sottovoce, jax or numpy"),
        ("code", "process 1 has another model or objective"),
        ("layout", "process 1 has other devices"),
    ],
)
def test_what_differs_is_named(name, message):
    assert message in disagreement([FACTS, replace(FACTS, **{name: "another"})])


def test_machines_may_differ_in_their_fingerprint():
    assert disagreement([FACTS, replace(FACTS, fingerprint="another", reproducible=False)]) == ""


def test_every_problem_is_named_with_its_process():
    text = disagreement([FACTS, ProcessFacts(error="no such store"), replace(FACTS, store="another"), FACTS])
    assert text.startswith("process 1 cannot take part: no such store; process 2 has another store")
    assert "process 3" not in text
