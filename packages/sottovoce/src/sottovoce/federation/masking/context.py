"""What a message of a masked round belongs to. Every key, signature and ciphertext is bound to it."""

from __future__ import annotations

from hashlib import sha256

from sottovoce.federation.messages import Task

_PROTOCOL = "sottovoce masked sum 1"


def bind(purpose: str, *parts: str | bytes) -> bytes:
    """One text of a purpose and its parts. Each is preceded by its length: other parts give another text."""
    raw = [part.encode() if isinstance(part, str) else part for part in (_PROTOCOL, purpose, *parts)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def context_of(task: Task, task_digest: str) -> str:
    """The name of one masked round. Devices that were sent different models do not understand one another."""
    facts = (task.federation, task.run, str(task.round), task_digest)
    return sha256(bind("context", *facts)).hexdigest()
