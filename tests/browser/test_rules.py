"""What the page computes by rules of its own is what Python computes: tokens, suggestions, letters to type."""

from __future__ import annotations

import random
import sys
import unicodedata

import numpy as np
import pytest

from sentences import SENTENCES
from sottovoce.data.languages import NAMES, SEGMENTED, find_language
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import tokenise
from sottovoce.evaluation.keystrokes import letters_to_type
from sottovoce.evaluation.suggestions import offer

pytestmark = pytest.mark.browser

TYPED = [
    "", " ", "Hello, World!", "Don’t stop", "it's o'clock 'quoted' ''", "don'", "rock 'n' roll", "10:30 3pm 1,000.5",
    "see <url> or <URL>, <eos> <a1> < b >", "https://example.org/a?b=c_d&e=f#g", "me@example.org", "@name #tag $5 50%",
    "İstanbul STRASSE straße ΑΣ ΑΣ. ǅ", "cafe\u0301 café", "naïve—dash–dash…", "_under_score__", "🙂👍🏽 ok", "x²½Ⅷ٣",
    "日本語 한국어 हिन्दी", "tab\tnew\nline\x85next\ufeffend\u200bzero", "a'b''c'd'", "ʼtis ’twas", "A\u0300'B",
]  # fmt: skip


@pytest.fixture(scope="module")
def in_page(chromium, one_model):
    """Call a function of the page's modules on a list of arguments."""
    page = chromium.new_page()
    page.goto(one_model)

    def call(module, code, values):
        imported = f"await import(new URL('{module}', document.baseURI))"
        script = f"async (values) => {{ const m = {imported}; return values.map(({code})); }}"
        return page.evaluate(script, values)

    yield call
    page.close()


def test_tokens_are_those_of_python_for_every_character(in_page):
    # Of the ideographs and syllables of East Asia, which are alike, every fortieth.
    codes = (code for code in range(1, sys.maxunicode) if code < 0x3400 or 0xF900 <= code < 0x17000 or not code % 40)
    letters = (chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    # Those that this Python does not know yet may be letters to a newer browser.
    known = [letter for letter in letters if unicodedata.category(letter) not in ("Cn", "Co")]
    assert len(known) > 20_000
    texts = [*TYPED, *(f"a{c}b'{c} 1{c}2 {c}{c}" for c in known)]
    wrong = []
    for start in range(0, len(texts), 10_000):
        some = texts[start : start + 10_000]
        found = in_page("tokens.js", "(text) => m.tokenise(text)", some)
        wrong += [(text, got) for text, got in zip(some, found, strict=True) if got != tokenise(text)]
    assert wrong == []


CUT = "({text, rules}) => m.tokenise(text, rules)"
OTHERWISE = ("km",)  # Chromium's dictionary of Khmer is another; the page says so


def rules_of(code: str) -> dict:
    return Vocabulary.from_words((), language=code).page_rules


@pytest.mark.parametrize("code", SENTENCES)
def test_sentences_of_every_language_are_cut_alike(in_page, code):
    sentence, words = SENTENCES[code]
    texts, rules = [*TYPED, sentence, words, f"{sentence} {sentence.upper()}"], rules_of(code)
    if "sample" in rules and code not in OTHERWISE:
        texts.append(rules["sample"]["text"])
    found = in_page("tokens.js", CUT, [{"text": text, "rules": rules} for text in texts])
    assert found == [tokenise(text, find_language(code)) for text in texts]


def test_the_letters_of_every_language_are_folded_alike(in_page):
    codes = (code for code in range(1, 0x3000) if unicodedata.category(chr(code)) not in ("Cn", "Co"))
    text, wrong = " ".join(f"a{chr(code)}b" for code in codes), []
    for code in sorted(set(NAMES) - set(SEGMENTED)):
        (found,) = in_page("tokens.js", CUT, [{"text": text, "rules": rules_of(code)}])
        wrong += [] if found == tokenise(text, find_language(code)) else [code]
    assert wrong == []


@pytest.mark.parametrize("code", SEGMENTED)
def test_a_page_tells_whether_its_browser_cuts_alike(in_page, code):
    rules = rules_of(code)
    other = {**rules, "sample": {**rules["sample"], "tokens": ["other", "words"]}}
    (found,) = in_page("tokens.js", CUT, [{"text": rules["sample"]["text"], "rules": rules}])
    alike = in_page("tokens.js", "(rules) => m.cutsAlike(rules)", [rules, other])
    assert alike == [found == rules["sample"]["tokens"], False]


def test_words_and_ids_are_those_of_the_vocabulary(in_page):
    vocabulary = Vocabulary.public(3000)
    code = """(words) => { const v = new m.Vocabulary(words, {"<bos>": 0, "<eos>": 1, "<unk>": 2});
        return [v.isWord, v.encode(["the", "<bos>", "<url>", "zzzz", "!", "don't"])]; }"""
    ((mask, ids),) = in_page("suggestions.js", code, [list(vocabulary.words)])
    assert mask == vocabulary.word_mask.tolist()
    assert ids == vocabulary.encode("the <bos> <url> zzzz ! don't")[1:-1]


def test_suggestions_and_keystrokes_are_those_of_the_metric(in_page):
    vocabulary, generator, chooser = Vocabulary.public(600), np.random.default_rng(3), random.Random(3)
    cases = []
    for number in range(40):
        scores = generator.normal(size=vocabulary.size).astype(np.float32)
        if number % 2:
            scores = np.round(scores)  # many are equal
        scores[generator.integers(vocabulary.size, size=9)] = np.nan
        words = [int(one) for one in generator.choice(np.flatnonzero(vocabulary.word_mask), 6)]
        typed = [vocabulary.words[word][: chooser.randrange(4)] for word in words]
        cases.append(([None if np.isnan(score) else float(score) for score in scores], scores, words, typed))
    code = """(one) => { const v = new m.Vocabulary(one.all, {"<bos>": 0, "<eos>": 1, "<unk>": 2});
        const scores = Float32Array.from(one.scores, (score) => score ?? NaN);
        return [one.typed.map((typed) => m.offer(scores, v, typed, 3)),
            one.words.map((id) => m.lettersToType(id, scores, v, 3))]; }"""
    given = [
        {"all": list(vocabulary.words), "scores": plain, "words": words, "typed": typed}
        for plain, _, words, typed in cases
    ]
    for (offered, letters), (_, scores, words, typed) in zip(
        in_page("suggestions.js", code, given), cases, strict=True
    ):
        assert offered == [offer(scores, vocabulary, some, 3) for some in typed]
        assert letters == [letters_to_type(word, scores, vocabulary) for word in words]
