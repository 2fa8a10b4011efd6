from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from sottovoce.errors import SottoError
from sottovoce.web import server

pytest.importorskip("starlette", reason="needs the extra [keyboard]")


def get(app: Any, path: str, host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
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


@pytest.fixture
def app(tmp_path):
    (tmp_path / "index.html").write_text("<p>a page</p>")
    return server.local_app([], {"/": tmp_path})


def test_every_answer_has_the_headers_errors_too(app):
    for path, status in (("/", 200), ("/base/base.css", 200), ("/none", 404)):
        found, headers, _ = get(app, path)
        assert found == status
        for name, value in server.HEADERS.items():
            assert headers[name.lower()] == value


def test_a_page_under_another_name_is_refused(app, tmp_path):
    assert get(app, "/", host="evil.example")[0] == 400
    assert get(app, "/", host="localhost:8019")[0] == 200
    assert get(server.local_app([], {"/": tmp_path}, hosts=["box"]), "/", host="box")[0] == 200


def test_files_outside_the_folders_are_not_served(app, tmp_path):
    (tmp_path.parent / "secret.txt").write_text("secret")
    for path in ("/../secret.txt", "/base/../../secret.txt", "/%2e%2e/secret.txt"):
        assert get(app, path)[0] == 404


def test_a_port_in_use_or_out_of_range_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SottoError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.serve(object(), port=port)
    with pytest.raises(SottoError, match=r"--port 70000 must be in \[0, 65535\]"):
        server.serve(object(), port=70_000)
