"""Pages for the user of this machine: on the loopback address, with nothing from or to other hosts."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sottovoce_evidence.errors import SottoError

LOOPBACK = "127.0.0.1"
STATIC = Path(__file__).parent / "static"

# A page may load from its own server only and run WebAssembly; it may not send forms or be framed by another page.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # the next run may be another model
}


def local_app(
    routes: Sequence[Any], folders: dict[str, Path], hosts: Sequence[str] = (), *, private: bool
) -> tuple[Any, str]:
    """A Starlette application, and the path of its page, below which all of it lies.

    It has the given routes, `folders` of files by path, and `/base` with the shared style.

    What is `private` has a random path, which is printed only where the server was started. Other users of the machine
    can reach its ports, and must not read there what they may not read on disk.

    A request for another host name is refused. This stops DNS rebinding: a page elsewhere cannot read from here under a
    name of its own.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Mount
        from starlette.staticfiles import StaticFiles
    except ImportError as error:
        raise missing(error) from None
    folders = {"/base": STATIC, **folders}
    files = [Mount(path, StaticFiles(directory=folder, html=path == "/")) for path, folder in folders.items()]
    path = f"/{secrets.token_urlsafe(16)}" if private else ""
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost", *hosts], www_redirect=False)
    app = Starlette(routes=[Mount(path, routes=[*routes, *files])], middleware=[trusted, Middleware(Guarded)])
    return app, f"{path}/"


class Guarded:
    """Adds `HEADERS` to every response. It is plain ASGI, so that event streams are not buffered."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, receive, guarded)


def serve(app: Any, *, port: int, host: str = LOOPBACK, ready: Callable[[str], None] = lambda address: None) -> None:
    """Serve until Ctrl-C. Streams poll `app.state.is_leaving()`.

    Args:
        app: a Starlette application.
        port: to listen on; 0 takes a free one.
        host: the address to listen on.
        ready: gets the address.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise missing(error) from None
    with _bind(host, port) as bound:
        ready(f"http://{host}:{bound.getsockname()[1]}/")
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        app.state.is_leaving = lambda: server.should_exit  # a stream that does not end would be cut off with an error
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:  # the normal end
            return


def missing(error: ImportError) -> SottoError:
    return SottoError(f"this page needs {error.name}; `pip install 'sottovoce[keyboard]'`")


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise SottoError(f"--port {port} must be in [0, 65535]; 0 takes a free one")
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()  # a request before the server is up waits, and is not refused
    except OSError as error:
        bound.close()
        remedy = "choose another --port, 0 for any"
        raise SottoError(f"cannot listen on {host}:{port} ({error.strerror}); {remedy}") from None
    return bound
