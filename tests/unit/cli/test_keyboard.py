"""`sotto keyboard`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.options import log

APP, SERVE = "sottovoce.web.keyboard.app.keyboard_app", "sottovoce.web.server.serve"


@pytest.mark.parametrize("runs", [["one"], ["one", "two"], ["english", "one", "two"]])
def test_runs_are_served(sotto, stub, capsys, runs):
    app, serve, browser = stub(APP, ("the app", "/")), stub(SERVE), stub("webbrowser.open")
    sotto(["keyboard", *runs, "--port", "0"])
    assert app.places == ([Path(run) for run in runs],)
    assert app.names == {"log": log}
    assert (serve.places, serve.names["port"]) == (("the app",), 0)
    serve.names["ready"]("http://127.0.0.1:9/")
    assert capsys.readouterr().out == "keyboard: http://127.0.0.1:9/ (Ctrl-C ends it)\n"
    assert browser.calls == []


def test_a_secret_address_is_printed_and_no_browser_is_started_with_it(sotto, stub, capsys):
    """All accounts of a machine see with what a program was started."""
    stub(APP, ("the app", "/secret/"))
    serve, browser = stub(SERVE), stub("webbrowser.open")
    sotto(["keyboard", "run", "--open"])
    serve.names["ready"]("http://127.0.0.1:9/")
    told = capsys.readouterr()
    assert told.out == "keyboard: http://127.0.0.1:9/secret/ (Ctrl-C ends it)\n"
    assert "open it yourself" in told.err
    assert browser.calls == []


@pytest.mark.parametrize(
    ("privacy", "warned"),
    [({"private": True}, False), ({"private": False}, True), ({"private": False, "trained_on": "public"}, False)],
)
def test_a_page_is_written_and_a_model_that_is_not_private_is_named(sotto, stub, capsys, tmp_path, privacy, warned):
    write = stub("sottovoce.web.keyboard.app.write_page", {"models": [{"name": "one", "privacy": privacy}]})
    serve, page = stub(SERVE), tmp_path / "a page"
    sotto(["keyboard", "one", "--export", str(page)])
    assert (write.places, write.names) == (([Path("one")], page), {"log": log})
    told = capsys.readouterr()
    assert told.out == f"{page} (0 MB); to see it: python -m http.server --directory '{page}'\n"
    assert ("not private" in told.err) == warned
    assert serve.calls == []
