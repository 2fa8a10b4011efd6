"""Files of Hugging Face: ids, specials, bytes, where words go on; what cannot be used is refused in one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.data.subwords import Subwords
from sottovoce_evidence.errors import SottoError
from tokenizer_examples import bpe, byte_level, document, made, unigram, with_bytes, wordpiece

GPT2, BERT, PIECES, LLAMA = byte_level(), wordpiece(), unigram(), with_bytes()
BYTES, LETTERS = Subwords.of_bytes(), Subwords.of_characters("abcd'é")
ALL = (GPT2, BERT, PIECES, LLAMA, BYTES, LETTERS)
WRITES_ALL = (GPT2, LLAMA, BYTES, LETTERS)


def ids_of(tokenizer: Subwords, *pieces: str) -> list[int]:
    return [tokenizer._ids[piece] for piece in pieces]


def joined(tokenizer: Subwords, text: str) -> bytes:
    return b"".join(map(tokenizer.bytes_of, tokenizer.encode(text)))


def test_pieces_by_example() -> None:
    assert GPT2.encode("in the") == [GPT2.specials.bos, *ids_of(GPT2, "in", "Ġthe"), GPT2.specials.eos]
    assert BERT.encode("The cats, Sitting") == [1, *ids_of(BERT, "the", "cat", "##s", ",", "sit", "##ting"), 2]
    assert PIECES.encode("the cats") == [1, *ids_of(PIECES, "▁the", "▁ca", "t", "s"), 2]
    assert LLAMA.encode("the é") == [1, *ids_of(LLAMA, "the", "▁", "<0xC3>", "<0xA9>"), 2]
    assert BYTES.encode("a é") == [0, *ids_of(BYTES, "a", "Ġ", "Ã", "©"), 1]
    assert LETTERS.encode("aé z") == [0, *ids_of(LETTERS, "a", "é", " ", "<0x7A>"), 1]


def test_kinds_and_sizes() -> None:
    assert [each.kind for each in ALL] == ["bpe", "wordpiece", "unigram", "bpe", "bytes", "characters"]
    assert BYTES.size == 258
    assert LETTERS.size == 2 + 256 + 7
    assert [each.space_inside for each in ALL] == [True, False, True, True, True, True]
    assert not any(each.is_words or each.word_mask.any() for each in ALL)


def test_specials_are_found_or_follow_the_ids_of_the_file() -> None:
    assert BERT.specials[:3] == (1, 2, 0)
    assert PIECES.specials[:3] == (1, 2, 0)
    assert LLAMA.specials[:3] == (1, 2, None)  # it has <unk>, and writes everything without
    assert GPT2.specials[:3] == (GPT2.file_size, GPT2._ids["<|endoftext|>"], None)
    assert GPT2.size == GPT2.file_size + 1
    bare = made(document(bpe([f"<0x{number:02X}>" for number in range(256)], [], byte_fallback=True)))
    assert bare.specials[:3] == (256, 257, None)
    assert bare.size == 258


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda each: each.kind)
def test_specials_cannot_be_typed(tokenizer: Subwords) -> None:
    bos, eos, *_ = tokenizer.specials
    for name in ("<s>", "</s>", "<|endoftext|>", "[CLS]", "[SEP]"):
        inside = tokenizer.encode(f"the {name} cat")[1:-1]
        assert bos not in inside
        assert eos not in inside
        if tokenizer.specials.unk is None:
            assert joined(tokenizer, f"the {name} cat") == f"the {name} cat".encode()


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", WRITES_ALL, ids=lambda each: each.kind)
@examples(60)
@given(st.text())
def test_the_bytes_of_the_tokens_are_the_text(tokenizer: Subwords, text: str) -> None:
    if tokenizer is LLAMA:
        text = text.replace("▁", " ")
    assert joined(tokenizer, text) == text.encode(errors="surrogatepass")
    assert tokenizer.decode(tokenizer.encode(text)[1:-1]) == text


def test_joins_by_example() -> None:
    def joining(tokenizer: Subwords, text: str) -> list[bool]:
        return tokenizer.joins[tokenizer.encode(text)[1:-1]].tolist()

    assert joining(GPT2, "in the") == [True, False]
    assert joining(BERT, "the cats , sitting") == [False, False, True, False, False, True]
    assert joining(PIECES, "the cats.") == [False, False, True, True, False]
    assert joining(BYTES, "a b.é'") == [True, False, True, False, True, True, False]
    assert joining(LETTERS, "a b.é") == [True, False, True, False, True]


def test_where_words_begin_for_certain() -> None:
    assert GPT2.starts_word[ids_of(GPT2, "Ġthe", "in", ".")].tolist() == [True, False, False]
    assert BERT.starts_word[ids_of(BERT, "[UNK]", "the", "##s", ",")].tolist() == [True, True, False, False]
    assert not BYTES.starts_word.any()


def test_unknown_pieces_keep_their_lengths() -> None:
    measured = np.array(BERT.encode_measured("the zebra sits " + "x" * 300))
    ids, lengths = BERT.separate(measured)
    assert lengths.tolist() == [5, 255]
    assert ids.tolist() == BERT.encode("the zebra sits " + "x" * 300)
    assert ids.tolist() == [1, *ids_of(BERT, "the", "[UNK]", "sit", "##s", "[UNK]"), 2]
    ids, lengths = BYTES.separate(np.array(BYTES.encode_measured("é")))
    assert (ids.tolist(), lengths.tolist()) == (BYTES.encode("é"), [])


def test_text_of_tokens() -> None:
    assert GPT2.text_of(ids_of(GPT2, "Ġthe")[0]) == " the"
    assert GPT2.text_of(GPT2.specials.bos) == "<bos>"
    assert GPT2.text_of(GPT2.specials.eos) == "<|endoftext|>"
    assert BERT.decode(BERT.encode("the cats, sitting")) == "[CLS] the cats , sitting [SEP]"
    assert not GPT2.typed_mask[list(GPT2.specials[:2])].any()


def test_the_file_decides_the_fingerprint() -> None:
    assert byte_level() == GPT2
    assert GPT2.fingerprint == byte_level().fingerprint
    assert GPT2.fingerprint != byte_level((("t", "h"),)).fingerprint
    assert BYTES.fingerprint == "9b09c3a0ab3b91fbe1080f3e73c23626"  # whatever the version of the library


def _refused(tmp_path: Path, contents: bytes) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(contents)
    with pytest.raises(SottoError) as caught:
        Subwords.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.timeout(20)
def test_an_id_far_beyond_the_tokens_is_refused_at_once(tmp_path: Path) -> None:
    """Every id takes memory and time, and a file of a few bytes may have one of any size."""
    contents = json.loads(BYTES.contents)
    contents["model"]["vocab"]["Ā"] = 2**26
    line = _refused(tmp_path, json.dumps(contents).encode())
    assert "has an id of 67,108,864 and 258 tokens" in line
    contents["model"]["vocab"]["Ā"] = 300  # some have no token
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert Subwords.load(tmp_path / "tokenizer.json").size == 301


def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(SottoError, match=reason):
            Subwords.load(path)
    whole = GPT2.contents
    assert "is the file cut off?" in _refused(tmp_path, whole[: len(whole) // 2])
    assert "is a pickle" in _refused(tmp_path, pickle.dumps({"a": 1}))
    assert "is not a tokenizer.json" in _refused(tmp_path, b"the\ncat\n")
    assert "has no model" in _refused(tmp_path, b'{"a": 1}')
    assert "has no model" in _refused(tmp_path, b"[]")
    assert "type ['BPE']" in _refused(tmp_path, b'{"model": {"type": ["BPE"]}}')
    assert "type that is not named" in _refused(tmp_path, b'{"model": {}}')
    assert "is not a tokenizer.json" in _refused(tmp_path, b"[" * 100_000)
    assert "is not a whole tokenizer.json" in _refused(tmp_path, b'{"model": {"type": "BPE"}}')


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    def refused(model: dict[str, object], **steps: object) -> str:
        return _refused(tmp_path, json.dumps(document(model, **steps)).encode())

    words = {"type": "WordLevel", "vocab": {"the": 0}, "unk_token": "the"}
    assert "type WordLevel; those of BPE, Unigram, WordPiece can be used" in refused(words)
    assert "cannot write every text" in refused(bpe(["a", "b"], []))
    without = json.loads(BERT.contents)  # it is an added token, which the model does not know
    del without["model"]["vocab"]["[UNK]"]
    assert "cannot write every text" in _refused(tmp_path, json.dumps(without).encode())
    split = {"type": "WhitespaceSplit"}
    assert "do not say where words begin" in refused(bpe(["a"], [], unk_token="a"), pre_tokenizer=split)
    assert "do not say where words begin" in refused(bpe(["a</w>"], [], end_of_word_suffix="</w>"))


def test_many_texts_have_the_ids_of_each() -> None:
    texts = ["the cat", "", "日本 é", "<s> </s>", "x" * 40]
    for tokenizer in ALL:
        found = tokenizer.encode_many(pa.array(texts))
        alone = [tokenizer.encode_measured(text) for text in texts]
        assert found.lengths.tolist() == [len(ids) for ids in alone]
        assert found.tokens.tolist() == [token for ids in alone for token in ids]
