from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sottovoce.reporting.draw.style import COLOURS
from sottovoce.runs.record import Lines

pytest.importorskip("starlette", reason="needs the extra [keyboard]")

from sottovoce.commands.watch import watch_app
from sottovoce.web.watch.app import make_app

STATIC = Path(make_app.__code__.co_filename).parent / "static"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text("[run]\nrounds = 9\n")
    Lines(folder / "record.jsonl").append({"round": 1, "epsilon": 0.5})
    Lines(folder / "diagnostics.jsonl", private=True).append({"round": 1, "users": 7, "seconds": 0.5})
    return folder


def ask(app: Any, path: str, method: str = "GET", host: str = "127.0.0.1:8019", **headers: str) -> tuple[int, Any, str]:
    """Status, headers and the body; of a stream, what comes until it waits."""
    body, start, sent = bytearray(), {}, {"host": host, **headers}

    async def talk() -> None:
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))
                if b"event: " in body and bytes(body).endswith(b"\n\n") and b'"lines"' in body:
                    gone.set()

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        }  # fmt: skip
        await app(scope, receive, send)

    asyncio.run(talk())
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body.decode()


def test_the_page_and_its_stream(run):
    app, path = watch_app([run])
    assert path == "/"
    status, headers, page = ask(app, "/")
    assert (status, "page/watch.js" in page) == (200, True)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "http" not in policy
    for name in ("/page/watch.js", "/page/chart.js", "/page/watch.css", "/base/base.css"):
        assert ask(app, name)[0] == 200
    status, headers, events = ask(app, "/events")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert '"rounds": 9' in events
    assert '"epsilon": 0.5' in events
    last = next(line for line in events.splitlines() if line.startswith("id: "))[4:]
    Lines(run / "record.jsonl").append({"round": 2, "epsilon": 0.7})
    again = ask(app, "/events", last_event_id=last)[2]
    assert '"epsilon": 0.7' in again
    assert '"epsilon": 0.5' not in again


def test_exact_figures_are_served_to_whom_the_address_was_told(run):
    public, _ = watch_app([run])
    assert "diagnostics" not in ask(public, "/events")[2]
    for path in ("/diagnostics.jsonl", "/page/../../diagnostics.jsonl", "/page/..%2f..%2fdiagnostics.jsonl"):
        assert ask(public, path)[0] == 404
    internal, path = watch_app([run], internal=True)
    assert len(path) > 20
    assert path != watch_app([run], internal=True)[1]
    for guess in ("/", "/events", "/page/watch.js", f"{path[:-2]}/events"):
        assert ask(internal, guess)[0] == 404
    assert ask(internal, path)[0] == 200


def test_nothing_can_be_written_and_no_other_name_leads_here(run):
    app, _ = watch_app([run])
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(app, "/", method)[0] == 405
        assert ask(app, "/events", method)[0] == 405
    assert ask(app, "/", host="evil.example")[0] == 400
    assert ask(watch_app([run], host="10.1.2.3")[0], "/", host="10.1.2.3:8019")[0] == 200


def test_the_page_fetches_from_its_server_alone_and_has_the_colours_of_reports():
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "style=" not in text
    style = (STATIC / "watch.css").read_text(encoding="utf-8")
    for place, colour in enumerate(COLOURS):
        assert f"--run-{place}: {colour};" in style
