"""A proxy in front of the SuperLink: it passes on the fleet's calls, the lines of devices, and nothing else.

TLS ends here.

Flower's open SuperLink serves three interfaces at one address, and only the fleet's asks who is calling: a caller of
the others can start programs on the server. So the SuperLink listens at a socket of its owner, and the proxy passes on
`/v1/fleet/` only. `/v1/line` goes to the server itself, with the name of the registered device that signed the request.

A SuperLink keeps in memory whatever a device sends, until its server fetches it. So such data is accepted from
registered devices only, up to a quota in an exchange and a size of each request. All other requests must be short.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sottovoce.federation.flower import line
from sottovoce.federation.flower.payload import MAX_HEAD, MAX_PART, is_one_answer
from sottovoce.federation.keys import SERVER, SERVER_KEY, is_signed_by, public_key_pem
from sottovoce.files import write_aside

OPEN = "/v1/fleet/"
PUSHES = {b"/v1/fleet/push-messages": MAX_HEAD, b"/v1/fleet/push-object": MAX_PART + MAX_HEAD}
CONNECTIONS = 8  # to the SuperLink, which devices share: it uses one core, and a few keep it busy
ANSWERS = 4  # in an exchange: after a lost connection or SuperLink the answer is sent again
OVERHEAD = 2**18  # bytes of requests that announce a message before its parts are sent
QUOTA = "gate.json"
# Headers of one connection, not of a request: each side has its own.
_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}


def write_quota(folder: Path, keys: Mapping[str, str], answer: int) -> None:
    """Let devices, by name and public key, send answers of at most `answer` bytes. The proxy starts to count anew."""
    facts = {"bytes": ANSWERS * answer + OVERHEAD, "keys": dict(keys)}
    write_aside(folder / QUOTA, json.dumps(facts).encode(), private=True)


class Quota:
    """The proxy's side: who sends, and how many bytes they may still send."""

    def __init__(self, folder: Path):
        self._path = folder / QUOTA
        self._version: tuple[int, int] | None = None
        self._names: dict[bytes, str] = {}
        self._keys: dict[str, bytes] = {}
        self._left: dict[str, int] = {}

    def sender(self, headers: Mapping[str, str]) -> str | None:
        """The registered device that signed a request; none if no device did."""
        self._refresh()
        key = signing_key(headers)
        return None if key is None else self._names.get(key)

    def caller(self, headers: Mapping[str, str]) -> str | None:
        """The same, of a request on a line."""
        self._refresh()
        return line.caller(headers, self._keys)

    def _refresh(self) -> None:
        found = self._path.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._version:  # the server has replaced the file
            facts = json.loads(self._path.read_bytes())
            self._keys = {name: public_key_pem(key) for name, key in facts["keys"].items()}
            self._names = {key: name for name, key in self._keys.items()}
            self._left = dict.fromkeys(facts["keys"], int(facts["bytes"]))
            self._version = version

    def take(self, name: str, size: int) -> bool:
        """Count bytes that a device sends; false if they exceed its quota."""
        before = self._left[name]
        self._left[name] = before - size
        if before >= 0 > self._left[name]:
            print(f"{name} sends more than a device may in a round; it is not passed on", flush=True)
        return self._left[name] >= 0


def signing_key(headers: Mapping[str, str]) -> bytes | None:
    """The public key, in PEM, that a SuperNode's request is signed with. The SuperLink checks the signed time."""
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        signed = headers[TIMESTAMP_HEADER].encode("ascii")
    except (KeyError, ValueError):  # also what is not base64, or not ASCII
        return None
    return key if is_signed_by(key, signature, signed) else None


def build_app(client: httpx.AsyncClient, quota: Quota, server: httpx.AsyncClient) -> Starlette:
    """Pass on what begins with `/v1/fleet/` through an HTTP client of the SuperLink, and `/v1/line` through one of the
    server; refuse all else with 403."""
    # Requests wait here: httpx looks at all waiting requests and all connections for each request that it sends.
    turns = asyncio.Semaphore(CONNECTIONS)

    async def forward(request: Request) -> Response:
        # The path as it came: the checked path must be the forwarded one, with nothing decoded in between.
        path = request.scope["raw_path"].partition(b"?")[0]
        if not path.startswith(OPEN.encode()) or b".." in path or b"%" in path or b"//" in path:
            return PlainTextResponse("only the fleet is reachable here", status_code=403)
        sender = quota.sender(request.headers) if path in PUSHES else None
        if path in PUSHES and sender is None:
            return PlainTextResponse("no device of this federation signed this", status_code=401)
        body, most = bytearray(), PUSHES.get(path, MAX_HEAD)
        async for piece in request.stream():
            body += piece
            if len(body) > most or (sender is not None and not quota.take(sender, len(piece))):
                return PlainTextResponse("too long", status_code=413)
        if path == b"/v1/fleet/push-messages" and not is_one_answer(bytes(body)):
            return PlainTextResponse("not an answer", status_code=400)
        headers = [(name, value) for name, value in request.headers.raw if name.decode().lower() not in _HOP]
        url = client.base_url.copy_with(raw_path=path)
        try:
            asked = client.build_request(request.method, url, headers=headers, content=bytes(body))
            async with turns:
                answer = await client.send(asked, stream=True)
                # All of it at once: a device that reads slowly must not keep the others from the SuperLink.
                contents = b"".join([piece async for piece in answer.aiter_raw()])
        except (httpx.HTTPError, httpx.StreamError, RuntimeError):  # RuntimeError: the client is closed, at the end
            return PlainTextResponse("the server is not there", status_code=503)  # devices ask again
        passed = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return Response(contents, answer.status_code, passed)

    async def on_line(request: Request) -> Response:
        name = quota.caller(request.headers)
        if name is None:
            return PlainTextResponse("no device of this federation signed this", status_code=401)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if not quota.take(name, len(piece)):
                return PlainTextResponse("too long", status_code=413)
        if sha256(body).hexdigest() != request.headers[line.DIGEST]:
            return PlainTextResponse("not what was signed", status_code=400)
        headers = {line.DEVICE: name, line.HAVE: request.headers[line.HAVE]}
        try:
            answer = await server.post(line.PATH, headers=headers, content=bytes(body))
        except (httpx.HTTPError, RuntimeError):
            return PlainTextResponse("the server is not there", status_code=503)
        passed = {name: value for name, value in answer.headers.items() if name == line.MESSAGE}
        return Response(answer.content, answer.status_code, passed)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await client.aclose()
        await server.aclose()

    methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]
    lines = Route(line.PATH, on_line, methods=["POST"])
    return Starlette(routes=[lines, Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)


def main(host: str, port: int, keys: Path, folder: Path, socket: str) -> None:
    # httpx looks for sniffio on the disk at every step of a request if it is not installed. This answers at once.
    modules: Any = sys.modules
    modules.setdefault("sniffio", None)
    limits = httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=60.0)
    transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits)
    client = httpx.AsyncClient(base_url="http://localhost", transport=transport, timeout=60.0)
    own = httpx.AsyncHTTPTransport(uds=str(Path(socket).with_name(line.SOCKET)), limits=httpx.Limits())
    server = httpx.AsyncClient(base_url="http://localhost", transport=own, timeout=3 * line.HOLD)
    uvicorn.run(
        build_app(client, Quota(folder), server),
        host=host,
        port=port,
        ssl_certfile=keys / SERVER,
        ssl_keyfile=str(keys / SERVER_KEY),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
