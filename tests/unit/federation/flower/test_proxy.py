"""What passes the proxy, and what does not."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest

pytest.importorskip("flwr")
import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.supercore.primitives.asymmetric import sign_message

from sottovoce.federation import keys
from sottovoce.federation.flower import line, payload, proxy


async def _in_pieces(*pieces: bytes):
    for piece in pieces:
        yield piece


class AnyQuota:
    """Whoever signs as somebody is believed, and may send so much."""

    def __init__(self, most: int = 10**9):
        self.left = most

    def sender(self, headers) -> str | None:
        return headers.get("flwr-public-key")

    def take(self, name: str, size: int) -> bool:
        self.left -= size
        return self.left >= 0


def ask(
    method: str, path: str, body: bytes = b"", target=None, gate=None, headers=None
) -> tuple[httpx.Response, list[httpx.Request]]:
    """A request through the proxy; the answer, and what reached the server behind it."""
    seen: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=_in_pieces(b"hello ", request.content), headers={"x-kind": "fleet"})

    async def run() -> httpx.Response:
        inner = httpx.AsyncClient(base_url="https://behind", transport=httpx.MockTransport(target or serve))
        app = proxy.build_app(inner, gate or AnyQuota(), inner)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(base_url="https://front", transport=transport) as client:
            url = httpx.URL("https://front").copy_with(raw_path=path.encode())
            answer = await client.request(method, url, content=body, headers={"x-signature": "abc", **(headers or {})})
        await inner.aclose()
        return answer

    return asyncio.run(run()), seen


@pytest.fixture
def devices(tmp_path) -> dict[str, dict[str, str]]:
    """Headers by which two devices with a quota in the folder sign, and a stranger without."""
    headers, public = {}, {}
    for name in ("phone", "silo", "stranger"):
        (tmp_path / name).mkdir()
        public[name] = keys.write_node_key(tmp_path / name)
        private = load_ssh_private_key((tmp_path / name / keys.NODE_KEY).read_bytes(), None)
        headers[name] = {
            "flwr-public-key": b64encode(keys.public_key_pem(public[name])).decode(), "flwr-timestamp": "2026-01-01",
            "flwr-signature": b64encode(sign_message(private, b"2026-01-01")).decode(),
        }  # fmt: skip
    del public["stranger"]
    proxy.write_quota(tmp_path, public, 1000)
    return headers


def test_a_device_is_known_by_its_signature(tmp_path, devices):
    held = proxy.Quota(tmp_path)
    assert [held.sender(devices[name]) for name in ("phone", "silo", "stranger")] == ["phone", "silo", None]
    forged = {**devices["stranger"], "flwr-public-key": devices["phone"]["flwr-public-key"]}
    for headers in (
        forged, {}, {**devices["phone"], "flwr-timestamp": "2026-01-02"}, {**devices["phone"], "flwr-signature": "é"},
        {**devices["phone"], "flwr-public-key": "AAAA"}, {**devices["phone"], "flwr-timestamp": "\udcff"},
    ):  # fmt: skip
        assert held.sender(headers) is None


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
        "/v1/line/../control/start-run",
        "/v1/line/",
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


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("pull-messages", payload.MAX_HEAD),
        ("activate-node", payload.MAX_HEAD),
        ("push-object", payload.MAX_PART + payload.MAX_HEAD),
    ],
)
def test_a_request_too_long_is_refused(path, most):
    """Whoever sends it: the SuperLink reads a request before it looks who that is."""
    for size, status in ((most, 200), (most + 1, 413)):
        answer, seen = ask("POST", f"/v1/fleet/{path}", b"x" * size, headers={"flwr-public-key": "phone"})
        assert (answer.status_code, len(seen)) == (status, int(status == 200))


@pytest.mark.parametrize("path", ["push-object", "push-messages"])
def test_what_would_be_kept_is_taken_from_registered_devices_alone(path):
    answer, seen = ask("POST", f"/v1/fleet/{path}", b"x")
    assert (answer.status_code, seen) == (401, [])


def test_a_server_that_is_gone_is_said_to_be():
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
        transport = httpx.ASGITransport(app=proxy.build_app(inner, AnyQuota(), inner))
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
        await proxy.build_app(inner, AnyQuota(), inner)(
            {**scope, "query_string": b"", "http_version": "1.1"}, receive, send
        )
        await inner.aclose()

    asyncio.run(run())
    assert (sent[0]["status"], seen) == (403, [])


# --- lines ------------------------------------------------------------------------------------------------------------


def on_line(tmp_path, name: str, answer: bytes = b"", **changed: str) -> tuple[httpx.Response, list[httpx.Request]]:
    """A request that a device signed, some headers of which were changed on its way."""
    headers = line.signed_headers(name, "m-1", answer, lambda claim: keys.sign(tmp_path / name / keys.NODE_KEY, claim))
    return ask("POST", line.PATH, answer, gate=proxy.Quota(tmp_path), headers={**headers, **changed})


def test_a_request_on_a_line_reaches_the_server_in_the_name_of_who_signed_it(tmp_path, devices):
    answer, seen = on_line(tmp_path, "phone", b"mine")
    assert (answer.status_code, answer.content) == (200, b"hello mine")
    (passed,) = seen
    assert (passed.url.path, passed.headers[line.DEVICE], passed.headers[line.HAVE]) == (line.PATH, "phone", "m-1")
    assert "x-signature" not in passed.headers
    for changed in (
        {line.DEVICE: "silo"},
        {line.HAVE: "m-2"},
        {line.TIME: "2026-01-01T00:00:00+00:00"},
        {line.TIME: "2026-01-01"},
        {line.DIGEST: "00"},
        {line.SIGNATURE: "AAAA"},
    ):
        answer, seen = on_line(tmp_path, "phone", b"mine", **changed)
        assert (answer.status_code, seen) == (401, []), changed
    assert on_line(tmp_path, "stranger")[0].status_code == 401
    assert ask("POST", line.PATH, gate=proxy.Quota(tmp_path))[0].status_code == 401


def test_an_old_request_on_a_line_and_an_answer_that_was_not_signed_are_refused(tmp_path, devices, monkeypatch):
    sign = lambda claim: keys.sign(tmp_path / "phone" / keys.NODE_KEY, claim)  # noqa: E731
    headers = line.signed_headers("phone", "m-1", b"mine", sign)
    answer, seen = ask("POST", line.PATH, b"another", gate=proxy.Quota(tmp_path), headers=headers)
    assert (answer.status_code, seen) == (400, [])
    monkeypatch.setattr(line, "CLOCK", -line.CLOCK)
    answer, seen = ask("POST", line.PATH, b"mine", gate=proxy.Quota(tmp_path), headers=headers)
    assert (answer.status_code, seen) == (401, [])


def test_answers_on_a_line_count_to_what_a_device_may_send(tmp_path, devices, capfd):
    held, most = proxy.Quota(tmp_path), proxy.ANSWERS * 1000 + proxy.OVERHEAD
    for size, status in ((most, 200), (1, 413)):
        sign = lambda claim: keys.sign(tmp_path / "phone" / keys.NODE_KEY, claim)  # noqa: E731
        headers = line.signed_headers("phone", "m-1", b"x" * size, sign)
        assert ask("POST", line.PATH, b"x" * size, gate=held, headers=headers)[0].status_code == status


# --- what a device may send in a round --------------------------------------------------------------------------------


def test_a_device_that_sends_too_much_is_cut_off_until_the_next_round_and_the_others_are_not(tmp_path, devices, capfd):
    """Three hundred megabytes of one device reached the SuperLink, which keeps them in memory."""
    held, most = proxy.Quota(tmp_path), proxy.ANSWERS * 1000 + proxy.OVERHEAD

    def push(name: str, size: int) -> int:
        answer, seen = ask("POST", "/v1/fleet/push-object", b"x" * size, gate=held, headers=devices[name])
        assert len(seen) == int(answer.status_code == 200)
        return answer.status_code

    assert [push("phone", most - 10), push("phone", 11), push("phone", 1), push("silo", most)] == [200, 413, 413, 200]
    assert capfd.readouterr().out == "phone sends more than a device may in a round; it is not passed on\n"
    proxy.write_quota(tmp_path, {name: ssh_of(tmp_path, name) for name in ("phone", "silo")}, 1000)
    assert [push("phone", most), push("phone", 1)] == [200, 413]


def ssh_of(folder, name: str) -> str:
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_ssh_private_key((folder / name / keys.NODE_KEY).read_bytes(), None)
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def test_many_connections_at_once_share_what_a_device_may_send(tmp_path, devices):
    held, seen = proxy.Quota(tmp_path), []
    most = proxy.ANSWERS * 1000 + proxy.OVERHEAD

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(len(request.content))
        return httpx.Response(200, content=_in_pieces(b""))

    async def run() -> None:
        inner = httpx.AsyncClient(base_url="https://behind", transport=httpx.MockTransport(serve))
        transport = httpx.ASGITransport(app=proxy.build_app(inner, held, inner))
        async with httpx.AsyncClient(base_url="https://front", transport=transport) as client:
            asked = [
                client.post(
                    "/v1/fleet/push-object", content=_in_pieces(*[b"x" * 1000] * 100), headers=devices["phone"]
                )
                for _ in range(20)
            ]  # fmt: skip
            await asyncio.gather(*asked)
        await inner.aclose()

    asyncio.run(run())
    assert sum(seen) <= most


def tree(name: int, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=f"{name:064x}", children=children)


def said(tree: ObjectTree, to: str = "task", count: int = 1) -> bytes:
    message = Message()
    message.metadata.reply_to_message_id = to
    return PushMessagesRequest(messages_list=[message] * count, message_object_trees=[tree]).SerializeToString()


def bomb(levels: int) -> ObjectTree:
    """A few parts, each of which has the next one twice: 2^levels to whoever follows them all."""
    top = tree(0)
    for level in range(1, levels):
        top = tree(level, top, tree(level - 1))
    return top


@pytest.mark.parametrize(
    ("request_body", "status"),
    [
        (said(tree(1, tree(2, tree(3), tree(4)))), 200),
        (said(bomb(40)), 400),
        (said(tree(1, tree(2), tree(2))), 400),
        (said(tree(1), to=""), 400),  # not an answer: a message to another device, in the server's name
        (said(tree(1), count=2), 400),
        (b"", 400),
        (b"\xff" * 100, 400),
    ],
)
def test_what_is_said_of_an_answer_is_looked_at_before_it_is_passed_on(request_body, status):
    answer, seen = ask("POST", "/v1/fleet/push-messages", request_body, headers={"flwr-public-key": "phone"})
    assert (answer.status_code, len(seen)) == (status, int(status == 200))
