"""Tokens that are pieces of words, characters or bytes: the `tokenizer.json` of Hugging Face's library `tokenizers`."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.contexts import last_values, token_of
from sottovoce.data.tokenizer import (
    LONGEST_COUNTED,
    Specials,
    TokenColumn,
    fixed_mask,
    separate_unknown,
    texts_of,
    wide_tokens,
)
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import TOKENS, Json, read_plain

TOKENIZER = "tokenizer.json"
MOST_HOLES = 2**16  # ids that no token has: a file of a few bytes may have an id of any size, and each takes memory
KINDS = {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "wordpiece"}
# In the order in which they are looked for among the added tokens of a file.
BOS_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "[CLS]", "<|im_start|>")
EOS_NAMES = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]", "[SEP]", "<|im_end|>")
_SPACE = "▁"  # how SentencePiece writes a space
_BYTES = tuple(f"<0x{number:02X}>" for number in range(256))
_JOINERS = "\u200c\u200d"
_NAMED = ("<s>", "</s>")
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@dataclass(frozen=True)
class Subwords:
    """A tokenizer from the contents of a `tokenizer.json`, which are kept as they are.

    `specials` are found among the added tokens of the file by their usual names. A text begins with `bos` and ends with
    `eos`, which must be two tokens: `bos` is never predicted. Where the file has none of them, or one token for both
    as GPT-2 has, `bos` is the first id after those of the file (`file_size`), and `eos` the next. There is an `unk`
    only where some text cannot be written: not if the file has all 256 bytes.
    """

    contents: bytes = field(repr=False)
    name: str = field(default=TOKENIZER, compare=False)  # of the file, for errors

    def __post_init__(self) -> None:
        self._check()

    def __repr__(self) -> str:
        return f"<Subwords: {self.size:,} tokens, {self.kind}>"

    @classmethod
    def load(cls, path: str | Path) -> Subwords:
        """Read a `tokenizer.json`. What cannot be read, or cannot write text, is refused."""
        path = Path(path)
        if not path.is_file():
            raise SottoError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; name a {TOKENIZER}")
        try:
            return cls(read_plain(path, TOKENS), str(path))
        except OSError as error:
            raise SottoError(f"cannot read {path}: {error.strerror}") from None

    @classmethod
    def of_bytes(cls) -> Subwords:
        """The 256 bytes of UTF-8, and the specials. It writes every text."""
        return cls(_written(_NAMED, _letters_of_bytes(), _BYTE_LEVEL, _BYTE_LEVEL))

    @classmethod
    def of_characters(cls, characters: Iterable[str]) -> Subwords:
        """These characters, the space among them, the specials, and 256 bytes with which all others are written."""
        pieces = [*_BYTES, *dict.fromkeys([" ", *characters])]
        return cls(_written(_NAMED, pieces, None, {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}))

    @property
    def kind(self) -> str:
        """bpe, unigram or wordpiece; bytes or characters where no pieces were learned."""
        if self._type == "BPE" and not self._model["merges"]:
            return "bytes" if self._spelling == "byte level" else "characters"
        return KINDS[self._type]

    @property
    def language(self) -> str:
        return "en"

    @property
    def file_name(self) -> str:
        return TOKENIZER

    @cached_property
    def fingerprint(self) -> str:
        return blake2b(self.contents, digest_size=16).hexdigest()

    @cached_property
    def file_size(self) -> int:
        """The number of ids that the file has; `bos` and `eos` may follow them."""
        return max(self._ids.values()) + 1

    @property
    def size(self) -> int:
        return max(self.file_size, self.specials.bos + 1, self.specials.eos + 1)

    @cached_property
    def specials(self) -> Specials:
        added = {token["content"]: token["id"] for token in self._json.get("added_tokens") or ()}
        bos = next((added[name] for name in BOS_NAMES if name in added), self.file_size)
        after = max(self.file_size, bos + 1)
        eos = next((added[name] for name in EOS_NAMES if name in added and added[name] != bos), after)
        last = range(self.file_size - len(self.contexts), self.file_size)
        return Specials(bos, eos, None if self._writes_all else self._unk, tuple(last))

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """The values of the last added tokens, if these are the last ids of the file too."""
        added = sorted(self._json.get("added_tokens") or (), key=lambda token: token["id"])
        values = last_values([token["content"] if token.get("special") else "" for token in added])
        ids = [token["id"] for token in added[len(added) - len(values) :]]
        return values if ids == [*range(self.file_size - len(values), self.file_size)] else ()

    def with_contexts(self, values: Sequence[str]) -> Subwords:
        if self.kind not in ("bytes", "characters") or self.size != self.file_size:
            raise SottoError(
                f"contexts need a token each, and {self.name} has none to spare: a model that was trained with it has "
                f"no row for more; take words, bytes or characters, or leave the contexts out"
            )
        return self._with_added([*self._json["added_tokens"]], dict(self._model["vocab"]), values)

    def without_contexts(self) -> Subwords:
        if not self.contexts:
            return self
        names = {*map(token_of, self.contexts)}
        added = [token for token in self._json["added_tokens"] if token["content"] not in names]
        return self._with_added(added, {name: id for name, id in self._model["vocab"].items() if name not in names})

    def _with_added(self, added: list[Json], ids: dict[str, int], values: Sequence[str] = ()) -> Subwords:
        """The same file with these added tokens and ids, and after them a token for each value."""
        for number, name in enumerate(map(token_of, values), self.file_size):
            ids[name] = number
            added.append({**added[-1], "id": number, "content": name, "special": True})
        return Subwords(_as_file({**self._json, "added_tokens": added, "model": {**self._model, "vocab": ids}}))

    @property
    def is_words(self) -> bool:
        return False

    @property
    def space_inside(self) -> bool:
        return self._spelling != "prefix"

    @cached_property
    def joins(self) -> np.ndarray:
        """True where a token begins with a letter, and not with a space; in WordPiece, where it has the prefix ##.

        A byte of a character that has several is taken for a letter. An apostrophe before a letter joins: "don't".
        """
        if self._spelling == "prefix":
            prefix = self._model["continuing_subword_prefix"]
            return self._mask(lambda token: self._pieces.get(token, "").startswith(prefix))
        return self._mask(lambda token: _begins_with_letter(self._text(token)))

    @cached_property
    def word_mask(self) -> np.ndarray:
        return fixed_mask(np.zeros(self.size, bool))

    @cached_property
    def starts_word(self) -> np.ndarray:
        """True where a token is a space and a letter; in WordPiece, where it is a letter and does not join."""

        def starts(token: int) -> bool:
            text = self._text(token)
            if token == self.specials.unk:
                return True
            after_space = text.lstrip(" ")
            return (after_space != text or not self.space_inside) and _begins_with_letter(after_space)

        return fixed_mask(self._mask(starts) & ~self.joins)

    @cached_property
    def typed_mask(self) -> np.ndarray:
        return self._mask(lambda token: bool(self._bytes[token]))

    def fold(self, text: str) -> str:
        return text

    def encode(self, text: str) -> list[int]:
        """The ids of a text, from `bos` to `eos`. The name of a special token in a text is written letter by letter."""
        return self.separate(np.array(self.encode_measured(text)))[0].tolist()

    def encode_measured(self, text: str) -> list[int]:
        """As `encode`, but what cannot be written keeps its length: n letters become the number size + n."""
        return self._measured(text, self._library.encode(text, add_special_tokens=False))

    def encode_many(self, texts: Any) -> TokenColumn:
        """`encode_measured` of each text of an Arrow array of strings; the library uses all cores."""
        written = texts_of(texts)
        found = self._library.encode_batch(written, add_special_tokens=False)
        return TokenColumn.of(map(self._measured, written, found), wide_tokens(self.size))

    def _measured(self, text: str, found: Any) -> list[int]:
        bos, eos, unk, _ = self.specials
        ids = found.ids
        if bos in ids or eos in ids:  # a vocabulary may have its specials among the pieces of text, too
            kept = [place for place, token in enumerate(ids) if token not in (bos, eos)]
            ids, spans = [ids[place] for place in kept], [found.offsets[place] for place in kept]
        else:
            spans = found.offsets
        if unk is not None and unk in ids:
            lengths = (min(max(len(text[start:end].strip()), 1), LONGEST_COUNTED) for start, end in spans)
            ids = [self.size + length if token == unk else token for token, length in zip(ids, lengths, strict=True)]
        return [bos, *ids, eos]

    def separate(self, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids that `encode_measured` gave, and the lengths of what could not be written, in order."""
        return separate_unknown(measured, self.size, self.specials.unk)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids, special tokens by their names."""
        written = bytearray()
        for token in map(int, ids):
            if written and not self.space_inside and not self.joins[token]:
                written += b" "
            written += self._bytes[token] or self.text_of(token).encode()
        return written.decode(errors="replace")

    def text_of(self, token: int) -> str:
        """The characters of one token, its space among them; of a special token its name."""
        if not self._bytes[token]:
            return self._pieces.get(token, "<bos>" if token == self.specials.bos else "<eos>")
        return self._bytes[token].decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        return self._bytes[token]

    @cached_property
    def _json(self) -> dict[str, Any]:
        if self.contents[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"):
            raise SottoError(f"{self.name} is a pickle, which can run any program and is not read; name a {TOKENIZER}")
        try:
            found = json.loads(self.contents)
        except (ValueError, RecursionError) as error:
            cut = " (is the file cut off?)" if self.contents[:1] == b"{" else ""
            reason = " ".join(str(error).split())
            raise SottoError(f"{self.name} is not a {TOKENIZER} of Hugging Face{cut}: {reason}") from None
        if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
            raise SottoError(f"{self.name} is not a {TOKENIZER} of Hugging Face: it has no model; name another file")
        return found

    @property
    def _model(self) -> dict[str, Any]:
        return self._json["model"]

    @cached_property
    def _type(self) -> str:
        """The type of the model. Files of the library's first versions do not name it."""
        if "type" in self._model:
            return str(self._model["type"])
        signs = {"merges": "BPE", "unk_id": "Unigram", "max_input_chars_per_word": "WordPiece"}
        return next((kind for sign, kind in signs.items() if sign in self._model), "that is not named")

    @cached_property
    def _library(self) -> Any:
        """The library's object. It makes pieces of text alone: no special token, nothing cut, nothing padded."""
        library = needs_library()
        try:
            made = library.Tokenizer.from_buffer(self.contents)
        except Exception as error:  # noqa: BLE001 -- the library raises no narrower one
            reason = " ".join(str(error).split())
            raise SottoError(
                f"{self.name} is not a whole {TOKENIZER} of Hugging Face ({reason}); name another"
            ) from None
        made.encode_special_tokens = True
        made.no_truncation()
        made.no_padding()
        return made

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._library.get_vocab(with_added_tokens=True)

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {token: piece for piece, token in self._ids.items()}

    @cached_property
    def _spelling(self) -> str:
        """How a piece says which bytes it stands for, and where words begin; empty where it does not."""
        parts = [part for step in ("normalizer", "pre_tokenizer", "decoder") for part in _parts(self._json.get(step))]
        if any(part.get("type") == "ByteLevel" for part in parts):
            return "byte level"
        if any(part.get("type") == "Metaspace" or part.get("content") == _SPACE for part in parts):
            return "metaspace"
        if self._model.get("continuing_subword_prefix"):
            return "prefix"
        return "" if self._json.get("pre_tokenizer") else "plain"

    @cached_property
    def _unk(self) -> int | None:
        if self._type == "Unigram":
            return self._model.get("unk_id")
        return self._model["vocab"].get(self._model.get("unk_token") or "")

    @cached_property
    def _writes_all(self) -> bool:
        if self._spelling == "byte level":
            return all(letter in self._ids for letter in _letters_of_bytes())
        return bool(self._model.get("byte_fallback")) and all(name in self._ids for name in _BYTES)

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        """The bytes of every token."""
        hidden = {token["id"] for token in self._json.get("added_tokens") or () if token.get("special")}
        literal = {token["id"] for token in self._json.get("added_tokens") or ()}
        hidden |= {self.specials.bos, self.specials.eos, self._unk if self._unk is not None else -1}
        of_letter = _letters_of_bytes()
        fallback = (
            {name: bytes([number]) for number, name in enumerate(_BYTES)} if self._model.get("byte_fallback") else {}
        )
        prefix = self._model.get("continuing_subword_prefix") or ""

        def bytes_of(token: int) -> bytes:
            piece = self._pieces.get(token)
            if piece is None or token in hidden:
                return b""
            if token in literal:
                return piece.encode()
            if self._spelling == "byte level":
                return b"".join(bytes([of_letter[c]]) if c in of_letter else c.encode() for c in piece)
            if self._spelling == "prefix":
                return piece.removeprefix(prefix).encode()
            return fallback.get(piece) or piece.replace(_SPACE, " ").encode()

        return tuple(map(bytes_of, range(self.size)))

    def _text(self, token: int) -> str:
        """The characters of a token; a byte that is not a whole character is a letter."""
        return self._bytes[token].decode(errors="replace").replace("\ufffd", "a")

    def _mask(self, holds: Callable[[int], bool]) -> np.ndarray:
        return fixed_mask([holds(token) for token in range(self.size)])

    def _check(self) -> None:
        """Refuse what could not write text, before anything is encoded."""
        if self._type not in KINDS:
            known = f"those of {', '.join(KINDS)} can be used"
            raise SottoError(
                f"{self.name} has a model of type {self._type}; {known}; for whole words give --vocabulary"
            )
        if self._model.get("end_of_word_suffix") or not self._spelling:
            raise SottoError(
                f"the pieces of {self.name} do not say where words begin; train one with a space in its pieces "
                f"(pre-tokenizer ByteLevel or Metaspace) or with WordPiece's prefix, as `sotto tokenizer train` does"
            )
        if not self._ids:
            raise SottoError(f"{self.name} has no token; name another file")
        if (holes := self.file_size - len(self._ids)) > MOST_HOLES:
            raise SottoError(
                f"{self.name} has an id of {self.file_size - 1:,} and {len(self._ids):,} tokens: {holes:,} ids of no "
                f"token, more than {MOST_HOLES:,}; name another file"
            )
        if self._unk is None and not self._writes_all:
            raise SottoError(
                f"{self.name} cannot write every text: it has no token for what is unknown, and not all 256 bytes; "
                f"give it an unk_token, or train it with bytes (ByteLevel, or byte_fallback)"
            )


