"""`sotto watch`."""

from __future__ import annotations

from pathlib import Path

APP, SERVE = "sottovoce.commands.watch.watch_app", "sottovoce.web.server.serve"


def test_the_page_is_served_at_its_address(sotto, stub, capsys, tmp_path):
    app, serve = stub(APP, ("the app", "/secret")), stub(SERVE)
    sotto(["watch", str(tmp_path), "nowhere", "--internal", "--port", "0"])
    assert app.places == ([tmp_path, Path("nowhere")],)
    assert app.names == {"internal": True, "host": "127.0.0.1"}
    assert serve.places == ("the app",)
    assert (serve.names["port"], serve.names["host"]) == (0, "127.0.0.1")
    assert capsys.readouterr().err == "nowhere is not there yet; the page waits for it\n"
    serve.names["ready"]("http://127.0.0.1:9/")
    assert capsys.readouterr().out == "http://127.0.0.1:9/secret  (Ctrl-C ends it; the runs go on)\n"
