"""A person types: suggestions by mouse and by key, the counter, two models, and nothing that leaves the page."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from typing_world import SECRETS, keyboard, make_run, picture, plain_server, settle

from sottovoce.cli.main import main
from sottovoce.commands.export import export_run
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.keystrokes import letters_to_type
from sottovoce.evaluation.suggestions import suggest

pytestmark = pytest.mark.browser


def keys(page, model=0):
    settle(page)
    return page.locator(".model").nth(model).locator(".key")


def words(page, model=0):
    return keys(page, model).locator("b").all_inner_texts()


def typing(page, text):
    page.locator("#text").press_sequentially(text)
    settle(page)


def test_suggestions_are_taken_by_mouse_and_by_key_and_counted(watched, one_model):
    page = watched(one_model)
    field = page.get_by_label("Your text")
    typing(page, "T")
    assert page.locator("#counts").inner_text() == "1 of 1 character typed, 0 filled in"
    typing(page, "he ti")
    assert all(word.startswith("ti") for word in words(page) if word != "–")
    first = words(page)[0]
    keys(page).first.click()
    settle(page)
    assert field.input_value() == f"The {first} "  # the letters that were typed stay
    assert page.locator("#counts").inner_text() == f"5 of {3 + len(first)} characters typed, {len(first) - 2} filled in"
    second = words(page)[1]
    page.keyboard.press("Alt+2")
    settle(page)
    assert field.input_value() == f"The {first} {second} "
    third = words(page)[0]
    page.keyboard.press("Tab")
    settle(page)
    assert field.input_value() == f"The {first} {second} {third} "
    typing(page, ".")  # a mark takes back the space before it
    assert field.input_value() == f"The {first} {second} {third}."
    total = 3 + len(first) + len(second) + len(third) + 1
    saved = total - 6
    assert page.locator("#counts").inner_text() == f"6 of {total} characters typed, {saved} filled in"
    assert page.locator("#share").inner_text() == f"{100 * saved / total:.0f}%"
    page.get_by_role("button", name="Clear the text").click()
    settle(page)
    assert (field.input_value(), page.locator("#share").inner_text()) == ("", "–")


def test_a_language_without_spaces_is_typed_without_them(watched, tmp_path):
    run = make_run(tmp_path / "chinese", tokenizer=Vocabulary.public(400, "zh"))
    export_run(run, run / "onnx")
    with keyboard(run) as address:
        page = watched(address)
        typing(page, "我们的")
        assert all(word.startswith("的") for word in words(page) if word != "–")
        model, vocabulary = (folder := ModelFolder.open(run)).model, folder.tokenizer
        for more in ("", "", "。"):  # what was taken is a whole word, and the next ones are offered
            page.keyboard.press("Alt+1")
            settle(page)
            typing(page, more)
            text = page.get_by_label("Your text").input_value()
            assert words(page) == [word for word, _ in suggest(model, vocabulary, text)]
        assert text.startswith("我们的")
        assert " " not in text
        assert page.locator(".otherwise").is_hidden()
        picture(page, "keyboard-chinese")


def test_a_phone_has_a_drawn_keyboard(watched, one_model):
    page = watched(one_model, viewport={"width": 390, "height": 844}, has_touch=True)
    field, board = page.get_by_label("Your text"), page.locator("#board")
    assert field.get_attribute("inputmode") == "none"  # the phone shows none of its own

    def tap(*names):
        for name in names:
            board.get_by_role("button", name=name, exact=True).tap()
        settle(page)

    tap("G", "o", "space", "t", "delete", "w", ".", "space")  # the first letter of a sentence is a capital
    assert field.input_value() == "Go w. "
    tap("A", "space", "shift", "B", "c", "123", "4", "2", "abc", "d", "new line")
    assert field.input_value() == "Go w. A Bc42d\n"
    page.get_by_role("button", name="Clear the text").tap()
    settle(page)
    taken = words(page)[0]
    keys(page).first.tap()
    tap(",")
    assert field.input_value() == f"{taken},"
    assert page.locator("#counts").inner_text() == f"1 of {len(taken) + 1} characters typed, {len(taken)} filled in"
    page.get_by_role("button", name="Use my own keyboard").tap()
    assert board.is_hidden()
    assert field.get_attribute("inputmode") == "text"
    assert watched(one_model).locator("#board").is_hidden()  # a wide screen has a keyboard of its own


def test_no_request_carries_what_is_typed(watched, one_model, two_models):
    page = watched(two_models)
    assert all(request.url.startswith(two_models) and request.method == "GET" for request in page.asked)
    loaded = len(page.asked)
    assert loaded > 8
    page.context.set_offline(True)  # and none is needed
    typing(page, "zanzibar the ")
    page.keyboard.press("Alt+1")
    typing(page, "quixotic")
    page.locator("#canaries summary").click()
    page.wait_for_selector("#canaries[data-asked]")
    assert page.locator("#trouble").is_hidden()
    assert page.asked[loaded:] == []
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert "stays in this page" in page.locator("#promise").inner_text()


def test_the_page_cannot_speak_to_another_host(chromium, one_model, two_models):
    page = chromium.new_page()
    page.goto(one_model)
    tried = "address => fetch(address, {mode: 'no-cors'}).then(() => 'sent', () => 'refused')"
    assert page.evaluate(tried, two_models) == "refused"  # another port is another origin
    assert page.evaluate(tried, f"{one_model}models.json") == "sent"
    answer = page.request.get(one_model, headers={"Host": "elsewhere.example"})
    assert answer.status == 400
    page.close()


def test_both_models_say_what_python_says_they_do(watched, two_models, runs):
    page = watched(two_models)
    text = "what do you think of the new one "
    for end, typed in (("", ""), ("th", "th"), ("s", "s")):
        page.get_by_label("Your text").fill(text + end)
        for number, run in enumerate(runs):
            model, vocabulary = (folder := ModelFolder.open(run)).model, folder.tokenizer
            expected = suggest(model, vocabulary, text, typed=typed)
            assert [word.lower() for word in words(page, number)] == [word for word, _ in expected]
    # The saving that each would have given, by the definition of the metric.
    for number, run in enumerate(runs):
        model, vocabulary = (folder := ModelFolder.open(run)).model, folder.tokenizer
        tokens = vocabulary.encode(text)[:-1]
        scores = np.asarray(model.logits(model.read(jnp.asarray(tokens), model.initial_state())[0]))
        letters = sum(len(vocabulary.words[token]) for token in tokens[1:])
        typed = sum(
            letters_to_type(token, before, vocabulary) for token, before in zip(tokens[1:], scores[:-1], strict=True)
        )
        line = page.locator(".potential").nth(number).inner_text()
        assert line.startswith(f"{100 * (1 - typed / letters):.0f}% of {letters} characters saved")
    # Keys 4 to 6 are those of the second.
    page.get_by_label("Your text").fill(text)
    expected = words(page, 1)[2]
    page.keyboard.press("Alt+6")
    assert page.get_by_label("Your text").input_value() == f"{text}{expected} "
    badges = page.locator(".badge").all_inner_texts()
    assert badges == ["private: ε = 3.21 at δ = 1e-5", "not private"]


def test_what_was_planted_is_ranked_in_both_models(watched, two_models, one_model, runs):
    page = watched(two_models)
    page.locator("#canaries summary").click()
    page.wait_for_selector("#canaries[data-asked]")
    rows = page.locator("#secrets tbody tr")
    assert rows.count() == len(SECRETS)
    for row, secret in enumerate(SECRETS):
        for number, run in enumerate(runs):
            model, vocabulary = (folder := ModelFolder.open(run)).model, folder.tokenizer
            tokens = vocabulary.encode(" ".join(secret))[:-1]
            scores = np.asarray(model.logits(model.read(jnp.asarray(tokens), model.initial_state())[0]))
            mask = vocabulary.word_mask
            places = [1 + int(np.sum(scores[at][mask] > scores[at][tokens[at + 1]])) for at in (1, 2)]
            cell = rows.nth(row).locator("td").nth(1 + number).inner_text()
            assert re.search(r"places ([\d, ]+) of", cell).group(1) == ", ".join(map(str, places))
            assert ("given away" in cell) == (max(places) <= 3)
            assert ("not planted in it" in cell) == (number == 1)
    rows.first.get_by_role("button", name="Type it").click()
    assert page.get_by_label("Your text").input_value() == f"{SECRETS[0][0]} "
    assert watched(one_model).locator("#canaries").is_hidden()  # none was planted there


@pytest.mark.parametrize(
    ("name", "scheme", "width"), [("light", "light", 1100), ("dark", "dark", 1100), ("phone", "light", 360)]
)
def test_pictures_in_light_dark_and_at_phone_width(watched, two_models, name, scheme, width):
    page = watched(two_models, color_scheme=scheme, viewport={"width": width, "height": 800})
    typing(page, "what do you th")
    page.keyboard.press("Alt+1")
    page.locator("#canaries summary").click()
    page.wait_for_selector("#canaries[data-asked]")
    typing(page, "s")
    picture(page, f"keyboard-{name}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing is cut off at the side
    heights = page.locator(".key").evaluate_all("keys => keys.map(key => key.getBoundingClientRect().height)")
    assert min(heights) >= 44  # a thumb's width


def test_an_exported_page_types_from_any_folder_of_any_server_and_offline(watched, runs, exports, tmp_path, capsys):
    """Three models side by side, below a path of a plain server; then the server is gone."""
    with pytest.raises(SystemExit) as ended:
        main(["keyboard", "english", *map(str, runs), "--export", str(tmp_path / "some" / "where")])
    assert ended.value.code == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{tmp_path / 'some' / 'where'} (")
    assert told.err.splitlines()[1:] == ["warning: not-private is not private; it may give away what people wrote"]
    with plain_server(tmp_path) as address:
        page = watched(f"{address}some/where/")
        assert all(request.url.startswith(f"{address}some/where/") for request in page.asked)
        text = "what do you think of the new one "
        page.get_by_label("Your text").fill(text)
        assert page.locator(".badge").all_inner_texts()[0] == "public text only"
        for number, run in enumerate(runs):
            expected = ModelFolder.open(run).suggest(text)
            assert [word.lower() for word in words(page, 1 + number)] == [word for word, _ in expected]
        picture(page, "keyboard-three")
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
        page.wait_for_function("navigator.serviceWorker.controller !== null")
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector("#text:enabled")
    typing(page, "what do you th")
    assert words(page)[0].startswith("th")


def test_a_model_with_eight_bits_types_in_the_page(watched, runs, tmp_path):
    from sottovoce.commands.convert import open_session, run_session
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.evaluation.suggestions import offer

    manifest = export_run(runs[1], tmp_path / "small", weights="8bit")
    session = open_session((tmp_path / "small" / "sequence.onnx").read_bytes())
    vocabulary = Vocabulary.load(tmp_path / "small" / "vocabulary.txt")
    start = [np.zeros(part["shape"], np.float32) for part in manifest["state"]]
    scores = run_session(session, np.array(vocabulary.encode("how are you")[:-1]), start)[0]
    with keyboard(tmp_path / "small") as address:
        page = watched(address)
        typing(page, "how are you ")
        offered = [vocabulary.words[token] for token in offer(scores[-1], vocabulary)]
        assert [word.lower() for word in words(page)] == offered
