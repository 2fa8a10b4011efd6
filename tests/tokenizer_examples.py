"""Small tokenizers of every kind, as a `tokenizer.json` of Hugging Face writes them."""

from __future__ import annotations

import json
from typing import Any

from sottovoce.data.subwords import Subwords

_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_BPE = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
}


def document(model: dict[str, Any], added: dict[str, int] | None = None, **steps: Any) -> dict[str, Any]:
    tokens = [{"id": id, "content": name, "special": True, **_FLAGS} for name, id in (added or {}).items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **steps,
        "model": model,
    }


def made(facts: dict[str, Any]) -> Subwords:
    return Subwords(json.dumps(facts).encode())


def bpe(pieces: list[str], merges: list[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys([*pieces, *map("".join, merges)]))}
    return {"type": "BPE", **_BPE, **settings, "vocab": vocab, "merges": [" ".join(pair) for pair in merges]}


def byte_level(merges: tuple[tuple[str, str], ...] = (("t", "h"), ("Ġ", "th"), ("Ġth", "e"), ("i", "n"))) -> Subwords:
    """As GPT-2 has it: one special token, for the end and the beginning of a text."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    letters = sorted(piece for piece in Subwords.of_bytes()._ids if len(piece) == 1)
    model = bpe(letters, list(merges))
    end = len(model["vocab"])
    model["vocab"]["<|endoftext|>"] = end
    return made(document(model, {"<|endoftext|>": end}, pre_tokenizer=level, decoder=level))


def wordpiece() -> Subwords:
    """As BERT has it."""
    pieces = ["[UNK]", "[CLS]", "[SEP]", "the", "cat", "sit", "##s", "##ting", ",", "'", "don", "t"]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: n for n, piece in enumerate(pieces)},
    }
    lower = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    added = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
    return made(document(model, added, normalizer=lower, pre_tokenizer={"type": "BertPreTokenizer"}, decoder=decoder))


def unigram() -> Subwords:
    """As SentencePiece makes it, without bytes: some text is unknown."""
    pieces = [
        ["<unk>", 0.0],
        ["<s>", 0.0],
        ["</s>", 0.0],
        ["▁the", -1.0],
        ["▁", -3.0],
        ["▁ca", -2.0],
        ["t", -3.0],
        ["s", -3.0],
        [".", -3.0],
    ]
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    return made(document(model, {"<unk>": 0, "<s>": 1, "</s>": 2}, pre_tokenizer=space, decoder=space))


def with_bytes() -> Subwords:
    """As Llama 2 has it: pieces with a mark for the space, and all bytes for the rest."""
    named = {"<unk>": 0, "<s>": 1, "</s>": 2}
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    model = bpe([*named, *bytes_, "▁", *"thecast"], [("t", "h"), ("th", "e"), ("▁", "the")], byte_fallback=True)
    model["unk_token"] = "<unk>"
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return made(document(model, named, normalizer=spaces, decoder={"type": "Sequence", "decoders": steps}))


def few_pieces() -> Subwords:
    """Twelve tokens, which are quickly searched: <unk>, a, b, c, a space, a dot, an apostrophe, " a", bc, " ab"."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = bpe(["<unk>", *"abcĠ.'"], [("Ġ", "a"), ("b", "c"), ("Ġa", "b")], unk_token="<unk>")
    return made(document(model, {"<unk>": 0}, pre_tokenizer=level, decoder=level))
