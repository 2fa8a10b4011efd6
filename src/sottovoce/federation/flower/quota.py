"""How much a device may send in a round: the server writes it down, and the proxy holds every device to it.

Flower's SuperLink keeps what a device sends in memory until its server fetches it, however much that is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sottovoce.federation.flower import internals
from sottovoce.files import write_aside

ANSWERS = 4  # in a round: a connection may break off, or the SuperLink be lost, and the answer is sent again
TALK = 2**18  # bytes around them: what is said of a message before its parts are sent
FILE = "gate.json"


def write_gate(folder: Path, keys: Mapping[str, str], answer: int) -> None:
    """Devices, by name and public key, may send answers of at most so many bytes. A new round begins for the proxy."""
    facts = {"bytes": ANSWERS * answer + TALK, "keys": dict(keys)}
    write_aside(folder / FILE, json.dumps(facts).encode(), private=True)


class Gate:
    """The proxy's side: who is sending, and what is left to them in this round."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._version: tuple[int, int] | None = None
        self._names: dict[bytes, str] = {}
        self._left: dict[str, int] = {}

    def sender(self, headers: Mapping[str, str]) -> str | None:
        """The registered device that signed a request; none where nobody did."""
        self._look()
        key = internals.signing_key(headers)
        return None if key is None else self._names.get(key)

    def take(self, name: str, size: int) -> bool:
        """Count bytes that a device sends; false when they are more than it may send in this round."""
        before = self._left[name]
        self._left[name] = before - size
        if before >= 0 > self._left[name]:
            print(f"{name} sends more than a device may in a round; it is not passed on", flush=True)
        return self._left[name] >= 0

    def _look(self) -> None:
        """The server may have begun another round."""
        found = self._path.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._version:
            facts = json.loads(self._path.read_bytes())
            self._names = {internals.key_bytes(key): name for name, key in facts["keys"].items()}
            self._left = dict.fromkeys(facts["keys"], int(facts["bytes"]))
            self._version = version
