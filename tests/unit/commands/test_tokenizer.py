"""Which tokenizer a store gets; tokenizers are trained on public text alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.commands.tokenizer import KINDS, TokenizerChoice, train_tokenizer
from sottovoce.data.demo import demo_texts
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.subwords import Subwords
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from tokenizer_examples import byte_level

TEXT = "".join(f"{text} the cat sat\n" for user in range(30) for text in demo_texts(1, user))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "public.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_words_of_a_language_are_its_public_list() -> None:
    words, source = TokenizerChoice(200, language="de").open()
    assert words == Vocabulary.public(200, "de")
    assert source == {"source": "public", "list": "wordfreq", "language": "de"}
    assert TokenizerChoice(200).open()[1] == {"source": "public", "list": "wordfreq"}


def test_own_words_are_the_most_frequent_of_public_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Вода и хлеб\nвода\n", encoding="utf-8")
    words, source = TokenizerChoice(language="ru", text=[tmp_path / "text.txt"]).open()
    assert source == {"source": "public", "list": "own words", "language": "ru"}
    assert words.words[words.frame_size] == "вода"
    assert set(words.words[words.frame_size :]) == {"вода", "и", "хлеб"}
    with pytest.raises(SottoError, match="leave one of them out"):
        TokenizerChoice(tokenizer="bytes", text=[tmp_path / "text.txt"])


def test_a_list_of_words_may_have_a_language(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("ภาษา\nไทย\n", encoding="utf-8")
    words, source = TokenizerChoice(vocabulary=tmp_path / "list.txt", language="th").open()
    assert words.language == "th"
    assert source == {"source": "file", "file": "list.txt"}


def test_bytes_characters_and_files(tmp_path: Path) -> None:
    assert TokenizerChoice(tokenizer="bytes").open() == (Subwords.of_bytes(), {"source": "public", "list": "bytes"})
    characters, source = TokenizerChoice(tokenizer="characters", language="hi").open()
    assert characters.kind == "characters"
    assert source == {"source": "public", "list": "characters", "language": "hi"}
    assert characters.specials.unk is None
    assert len(characters.encode("हिन्दी")) == 2 + len("हिन्दी")
    (tmp_path / "own.json").write_bytes(byte_level().contents)
    own = TokenizerChoice(tokenizer=str(tmp_path / "own.json"))
    assert own.open() == (byte_level(), {"source": "file", "file": "own.json"})
    with pytest.raises(
        SottoError, match=r"tokenizer=bpe does not exist; name a tokenizer\.json, or bytes, or characters"
    ):
        TokenizerChoice(tokenizer="bpe").open()


def test_tokens_are_said_once() -> None:
    with pytest.raises(SottoError, match="--vocabulary and --tokenizer both say"):
        TokenizerChoice(tokenizer="bytes", vocabulary=Path("w.txt"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_tokenizer_writes_its_text(kind: str, public: Path, tmp_path: Path) -> None:
    made = train_tokenizer([public], tmp_path / "t.json", public=True, kind=kind, size=600)
    tokenizer = Subwords.load(tmp_path / "t.json")
    assert (made.kind, made.size, made.fingerprint) == (kind, tokenizer.size, tokenizer.fingerprint)
    assert tokenizer.size <= 600
    assert made.bytes_per_token > 2
    assert (tokenizer.specials.unk is None) == (kind == "bpe")
    ids = tokenizer.encode("the cat sat")
    assert tokenizer.decode(ids[1:-1]).strip() == "the cat sat"
    assert tokenizer.joins[ids].tolist()[2:] == [False, False, False]


def test_text_may_become_lower_case(public: Path, tmp_path: Path) -> None:
    train_tokenizer([public], tmp_path / "t.json", public=True, size=300, lower_case=True)
    tokenizer = Subwords.load(tmp_path / "t.json")
    assert tokenizer.encode("THE Cat") == tokenizer.encode("the cat")


def _refused(tmp_path: Path, *text: Path, **settings) -> str:
    with pytest.raises(SottoError) as caught:
        train_tokenizer(text, tmp_path / "t.json", **{"public": True, **settings})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "t.json").exists()
    return str(caught.value)


def test_text_of_people_is_refused(public: Path, tmp_path: Path) -> None:
    """A tokenizer learned from it would be a release that nobody charged."""
    prepare([("ann", "the cat"), ("bob", "a dog")], tmp_path / "store", Vocabulary.public(100), Grouping(test_users=0))
    (tmp_path / "store" / "notes").mkdir()
    (tmp_path / "store" / "notes" / "copied.txt").write_text(TEXT)
    (tmp_path / "people.jsonl").write_text('{"user": "ann", "text": "the cat"}\n')
    assert "is in the store" in _refused(tmp_path, tmp_path / "store")
    assert "is in the store" in _refused(tmp_path, public, tmp_path / "store" / "notes" / "copied.txt")
    assert "belong to users" in _refused(tmp_path, tmp_path / "people.jsonl")
    assert "say that the text is public" in _refused(tmp_path, public, public=False)


def test_bad_settings_are_refused(public: Path, tmp_path: Path) -> None:
    assert "size=257 must be in [258," in _refused(tmp_path, public, size=257)
    assert "size=2 must be in [4," in _refused(tmp_path, public, size=2, kind="unigram")
    assert "one of bpe, unigram, wordpiece" in _refused(tmp_path, public, kind="words")
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "holds no text" in _refused(tmp_path, tmp_path / "empty.txt")
    assert "name at least one file" in _refused(tmp_path)
    (tmp_path / "t.json").touch()
    with pytest.raises(SottoError, match="exists"):
        train_tokenizer([public], tmp_path / "t.json", public=True)
