"""Models whose words have several tokens: the page cuts text and searches words as Python does, and a person types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typing_world import keyboard, make_run, picture, settle

from sentences import SENTENCES
from sottovoce.commands.export import export_run
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.tokenizer import train_tokenizer
from sottovoce.data.subwords import Subwords
from sottovoce.evaluation.pieces import ends_in_word, pieces_of, words_of
from sottovoce.evaluation.suggestions import _as_read, suggest
from sottovoce.evaluation.whole_words import Place
from sottovoce.evaluation.word_prediction import letters_to_type

pytestmark = pytest.mark.browser

ENGLISH = [
    "What do you think of the new one? I think it's the best that we have had, and they don't.",
    "The time of day is 10:30, so come to the station with me and see what was there before.",
    "You'll see that these words, whether they are short or long, are written with a few pieces each.",
]
TYPED = [
    "",
    " ",
    "Hello, World! DON’T stop, it's o'clock 'quoted' ''",
    "see https://example.org/a?b=c_d or <url>, <email>.",
    "İstanbul STRASSE straße naïve café cafe\u0301",
    "🙂👍🏽 family 👨\u200d👩\u200d👧 ok",
    "  two  spaces\tand\nnew line ",
    "x²½Ⅷ٣ 1,000.50",
    "a name such as <s> or </s> or [CLS] is text",
    "what do you thi",
    *ENGLISH,
    *(text for text, _ in SENTENCES.values()),
]
KINDS = ("bpe", "bpe, small", "unigram", "wordpiece, small", "bytes", "characters")


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subwords]:
    folder = tmp_path_factory.mktemp("tokenizers")
    text = folder / "text.txt"
    text.write_text("\n".join(20 * ENGLISH + [text for text, _ in SENTENCES.values()]), encoding="utf-8")
    found = {"bytes": Subwords.of_bytes(), "characters": Subwords.of_characters("abcdefghijklmnopqrstuvwxyz'é")}
    for name in KINDS[:4]:
        kind, _, small = name.partition(", ")
        train_tokenizer([text], folder / f"{name}.json", public=True, kind=kind, size=700, lower_case=bool(small))
        found[name] = Subwords.load(folder / f"{name}.json")
    return found


@pytest.fixture(scope="session")
def piece_runs(tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, Subwords]) -> list[Path]:
    folder = tmp_path_factory.mktemp("pieces")
    return [
        make_run(folder / "transformer", kind="transformer", tokenizer=tokenizers["bpe"]),
        make_run(folder / "gru", kind="gru", private=False, tokenizer=tokenizers["wordpiece, small"]),
    ]


@pytest.fixture(scope="session")
def address(piece_runs: list[Path]) -> Any:
    for run in piece_runs:
        export_run(run, run / "onnx", weights="float32")
    with keyboard(*piece_runs) as address:
        yield address


@pytest.fixture(scope="module")
def in_page(chromium: Any, address: str) -> Any:
    page = chromium.new_page()
    page.goto(address)
    yield lambda script, *values: page.evaluate(script, list(values))
    page.close()


def facts_of(tokenizer: Subwords) -> dict[str, Any]:
    from sottovoce.commands.export import _pieces

    specials = {f"<{name}>": token for name, token in tokenizer.specials._asdict().items() if token is not None}
    return {"facts": json.loads(_pieces(tokenizer)), "file": json.loads(tokenizer.contents), "specials": specials}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_words_are_those_of_python(in_page, tokenizers, kind):
    tokenizer = tokenizers[kind]
    pieces = pieces_of(tokenizer)
    starts = ["", "th", "Th", "don'", "Zü", "é", "हि", "写"]
    script = """async ([{facts, file, specials}, texts, starts]) => {
        const m = await import(new URL("pieces.js", document.baseURI)), pieces = new m.Pieces(facts, file, specials);
        const ids = texts.map((text) => pieces.encode(text));
        return [ids, ids.map((each) => pieces.wordsOf(each)), starts.map((typed) => pieces.asRead(typed))]; }"""
    ids, words, read = in_page(script, facts_of(tokenizer), TYPED, starts)
    assert ids == [tokenizer.encode(text)[1:-1] for text in TYPED]
    for text, found in zip(TYPED, words, strict=True):
        expected = words_of(pieces, tokenizer.encode(text)[1:-1])
        given = [(w["place"], w["end"], w["text"].encode("latin-1"), w["afterWord"], w["known"]) for w in found]
        assert given == [(w.place, w.end, w.text, w.after_word, w.known) for w in expected], text
    assert [each.encode("latin-1") for each in read] == [_as_read(tokenizer, typed) for typed in starts]


SUGGEST = """async ([number, cases]) => {
    const { models } = await (await fetch("models.json")).json();
    const { loadModel } = await import(new URL("model.js", document.baseURI));
    const model = await loadModel(number, models[number]), found = [];
    model.pieces.lowers = false; // as Python writes them
    for (const [text, typed] of cases) found.push((await model.suggest({before: text + " " + typed}, 3)).offered);
    return found; }"""


@pytest.mark.parametrize("number", [0, 1])
def test_whole_words_are_those_of_python(in_page, piece_runs, number):
    model, tokenizer = (folder := ModelFolder.open(piece_runs[number])).model, folder.tokenizer
    cases = [("", ""), ("what do you", ""), ("what do you", "th"), ("It was, so", "w"), ("see <url>", "b"), ("(", "we")]
    for (text, typed), found in zip(cases, in_page(SUGGEST, number, cases), strict=True):
        expected = suggest(model, tokenizer, text, 3, typed)
        assert [one["word"] for one in found] == [word for word, _ in expected]
        np.testing.assert_allclose([one["chance"] for one in found], [each for _, each in expected], rtol=1e-4)


def saved(model, tokenizer, text: str) -> tuple[int, int]:
    """Characters of a text, and those that are typed where words are taken as soon as they show: the definition."""
    pieces, tokens = pieces_of(tokenizer), tokenizer.encode(text)[1:-1]
    characters = typed = sum(not letter.isspace() for letter in text)
    for word in words_of(pieces, tokens):
        read = jnp.asarray([tokenizer.specials.bos, *tokens[: word.place]])
        outputs, state = model.read(read, model.initial_state())
        assert word.place == 0 or word.after_word == ends_in_word(pieces, tokens[: word.place])
        cost = letters_to_type(model, pieces, Place(state, outputs[-1], word.after_word), word.text, 3)
        typed -= word.letters - cost
    return characters, typed


def keys(page, model=0):
    settle(page)
    return page.locator(".model").nth(model).locator(".key")


def words(page, model=0):
    return keys(page, model).locator("b").all_inner_texts()


def test_a_person_types_whole_words(watched, address, piece_runs):
    page = watched(address)
    field = page.get_by_label("Your text")
    field.press_sequentially("What do you th")
    first, tokenizer = (folder := ModelFolder.open(piece_runs[0])).model, folder.tokenizer
    assert words(page) == [word for word, _ in suggest(first, tokenizer, "What do you", 3, "th")]
    assert all(word.startswith("th") for word in words(page) + words(page, 1))
    taken = words(page)[0]
    page.keyboard.press("Alt+1")
    settle(page)
    assert field.input_value() == f"What do you {taken} "
    total = 9 + len(taken)
    assert page.locator("#counts").inner_text() == f"11 of {total} characters typed, {len(taken) - 2} filled in"
    field.fill("the time of ")
    settle(page)
    for number, run in enumerate(piece_runs):
        characters, typed = saved((folder := ModelFolder.open(run)).model, folder.tokenizer, "the time of")
        line = page.locator(".potential").nth(number).inner_text()
        assert line.startswith(f"{100 * (1 - typed / characters):.0f}% of {characters} characters saved")
    field.fill("so. t")  # a model that reads no capitals: the page writes them, as everywhere
    assert all(word.startswith("T") for word in words(page, 1))
    assert all(word.startswith("t") for word in words(page))
    field.fill("so. ")
    assert all(word[0] == word[0].upper() for word in words(page, 1))


def test_typing_on_is_never_answered_with_old_words(watched, address):
    page = watched(address)
    field = page.get_by_label("Your text")
    field.press_sequentially("what do you think of the w", delay=5)
    assert all(word.startswith("w") for word in words(page) if word != "–")
    page.context.set_offline(True)
    loaded = len(page.asked)
    field.press_sequentially("ord ")
    settle(page)
    assert page.asked[loaded:] == []


@pytest.mark.parametrize(("name", "width"), [("wide", 1400), ("phone", 390)])
def test_pictures(watched, address, name, width):
    page = watched(address, viewport={"width": width, "height": 844})
    page.get_by_label("Your text").press_sequentially("What do you th")
    settle(page)
    picture(page, f"keyboard-pieces-{name}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
