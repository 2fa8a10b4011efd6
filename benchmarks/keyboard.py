"""How long the keyboard's page takes for its suggestions, in Chromium: `python benchmarks/keyboard.py RUN [TEXT]`.

RUN is a run, a release or an export. A text is typed letter by letter. For each letter it prints the processor time of
the page, the time that passed (with the pause before a search of whole words), and the words.
"""

from __future__ import annotations

import sys
from threading import Thread

import uvicorn
from playwright.sync_api import sync_playwright

from sottovoce.web.keyboard.app import keyboard_app

LOAD = """async () => {
    const { models } = await (await fetch("models.json")).json();
    const { loadModel } = await import(new URL("model.js", location));
    window.model = await loadModel(0, models[0]);
    await model.suggest({ before: "" }, 3); }"""
ASK = """async (before) => {
    const start = performance.now(), { offered } = await model.suggest({ before }, 3);
    return [performance.now() - start, offered.map(({ word }) => word)]; }"""


def main(run: str, text: str = "What do you think of the ") -> None:
    app, path = keyboard_app([run], print)
    server = uvicorn.Server(uvicorn.Config(app, port=8763, log_level="error"))
    Thread(target=server.run, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:8763{path}icon.svg")  # the same host without the page itself, which would type too
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(LOAD)

        def busy() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return 1e3 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

        for end in range(1, len(text) + 1):
            before = busy()
            passed, words = page.evaluate(ASK, text[:end])
            print(f"{text[:end]!r}: {busy() - before:.0f} ms busy, {passed:.0f} ms passed: {', '.join(words)}")
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main(*sys.argv[1:])
