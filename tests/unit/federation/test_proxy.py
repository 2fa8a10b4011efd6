"""What passes the proxy, and what does not."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation import proxy


async def _in_pieces(*pieces: bytes):
    for piece in pieces:
        yield piece


def ask(method: str, path: str, body: bytes = b"", target=None) -> tuple[httpx.Response, list[httpx.Request]]:
    """A request through the proxy; the answer, and what reached the server behind it."""
    seen: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=_in_pieces(b"hello ", request.content), headers={"x-kind": "fleet"})

    async def run() -> httpx.Response:
        inner = httpx.AsyncClient(base_url="https://behind", transport=httpx.MockTransport(target or serve))
        app = proxy.build_app(inner)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(base_url="https://front", transport=transport) as client:
            url = httpx.URL("https://front").copy_with(raw_path=path.encode())
            answer = await client.request(method, url, content=body, headers={"x-signature": "abc"})
        await inner.aclose()
        return answer

    return asyncio.run(run()), seen


def test_the_fleet_passes_as_it_is():
    answer, seen = ask("POST", "/v1/fleet/pull-messages", b"body")
    assert (answer.status_code, answer.content, answer.headers["x-kind"]) == (200, b"hello body", "fleet")
    assert [(str(request.url), request.headers["x-signature"]) for request in seen] == [
        ("https://behind/v1/fleet/pull-messages", "abc")
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/",
        "/v1/fleet",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "//v1/control/start-run",
        "/v1/fleet//../../control/start-run",
        "/V1/FLEET/../control/start-run",
        "/docs",
        "/openapi.json",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_else_passes(path, method):
    answer, seen = ask(method, path)
    assert answer.status_code == 403
    assert seen == []


def test_a_request_too_long_is_refused_and_a_server_that_is_gone_is_said_to_be(monkeypatch):
    monkeypatch.setattr(proxy, "MOST_BYTES", 10)
    answer, seen = ask("POST", "/v1/fleet/push-object", b"x" * 11)
    assert (answer.status_code, seen) == (413, [])

    # Of these alone a device thinks that they pass: anything else ends its SuperNode.
    for error in (httpx.ConnectError("nobody"), httpx.DecodingError("noise"), RuntimeError("closed")):

        def gone(request: httpx.Request, error: Exception = error) -> httpx.Response:
            raise error

        answer, _ = ask("POST", "/v1/fleet/pull-messages", target=gone)
        assert answer.status_code == 503


def test_an_answer_that_breaks_off_is_asked_for_again_and_never_passed_on_in_part():
    async def torn():
        yield b"half"
        raise httpx.ReadError("gone")

    answer, _ = ask("POST", "/v1/fleet/pull-object", target=lambda request: httpx.Response(200, content=torn()))
    assert answer.status_code == 503
    assert b"half" not in answer.content


def test_a_few_requests_at_a_time_reach_the_superlink_and_all_are_answered():
    now, most = 0, 0
    full = asyncio.Event()

    async def serve(request: httpx.Request) -> httpx.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == proxy.CONNECTIONS:
            full.set()
        await full.wait()  # the first ones wait for each other: they are there at the same time
        now -= 1
        return httpx.Response(200, content=_in_pieces(request.content))

    async def run() -> list[bytes]:
        inner = httpx.AsyncClient(base_url="https://behind", transport=httpx.MockTransport(serve))
        transport = httpx.ASGITransport(app=proxy.build_app(inner))
        async with httpx.AsyncClient(base_url="https://front", transport=transport) as client:
            asked = [client.post("/v1/fleet/pull-messages", content=b"%d" % number) for number in range(50)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), 60)
        await inner.aclose()
        return [answer.content for answer in answers]

    assert asyncio.run(run()) == [b"%d" % number for number in range(50)]
    assert most == proxy.CONNECTIONS


@pytest.mark.parametrize("path", [b"/v1/fleet/../control/start-run", b"/v1/fleet//x", b"/v1/fleet/%2e%2e/control/x"])
def test_a_path_that_leads_elsewhere_does_not_pass_as_it_came(path):
    """Below any client of HTTP, which would put it straight before it is sent."""
    seen: list[httpx.Request] = []
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    async def run() -> None:
        serve = lambda request: seen.append(request) or httpx.Response(200, content=_in_pieces(b""))  # noqa: E731
        inner = httpx.AsyncClient(base_url="https://behind", transport=httpx.MockTransport(serve))
        scope = {"type": "http", "method": "POST", "path": path.decode(), "raw_path": path, "headers": []}
        await proxy.build_app(inner)({**scope, "query_string": b"", "http_version": "1.1"}, receive, send)
        await inner.aclose()

    asyncio.run(run())
    assert (sent[0]["status"], seen) == (403, [])
