"""The tokenizer of a folder is read as it was written, whatever its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer, save_tokenizer
from sottovoce.data.vocabulary import Vocabulary, needs_words
from sottovoce_evidence.errors import SottoError
from tokenizer_examples import byte_level

WORDS = Vocabulary.from_words(["the", "cat"])


@pytest.mark.parametrize("tokenizer", [WORDS, byte_level()])
def test_a_saved_tokenizer_is_loaded_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = save_tokenizer(tokenizer, tmp_path)
    assert find_tokenizer(tmp_path) == path
    for loaded in (load_tokenizer(tmp_path), load_tokenizer(path)):
        assert loaded == tokenizer
        assert loaded.fingerprint == tokenizer.fingerprint


def test_a_folder_with_two_tokenizers_is_refused(tmp_path: Path) -> None:
    save_tokenizer(WORDS, tmp_path)
    save_tokenizer(byte_level(), tmp_path)
    with pytest.raises(SottoError, match="has both"):
        load_tokenizer(tmp_path)


def test_what_needs_words_refuses_pieces() -> None:
    assert needs_words(WORDS, "a demo") is WORDS
    with pytest.raises(SottoError, match="a demo needs tokens that are whole words, and these are bpe"):
        needs_words(byte_level(), "a demo")
