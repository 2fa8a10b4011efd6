"""Exports, and the keyboard page in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_world import keyboard, make_run, plant, settle

from sottovoce.commands.export import export_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A private run with canaries, and one that is not private."""
    folder = tmp_path_factory.mktemp("runs")
    private = make_run(folder / "private")
    plant(private)
    return [private, make_run(folder / "not-private", kind="gru", private=False)]


@pytest.fixture(scope="session")
def exports(runs: list[Path]) -> list[Path]:
    for run in runs:
        export_run(run, run / "onnx")
    return [run / "onnx" for run in runs]


@pytest.fixture(scope="session")
def one_model(exports: list[Path]) -> Iterator[str]:
    with keyboard(exports[1]) as address:
        yield address


@pytest.fixture(scope="session")
def two_models(runs: list[Path], exports: list[Path]) -> Iterator[str]:
    with keyboard(*runs) as address:  # finds the exports in their folders
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    assert found, "chromium is not installed; `make test-browser` installs it on Debian"
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def watched(chromium: Any) -> Iterator[Any]:
    """Opens pages; at the end nothing may have been written to their consoles. `page.asked` are their requests."""
    contexts, complaints = [], []

    def open_page(address: str, **settings: Any) -> Any:
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a busy machine compiles the runtime slowly
        page.asked = []
        page.on("request", lambda request: page.asked.append(request))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.goto(address)
        page.wait_for_selector("#text:enabled")
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
