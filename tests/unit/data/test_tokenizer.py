"""What code outside `data/` asks of a tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.data.tokenizer import Specials, Tokenizer
from sottovoce.data.vocabulary import Vocabulary

WORDS = Vocabulary.from_words(["cat", "don't", "7"])


@pytest.mark.parametrize("tokenizer", [WORDS])
def test_specials_words_and_what_is_typed_are_told_apart(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Cat! <url> don't purr 7")
    bos, eos, unk, _ = tokenizer.specials
    assert (ids[0], ids[-1], ids.count(unk)) == (bos, eos, 1)
    assert [tokenizer.text_of(token) for token in ids[1:-1]] == ["cat", "!", "<url>", "don't", "<unk>", "7"]
    assert tokenizer.decode(ids[1:-1]) == "cat ! <url> don't <unk> 7"
    assert tokenizer.word_mask[ids].tolist() == [False, True, False, False, True, False, True, False]
    assert tokenizer.starts_word[ids].tolist() == [False, True, False, False, True, True, True, False]
    assert tokenizer.typed_mask[ids].tolist() == [False, True, True, False, True, False, True, False]
    for mask in (tokenizer.word_mask, tokenizer.starts_word, tokenizer.typed_mask):
        assert mask.shape == (tokenizer.size,)
        assert not mask.flags.writeable


def test_the_specials_of_words_are_the_first_ids() -> None:
    """Stores and models depend on it."""
    assert WORDS.specials == Specials(bos=0, eos=1, unk=2)
    assert np.all(np.flatnonzero(WORDS.word_mask) >= Vocabulary.frame_size)


def test_tokens_that_are_given_as_they_are_keep_their_order_after_the_frame() -> None:
    vocabulary = Vocabulary.from_tokens(["n't", "cat", "<unk>", "cat", "U.S."])
    assert vocabulary.words[Vocabulary.frame_size :] == ("n't", "cat", "U.S.")
