"""Ask an application without a server."""

from __future__ import annotations

import asyncio
from typing import Any


def get(app: Any, path: str, host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of an answer."""
    start: dict[str, Any] = {}
    body = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            body.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"host", host.encode())],
    }
    asyncio.run(app(scope, receive, send))
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, bytes(body)
