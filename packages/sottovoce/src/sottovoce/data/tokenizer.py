"""The contract of a tokenizer: text to token ids and back. Code outside `data/` asks it what a token is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from sottovoce.data.words import PLACEHOLDERS as PLACEHOLDERS  # a text has them whatever its tokens are

LONGEST_COUNTED = 255  # letters: a longer word was hardly typed by hand, and must not outweigh the rest of a text


class Specials(NamedTuple):
    """The ids of the tokens that no text contains."""

    bos: int  # begins a text: read first, never a target
    eos: int  # ends a text, and is a target
    unk: int | None  # stands for what the tokenizer cannot write; None where it can write everything
    contexts: tuple[int, ...] = ()  # begin a text in place of bos, where something is known of its writer

    @property
    def begins(self) -> tuple[int, ...]:
        """All tokens that begin a text, `bos` first. None of them is ever a target."""
        return (self.bos, *self.contexts)


@dataclass(frozen=True, eq=False)
class TokenColumn:
    """The tokens of many texts, one after another, and how many each text has."""

    tokens: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], wide: bool) -> TokenColumn:
        rows = [np.array(text, np.uint32 if wide else np.uint16) for text in texts]
        return cls(np.concatenate([*rows, np.empty(0, np.uint16)]), np.array([*map(len, rows)], np.int64))


class Tokenizer(Protocol):
    """Masks are arrays of bool with one entry for each id."""

    @property
    def size(self) -> int:
        """The number of ids: 0 to size - 1."""
        ...

    @property
    def specials(self) -> Specials: ...

    @property
    def contexts(self) -> tuple[str, ...]:
        """What may be known of a writer: the values that have the tokens `specials.contexts`, in their order."""
        ...

    def with_contexts(self, values: Sequence[str]) -> Tokenizer:
        """The same with a begin token for each value, after all other ids."""
        ...

    def without_contexts(self) -> Tokenizer:
        """The same without those."""
        ...

    @property
    def kind(self) -> str:
        """What its tokens are: words, bpe, unigram, wordpiece, bytes or characters."""
        ...

    @property
    def language(self) -> str:
        """The language whose rules cut the text, as a code such as "th"; "en" where none was named."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of what decides the ids of a text."""
        ...

    @property
    def file_name(self) -> str:
        """The name of its file in a folder."""
        ...

    @property
    def contents(self) -> bytes:
        """Its file."""
        ...

    @property
    def is_words(self) -> bool:
        """Is each word one token?"""
        ...

    @property
    def space_inside(self) -> bool:
        """Do tokens carry the spaces of the text? Where not, a space between two tokens is implied, unless the
        second one joins the first."""
        ...

    @property
    def joins(self) -> np.ndarray:
        """True where the token continues the word before it, if there is one: it begins with a letter, not a space."""
        ...

    @property
    def word_mask(self) -> np.ndarray:
        """True where the token is one whole word or number: never, where words have several tokens."""
        ...

    @property
    def starts_word(self) -> np.ndarray:
        """True where a word begins whatever comes before: at words, and at `unk`, which nearly always replaces one."""
        ...

    @property
    def typed_mask(self) -> np.ndarray:
        """True where a person types just the characters of the token; not so for specials and placeholders."""
        ...

    def fold(self, text: str) -> str:
        """A text as the tokenizer reads it: words are in lower case."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, from `bos` to `eos`. No text contains a special token."""
        ...

    def encode_measured(self, text: str) -> list[int]:
        """As `encode`, but what is `unk` there keeps its length: n letters become the number size + n."""
        ...

    def encode_many(self, texts: Any) -> TokenColumn:
        """`encode_measured` of each text of an Arrow array of strings, in compiled code where there is some."""
        ...

    def separate(self, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids that `encode_measured` gave, and the lengths of what they leave out, in order."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str: ...

    def text_of(self, token: int) -> str:
        """The characters of one token."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes that the token stands for in a text, without implied spaces; none for specials."""
        ...


def wide_tokens(size: int) -> bool:
    """Do measured ids of so many tokens need 32 bits?"""
    return size + LONGEST_COUNTED >= 2**16


def texts_of(column: Any) -> list[str]:
    """The texts of an Arrow array of strings, halves of surrogate pairs among them."""
    import pyarrow as pa

    return [text.decode("utf-8", "surrogatepass") for text in column.cast(pa.binary()).to_pylist()]


def separate_unknown(measured: np.ndarray, size: int, unk: int | None) -> tuple[np.ndarray, np.ndarray]:
    """What `Tokenizer.separate` gives."""
    unknown = measured >= size
    lengths = (measured[unknown] - size).astype(np.uint8)
    return np.where(unknown, np.array(unk or 0, measured.dtype), measured), lengths


def last_typed(tokenizer: Tokenizer) -> int:
    """The last token that a person types: of a list by frequency, the rarest."""
    return int(np.flatnonzero(tokenizer.typed_mask)[-1])


def fixed_mask(values: Sequence[bool] | np.ndarray) -> np.ndarray:
    """A mask that is shared and cannot be changed."""
    mask = np.array(values, bool)
    mask.flags.writeable = False
    return mask
