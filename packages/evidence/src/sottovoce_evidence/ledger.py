"""The ledger of a release: what a released model was charged for, in lines that hold one another.

Each line has a checksum over itself and all lines before it. This finds accidents; who edits the file on purpose can
compute the checksums again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from sottovoce_evidence.accounting import Event
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Json, parse_json, read_plain

RELEASE = "release"  # the format of such a ledger


def checked(before: str, line: Json) -> tuple[str, bytes]:
    """The checksum of a line after that of the line before, and the line as a file has it."""
    body = json.dumps(line).encode()
    check = next_check(before, body)
    return check, body[:-1] + f', "check": "{check}"}}\n'.encode()


def next_check(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:32]


def chained(lines: Iterable[Json]) -> bytes:
    """The contents of a file of such lines."""
    check, contents = "", b""
    for line in lines:
        check, raw = checked(check, line)
        contents += raw
    return contents


def release_ledger(run: str, charged: Iterable[tuple[Event, int]]) -> bytes:
    """What a released model was charged for, as its statement lists it."""
    lines = [{"event": event.to_json(), "count": count} for event, count in charged]
    return chained([{"ledger": RELEASE, "run": run, "charges": len(lines)}, *lines])


def read_release(path: Path) -> tuple[str, list[Json]]:
    """The run of a release's ledger, and its charges. It must be, to the byte, what `release_ledger` writes of them."""
    contents = read_plain(path)
    header, *lines = [parse_json(line) for line in contents.splitlines()] or [{}]
    charges = [{"event": line["event"], "count": line["count"]} for line in lines]
    run = str(header.get("run", ""))
    if chained([{"ledger": RELEASE, "run": run, "charges": len(charges)}, *charges]) != contents:
        raise SottoError(f"{path.name} is not the ledger of a release, or was changed")
    return run, charges


def charges_of(charges: Iterable[Json]) -> list[tuple[Event, int]]:
    """The events of such charges."""
    found = [(Event.from_json(one["event"]), one["count"]) for one in charges]
    if any(type(count) is not int or count < 0 for _, count in found):
        raise SottoError("a charge must have a whole number as its count")
    return found
