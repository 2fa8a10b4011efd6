"""`sotto watch`, seen in a real browser."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watching_world import ARTEFACTS, make_files, play, watching

import sottovoce
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.record import Lines

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from tiny_run import StopAfter, make_recipe, make_store

pytestmark = pytest.mark.browser
LOOKS = {
    "light": {"viewport": {"width": 1100, "height": 900}},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
}


@pytest.fixture
def shown(chromium: Any) -> Iterator[Any]:
    """Opens pages; at the end their consoles hold nothing but what they were expected to (`page.expected`)."""
    contexts, pages = [], []

    def show(address: str, **settings: Any) -> Any:
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.expected, page.asked = [], (), []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.asked.append(request))
        page.goto(address)
        page.wait_for_selector(".run")
        pages.append(page)
        return page

    yield show
    for context in contexts:
        context.close()
    for page in pages:
        assert [text for text in page.complaints if not text.endswith(page.expected or "\0")] == []


def fact(page: Any, name: str, run: int = 0) -> str:
    card = page.locator(".run").nth(run)
    return card.locator("dl > div").filter(has_text=name).locator(".figure").inner_text()


def wait_for(page: Any, name: str, value: str, run: int = 0) -> None:
    box = page.locator(".run").nth(run).locator("dl > div").filter(has_text=name).locator(".figure")
    box.get_by_text(value, exact=True).wait_for(timeout=20_000)


def numbers(page: Any, figure: str) -> list[list[str]]:
    rows = page.locator(f"#figure-{figure} .numbers tr").all()
    return [row.locator("th, td").all_text_contents() for row in rows]


def test_a_run_is_seen_to_advance_to_stop_and_to_go_on(shown, tmp_path):
    """A real run, watched from before its beginning, through a restart of the server and a resume."""
    recipe, run = make_recipe(make_store(tmp_path)).replace(run={"evaluate_every": 2}), tmp_path / "run"
    run_is_seen: list[int] = []
    with watching(run) as address:
        page = shown(address)
        page.get_by_text("waiting for it to begin").wait_for()

        def see(progress: Any) -> None:
            if progress.round:
                run_is_seen.append(progress.round)
            if progress.evaluation:  # the last round that a checkpoint holds
                wait_for(page, "Round", str(progress.round))

        sottovoce.train(recipe, run, observer=see, stop=StopAfter(4))
        page.locator(".state", has_text="stopped").wait_for()
        assert fact(page, "Top-1").endswith("%")
        assert float(fact(page, "ε spent")) > 0
    page.get_by_text("Not connected").wait_for()
    page.expected = "net::ERR_CONNECTION_REFUSED"
    with watching(run, port=int(address.rstrip("/").rsplit(":", 1)[1])):
        page.get_by_text("Live.").wait_for()
        sottovoce.resume(run, observer=see)
        page.locator(".state", has_text="finished").wait_for()
        assert run_is_seen == [1, 2, 3, 4, 4, 5, 6]
        assert [row[0] for row in numbers(page, "privacy-spent")[1:]] == ["6", "5", "4", "3", "2", "1"]
        assert [row[0] for row in numbers(page, "accuracy")[1:]] == ["6", "4", "2"]
        again = [request for request in page.asked if request.url.endswith("/events")]
        assert "last-event-id" in again[-1].all_headers()
        page.close()  # else it complains, in its console, that the server is gone
    assert {request.method for request in page.asked} == {"GET"}
    assert all(request.url.startswith(address) for request in page.asked)


def test_rounds_that_are_played_again_replace_those_before(shown, tmp_path):
    run = make_files(tmp_path / "run", planned=60)
    with watching(run) as address:
        page = shown(address)
        wait_for(page, "Round", "39")
        Lines(run / "record.jsonl").keep_up_to(20)
        wait_for(page, "Round", "20")
        play(run, range(21, 51), planned=60, skill=1.2)
        wait_for(page, "Round", "50")
        rounds = [row[0] for row in numbers(page, "privacy-spent")[1:]]
        assert len(rounds) == len(set(rounds)) == 12
        page.close()


def test_state_and_time_left_are_known_at_once(shown, tmp_path):
    """A run that trains when the page is opened: 39 rounds in 390 seconds, 21 more to come."""
    run = make_files(tmp_path / "run", planned=60)
    folder = RunFolder(run)
    with folder.locked(), watching(run) as address:
        now = time.time()
        for path, age in ((folder.recipe_file, 391), (folder.lock_file, 390), (folder.record.path, 0)):
            os.utime(path, (now - age, now - age))
        page = shown(address)
        page.locator(".state[data-kind=training]").wait_for()
        assert fact(page, "Time left") in ("3 min", "4 min")
        page.close()
    Lines(run / "record.jsonl").keep_up_to(0)
    with watching(run) as address:
        with folder.locked():
            page = shown(address)
            page.locator(".state[data-kind=compiling]").wait_for()
            assert fact(page, "Time left") == "–"
        page.locator(".state[data-kind=stopped]").wait_for()
        page.close()


@pytest.mark.parametrize("look", LOOKS)
def test_how_it_looks(shown, tmp_path, look):
    """Pictures to be looked at; what can be told without eyes is that nothing is wider than the page."""
    runs = [
        make_files(tmp_path / "private", planned=200),
        make_files(tmp_path / "not-private", planned=200, private=False, skill=1.3),
    ]
    ARTEFACTS.mkdir(exist_ok=True)
    for name, watched, internal in (("one", runs[:1], False), ("several", [*runs, tmp_path / "later"], True)):
        with watching(*watched, internal=internal) as address:
            page = shown(address, **LOOKS[look])
            page.wait_for_selector("#figure-perplexity .line")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert (page.locator("figure").count(), page.locator("#internal").is_visible()) == (
                (6, True) if internal else (3, False)
            )
            page.locator("#figure-perplexity summary").click()
            page.screenshot(path=ARTEFACTS / f"watch-{name}-{look}.png", full_page=True)
            page.close()


def test_it_can_be_used_by_key_and_read_aloud(shown, tmp_path):
    with watching(make_files(tmp_path / "run", planned=60)) as address:
        page = shown(address)
        page.wait_for_selector("#figure-accuracy .line")
        assert page.locator("#figure-accuracy svg").get_attribute("aria-label").startswith("Accuracy. top-5: ")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.locator("#figure-accuracy table").is_visible()
        assert page.locator("#figure-accuracy tbody tr").count() == 7
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Numbers of Accuracy"
        page.close()
