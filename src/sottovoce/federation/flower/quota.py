"""How many bytes a device may send in an exchange: the server writes the quota to a file, and the proxy enforces it.

Flower's SuperLink keeps what a device sends in memory until its server fetches it, however much that is.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from sottovoce.federation.keys import is_signed_by, public_key_pem
from sottovoce.files import write_aside

ANSWERS = 4  # in an exchange: after a lost connection or SuperLink the answer is sent again
OVERHEAD = 2**18  # bytes of requests that announce a message before its parts are sent
FILE = "gate.json"


def write_quota(folder: Path, keys: Mapping[str, str], answer: int) -> None:
    """Let devices, by name and public key, send answers of at most `answer` bytes. The proxy starts to count anew."""
    facts = {"bytes": ANSWERS * answer + OVERHEAD, "keys": dict(keys)}
    write_aside(folder / FILE, json.dumps(facts).encode(), private=True)


class Quota:
    """The proxy's side: who sends, and how many bytes they may still send."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._version: tuple[int, int] | None = None
        self._names: dict[bytes, str] = {}
        self._left: dict[str, int] = {}

    def sender(self, headers: Mapping[str, str]) -> str | None:
        """The registered device that signed a request; none if no device did."""
        self._reload()
        key = signing_key(headers)
        return None if key is None else self._names.get(key)

    def take(self, name: str, size: int) -> bool:
        """Count bytes that a device sends; false if they exceed its quota."""
        before = self._left[name]
        self._left[name] = before - size
        if before >= 0 > self._left[name]:
            print(f"{name} sends more than a device may in a round; it is not passed on", flush=True)
        return self._left[name] >= 0

    def _reload(self) -> None:
        """Read the file again if the server has replaced it."""
        found = self._path.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._version:
            facts = json.loads(self._path.read_bytes())
            self._names = {public_key_pem(key): name for name, key in facts["keys"].items()}
            self._left = dict.fromkeys(facts["keys"], int(facts["bytes"]))
            self._version = version


def signing_key(headers: Mapping[str, str]) -> bytes | None:
    """The public key, in PEM, that a SuperNode's request is signed with. The SuperLink checks the signed time."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        signed = headers[TIMESTAMP_HEADER].encode("ascii")
    except (KeyError, ValueError):  # also what is not base64, or not ASCII
        return None
    return key if is_signed_by(key, signature, signed) else None
