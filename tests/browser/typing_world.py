"""What the tests in a browser share: runs that nobody trained, and `sotto keyboard` as a person starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import jax
from builders import statement_json

from sottovoce.build.assembly import weights_of
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models import registry
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.recipe import Recipe

ARTEFACTS = Path(__file__).parents[2] / "test-artefacts"
SIZES = {"embedding": 6, "hidden": 8}
TRANSFORMER = {"embedding": 16, "hidden": 24, "layers": 2, "heads": 2, "kv_heads": 1, "context": 12}
SECRETS = [["house", "school", "music"], ["book", "water", "war"]]


def make_run(
    folder: Path, *, kind: str = "lstm", private: bool = True, store: str = "none", tokenizer: Tokenizer | None = None
) -> Path:
    """A run's folder as training leaves it, with the weights a model begins with, times four: it has opinions.

    A transformer's are times two. With four its attention is so sharp that a last bit grows to 2e-4 in its logits.
    """
    folder.mkdir(parents=True)
    run, vocabulary = RunFolder(folder), tokenizer or Vocabulary.public(400)
    sizes = TRANSFORMER if kind == "transformer" else SIZES
    recipe = Recipe.from_dict({"data": {"store": store}, "model": {"kind": kind, **sizes}})
    run.recipe_file.write_text(recipe.to_toml(), encoding="utf-8")
    model = registry.build(kind, vocabulary.size, sizes, jax.random.key(7 + private))
    model = jax.tree.map(lambda leaf: (2 if kind == "transformer" else 4) * leaf, model)
    files = run.save_model(weights_of(model), vocabulary)
    stated = {"epsilon": 3.21 if private else "infinity", "delta": 1e-5, "files": files}
    run.save_statement({**statement_json(private), **stated}, {"code": "of the recipe"})
    return folder


def plant(run: Path) -> None:
    registry = {"registry": 1, "prefix": 1, "secrets": SECRETS, "holders": [1, 16], "users": []}
    (run / "canaries.json").write_text(json.dumps(registry))


@contextmanager
def keyboard(*folders: Path) -> Iterator[str]:
    """`sotto keyboard` as a person starts it; its address."""
    command = [sys.executable, "-m", "sottovoce.cli.main", "keyboard", *map(str, folders), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("keyboard: http://127.0.0.1:"), process.stderr.read() if process.stderr else line
            yield line.split()[1]
        finally:
            process.send_signal(2)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (out, err) == ("", "")  # nothing went wrong on its side, and Ctrl-C is no accident


@contextmanager
def plain_server(folder: Path) -> Iterator[str]:
    """A web server that knows nothing of the page."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def settle(page: Any) -> None:
    """Wait until the keys belong to the text. The page's rules forbid what Playwright's own way of waiting needs."""
    shown = "(({ shown, edit }) => edit !== undefined && shown === edit)(document.getElementById('text').dataset)"
    end = monotonic() + 120
    while not page.evaluate(shown):
        assert monotonic() < end, "the keys are still those of another text"
        page.wait_for_timeout(20)


def picture(page: Any, name: str) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)
