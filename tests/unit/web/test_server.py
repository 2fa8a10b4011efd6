from __future__ import annotations

import socket

import pytest

from asgi import get
from sottovoce.web import server
from sottovoce_evidence.errors import SottoError

pytest.importorskip("starlette", reason="needs the extra [keyboard]")


@pytest.fixture
def app(tmp_path):
    (tmp_path / "index.html").write_text("<p>a page</p>")
    return server.local_app([], {"/": tmp_path}, private=False)[0]


def test_every_answer_has_the_headers_errors_too(app):
    for path, status in (("/", 200), ("/base/base.css", 200), ("/none", 404)):
        found, headers, _ = get(app, path)
        assert found == status
        for name, value in server.HEADERS.items():
            assert headers[name.lower()] == value


def test_a_page_under_another_name_is_refused(app, tmp_path):
    assert get(app, "/", host="evil.example")[0] == 400
    assert get(app, "/", host="localhost:8019")[0] == 200
    assert get(server.local_app([], {"/": tmp_path}, ["box"], private=False)[0], "/", host="box")[0] == 200


def test_all_that_is_private_lies_below_a_path_that_cannot_be_guessed(app, tmp_path):
    (tmp_path / "index.html").write_text("<p>a page</p>")
    paths = set()
    for _ in range(2):
        private, path = server.local_app([], {"/": tmp_path}, private=True)
        paths.add(path)
        assert len(path) > 20
        for name in ("", "index.html", "base/base.css"):
            assert get(private, path + name)[0] == 200
            assert get(private, f"/{name}")[0] == get(private, f"/{'x' * 22}/{name}")[0] == 404
    assert len(paths) == 2


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