def needs_library() -> Any:
    """The library `tokenizers`, which the extra `subwords` brings."""
    try:
        import tokenizers
    except ImportError:
        raise SottoError("a tokenizer of this kind needs tokenizers; `pip install 'sottovoce[subwords]'`") from None
    return tokenizers


def _written(specials: Sequence[str], pieces: Iterable[str], pre_tokenizer: Json | None, decoder: Json) -> bytes:
    """A `tokenizer.json` of single characters: BPE without merges. The same bytes in every version of the library."""
    ids = {piece: number for number, piece in enumerate((*specials, *pieces))}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": pre_tokenizer is None,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [],
    }
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[name], "content": name, **flags} for name in specials],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    return _as_file(written)


def _as_file(contents: Json) -> bytes:
    return (json.dumps(contents, ensure_ascii=False, indent=1) + "\n").encode()


def _parts(step: object) -> Iterator[dict[str, Any]]:
    """A step of a tokenizer, with the steps that are inside it and the patterns of these."""
    if isinstance(step, dict):
        yield step
        for inner in step.values():
            yield from _parts(inner)
    elif isinstance(step, list):
        for inner in step:
            yield from _parts(inner)


def _letters_of_bytes() -> dict[str, int]:
    """How byte-level tokenizers write each byte as a letter that can be seen (as GPT-2 does)."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [number for number in range(256) if number not in seen]
    return {chr(number): number for number in seen} | {chr(256 + place): each for place, each in enumerate(hidden)}


def _begins_with_letter(text: str) -> bool:
    """Does a text begin with a character of a word, or an apostrophe before one?"""
    if text[:1] in ("'", "’"):
        text = text[1:]
    return bool(text) and (unicodedata.category(text[0])[0] in "LNM" or text[0] in _JOINERS)
