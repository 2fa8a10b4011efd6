"""The facts that must be the same in every process of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

# What must be the same in every process, and the error where it is not.
_MUST_MATCH = {
    "store": "another store than process 0; give every process a copy of the same one",
    "program": "another sottovoce, jax or numpy than process 0; install the same versions everywhere",
    "code": "another model or objective than process 0; pass the same ones everywhere",
    "layout": "other devices than process 0; give every process as many of the same kind, or set run.devices",
}


@dataclass(frozen=True)
class ProcessFacts:
    """What one process tells the others before the first round. With an `error`, it cannot take part."""

    store: str = ""
    program: str = ""
    code: str = ""
    layout: str = ""
    fingerprint: str = ""
    reproducible: bool = False
    error: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(message: bytes) -> ProcessFacts:
        """Reads the facts of other versions too: keys that are missing or unknown are not an error."""
        values = json.loads(message)
        return ProcessFacts(**{name: values[name] for name in ProcessFacts.__dataclass_fields__ if name in values})


def disagreement(facts: Sequence[ProcessFacts]) -> str:
    """Why the processes cannot train together; empty when they can. `facts` are in the order of ranks."""
    return "; ".join(filter(None, (_problem(rank, each, facts[0]) for rank, each in enumerate(facts))))


def _problem(rank: int, facts: ProcessFacts, leader: ProcessFacts) -> str:
    if facts.error:
        return f"process {rank} cannot take part: {facts.error}"
    for name, problem in _MUST_MATCH.items():
        if getattr(facts, name) != getattr(leader, name):
            return f"process {rank} has {problem}"
    return ""
