"""The server of `sotto watch`: the page, and a stream of new events. It only reads files, and serves only GET."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from sottovoce.runs.folder import RunFolder
from sottovoce.web.server import LOOPBACK, local_app, missing
from sottovoce.web.watch.follow import Follower
from sottovoce_evidence.errors import SottoError

PORT = 8019
_STATIC = Path(__file__).parent / "static"
EVERY = 0.5  # seconds between two polls of the files
_QUIET = 30  # polls without news before a comment keeps the connection open


def make_app(
    paths: Sequence[Path],
    *,
    internal: bool,
    host: str,
    every: float,
) -> Any:
    """The application of `commands.watch`, and the path of its page."""
    try:
        from starlette.responses import FileResponse, Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise missing(error) from None
    _refuse(paths, internal=internal, host=host)

    async def page(request: Any) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def events(request: Any) -> Response:
        follower = Follower(paths, internal=internal, last=request.headers.get("last-event-id", ""))
        is_leaving = getattr(request.app.state, "is_leaving", lambda: False)
        return StreamingResponse(stream(follower, every, is_leaving), media_type="text/event-stream")

    routes = [Route("/", page), Route("/events", events)]
    hosts = ["*"] if host in ("0.0.0.0", "::", "") else [host]  # any, if it listens on all addresses of the machine
    return local_app(routes, {"/page": _STATIC}, hosts, private=internal)


async def stream(follower: Follower, every: float, is_leaving: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Events until the reader or the server leaves. Files are read in a thread: a slow disk blocks no other reader."""
    from anyio import sleep, to_thread

    yield b"retry: 1000\n\n"
    quiet = 0
    while not is_leaving():
        messages = await to_thread.run_sync(follower.poll)
        for message in messages:
            yield message.encode()
        quiet = 0 if messages else quiet + 1
        if quiet == _QUIET:
            yield b": nothing new\n\n"
            quiet = 0
        await sleep(every)


def _refuse(paths: Sequence[Path], *, internal: bool, host: str) -> None:
    if not paths:
        raise SottoError("name at least one folder of a run: sotto watch RUN")
    for path in paths:
        if path.exists() and not path.is_dir():
            raise SottoError(f"{str(path)!r} is a file; name the folder of a run")
        run = RunFolder(path)
        for lines in (run.record, run.diagnostics) if internal else (run.record,):
            if lines.path.exists() and not os.access(lines.path, os.R_OK):
                raise SottoError(f"{lines.path} may not be read by you; ask its owner")
    if len({path.resolve() for path in paths}) < len(paths):
        raise SottoError("a run is named twice; name each once")
    if internal and not _is_loopback(host):
        remedy = f"watch on {LOOPBACK}, from elsewhere through ssh -L {PORT}:{LOOPBACK}:{PORT}"
        raise SottoError(f"--internal with --host {host} shows exact figures of private data to a network; {remedy}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
