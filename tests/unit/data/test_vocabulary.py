"""Ids are stable, specials cannot be typed, sizes are exact."""

from pathlib import Path

import numpy as np
import pytest

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS, FRAME, PLACEHOLDERS, SPECIALS, UNK, tokenise
from sottovoce_evidence.errors import SottoError

SMALL = Vocabulary.from_words(["the", "cat", "sat", "don't", "7"])


@pytest.fixture(scope="module")
def public() -> Vocabulary:
    return Vocabulary.public(2_000)


def test_ids_begin_with_specials_placeholders_and_punctuation() -> None:
    assert (SMALL.words[BOS], SMALL.words[EOS], SMALL.words[UNK]) == SPECIALS
    assert SMALL.words[3:7] == PLACEHOLDERS
    assert set(SMALL.words[7:39]) == set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    assert SMALL.words[39:] == ("the", "cat", "sat", "don't", "7")


def test_encode_puts_the_text_between_begin_and_end() -> None:
    ids = SMALL.encode("The cat, <user>, don’t purr 7")
    assert ids[0] == BOS
    assert ids[-1] == EOS
    assert SMALL.decode(ids) == "<bos> the cat , <user> , don't <unk> 7 <eos>"
    assert SMALL.encode("") == [BOS, EOS]


@pytest.mark.parametrize("text", ["The cat purrs", "", "naïve <user>, 🙂 cat", "the <eos> " + "z" * 300])
def test_a_measured_text_is_the_text_and_the_lengths_of_its_unknown_words(text: str) -> None:
    ids, lengths = SMALL.separate(np.array(SMALL.encode_measured(text)))
    assert ids.tolist() == SMALL.encode(text)
    unknown = [word for word in tokenise(text) if word not in SMALL.words[3:]]
    assert lengths.tolist() == [min(len(word), 255) for word in unknown]


@pytest.mark.parametrize("typed", ["<bos>", "<eos>", "<unk>", "<BOS>", "<Eos>"])
def test_specials_cannot_be_typed(typed: str) -> None:
    assert SMALL.encode(f"the {typed} cat") == [BOS, SMALL.words.index("the"), UNK, SMALL.words.index("cat"), EOS]


def test_word_mask_is_true_for_words_and_numbers_only() -> None:
    vocabulary = Vocabulary((*FRAME, "<date>", "été", "12", "…", "don't"))
    assert vocabulary.word_mask.tolist() == [False] * len(FRAME) + [False, True, True, False, True]
    assert vocabulary.is_word(len(FRAME) + 1)
    assert not vocabulary.is_word(UNK)
    assert not vocabulary.word_mask.flags.writeable


def test_public_vocabulary_has_exactly_the_size_asked_for(public: Vocabulary) -> None:
    assert public.size == 2_000
    assert public.words[: len(FRAME)] == FRAME
    assert {"the", "to", "and", "don't", "7"} <= set(public.words)
    assert all(tokenise(word) == [word] for word in public.words)
    assert not [word for word in public.words if len(word) > 1 and any(map(str.isdigit, word))]
    assert public.word_mask[len(FRAME) :].all()


def test_saved_and_loaded_is_the_same(public: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    public.save(path)
    assert path.read_text(encoding="utf-8").splitlines() == list(public.words)
    loaded = Vocabulary.load(path)
    assert loaded == public
    assert loaded.fingerprint == public.fingerprint
    assert Vocabulary.from_file(path) == public


def test_fingerprint_tells_order_apart() -> None:
    other = Vocabulary.from_words(["cat", "the", "sat", "don't", "7"])
    assert set(other.words) == set(SMALL.words)
    assert other.fingerprint != SMALL.fingerprint


def test_word_list_with_columns_doubles_specials_and_unusable_words(tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    path.write_text("\ufeffThe\t0.05\n\n,\t0.04\ncat 12\nthe\t0.01\n<eos>\nu.s\nété\n<date>\n", encoding="utf-8")
    assert Vocabulary.from_file(path).words == (*FRAME, "the", "cat", "été")


@pytest.mark.parametrize(
    "content",
    ["", "the\ncat\n", "<bos>\n<eos>\n<unk>\ncat\ncat\n", "<bos>\n<eos>\n<unk>\nthe cat\n", "<bos>\n<eos>\n<unk>\n\n"],
)
def test_a_file_that_is_no_saved_vocabulary_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_text(content)
    with pytest.raises(SottoError, match="is not a saved vocabulary") as caught:
        Vocabulary.load(path)
    assert "\n" not in str(caught.value)


def test_what_evaluation_asks_of_words() -> None:
    assert SMALL.is_words
    assert not SMALL.space_inside
    assert not SMALL.joins.any()
    assert [SMALL.bytes_of(token) for token in (0, 1, 2, 3, 42)] == [b"", b"", b"", b"<url>", b"don't"]
    assert SMALL.fold("Don’t") == "don't"


def test_a_language_is_kept_with_the_words(tmp_path: Path) -> None:
    thai = Vocabulary.from_words(["ภาษา", "ไทย", "ภาษาไทย"], language="th")
    assert thai.words[len(FRAME) :] == ("ภาษา", "ไทย")  # the third is two words
    thai.save(tmp_path / "vocabulary.txt")
    assert (tmp_path / "vocabulary.txt").read_text(encoding="utf-8").startswith("# language: th\n<bos>\n")
    assert Vocabulary.load(tmp_path / "vocabulary.txt") == Vocabulary.from_file(tmp_path / "vocabulary.txt") == thai
    assert thai.fingerprint != Vocabulary(thai.words).fingerprint
    assert thai.encode("ภาษาไทย") == [BOS, len(FRAME), len(FRAME) + 1, EOS]
    assert Vocabulary.from_words(["a"]).contents.startswith(b"<bos>\n")
    with pytest.raises(SottoError, match="language=de is not that of"):
        Vocabulary.from_file(tmp_path / "vocabulary.txt", language="de")


@pytest.mark.parametrize("code", ["tr", "zh", "ar"])
def test_public_words_of_other_languages_meet_their_text(code: str) -> None:
    public = Vocabulary.public(300, code)
    assert (public.size, public.language) == (300, code)
    assert all(tokenise(word, public.rules) == [word] for word in public.words[len(FRAME) :])
    text = {"tr": "BU İYİ", "zh": "我们的。", "ar": "مِن هٰذا"}[code]
    assert UNK not in public.encode(text)
