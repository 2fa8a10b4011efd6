"""The words a model knows, fixed before any private text is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sottovoce.data.contexts import last_values, token_of, value_of
from sottovoce.data.languages import DEFAULT, Language, find_language
from sottovoce.data.lines import lines
from sottovoce.data.many_words import ManyWords
from sottovoce.data.segmentation import SAMPLES, WITHOUT_SPACES
from sottovoce.data.tokenizer import (
    LONGEST_COUNTED,
    Specials,
    TokenColumn,
    Tokenizer,
    fixed_mask,
    separate_unknown,
    texts_of,
    wide_tokens,
)
from sottovoce.data.words import BOS, ENGLISH, EOS, FRAME, PLACEHOLDERS, SPECIALS, UNK, fold, is_word, tokenise
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Json

SMALLEST = len(FRAME) + 1
VOCABULARY = "vocabulary.txt"
_LANGUAGE = "# language: "


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of words: the specials, then placeholders, ASCII punctuation and words, by id; then contexts.

    The specials cannot be typed: the text "<eos>" is an unknown word, never the end of a sentence.
    """

    words: tuple[str, ...]
    language: str = DEFAULT  # whose rules cut the text
    frame_size: ClassVar[int] = len(FRAME)  # how many tokens every vocabulary begins with

    def __repr__(self) -> str:
        return f"<Vocabulary: {len(self.words):,} tokens>"

    def __post_init__(self) -> None:
        if self.words[: len(SPECIALS)] != SPECIALS:
            raise SottoError(f"a vocabulary starts with {' '.join(SPECIALS)}, not {self.words[:3]!r}; load a saved one")
        if len(set(self.words)) != len(self.words):
            raise SottoError("a vocabulary holds each word once; remove the words that stand twice")
        if spaced := [word for word in self.words if word.split() != [word]]:
            raise SottoError(f"{spaced[0]!r} is not one word; a vocabulary has one word without spaces per entry")

    @classmethod
    def public(cls, size: int = 10_000, language: str = DEFAULT) -> Vocabulary:
        """The most frequent words of wordfreq's list of a language: `size` tokens in all. No user changes them."""
        _check_size(size)
        rules = find_language(language)
        listed = rules.public_words(2 * size + 1000)
        if rules.segmented:  # some entries are several words by our dictionary
            listed = (word for entry in listed for word in tokenise(entry, rules))
        vocabulary = cls.from_words(chain(rules.marks, listed), size, rules.code)
        if vocabulary.size < size:
            raise SettingError(
                f"{{vocabulary_size}} is too much for the list; the largest is {vocabulary.size}", vocabulary_size=size
            )
        return vocabulary

    @classmethod
    def from_file(cls, path: str | Path, size: int | None = None, language: str | None = None) -> Vocabulary:
        """A word list, one word a line, most frequent first; further columns are ignored. May be packed.

        A list that names its language, as a saved vocabulary does, is of that language. If it ends with contexts, they
        come after the `size` tokens.
        """
        read = lines(path)
        first = next(read, "")
        named = _language_named(first)
        if named and language and named != find_language(language).code:
            raise SettingError(
                f"{{language}} is not that of {path}, which is {named}; leave one out", language=language
            )
        listed = (line.split()[0] for line in chain([first], read) if line.strip())
        begun = [*islice(listed, 2)]
        saved = SPECIALS[0] in begun  # any other list may be long, and is read as far as it is needed
        listed = [*begun, *listed] if saved else chain(begun, listed)
        vocabulary = cls.from_words(listed, size, named or language or DEFAULT)
        if vocabulary.size < SMALLEST:
            raise SottoError(f"{path} holds no word; a vocabulary file has one word a line")
        return vocabulary.with_contexts(last_values(listed)) if isinstance(listed, list) else vocabulary

    @classmethod
    def of_text(cls, texts: Iterable[str], size: int = 10_000, language: str = DEFAULT) -> Vocabulary:
        """The most frequent words of public text, in any language: `size` tokens in all, or fewer in a short text."""
        rules = find_language(language)
        counted = Counter(token for text in texts for token in tokenise(text, rules))
        return cls.from_words((word for word, _ in counted.most_common()), size, rules.code)

    @classmethod
    def from_words(cls, words: Iterable[str], size: int | None = None, language: str = DEFAULT) -> Vocabulary:
        """The frame and the given words in their order, without doubles and without what no text can produce."""
        if size is not None:
            _check_size(size)
        rules = find_language(language)
        kept: dict[str, None] = dict.fromkeys(FRAME)
        for word in words:
            if len(kept) == size:
                break
            tokens = tokenise(word, rules)
            if len(tokens) != 1 or value_of(tokens[0]) is not None:
                continue
            # A mark outside ASCII is a token too, but not a word; some languages have their own.
            if rules.is_cut or is_word(tokens[0]) or tokens[0] in rules.marks:
                kept[tokens[0]] = None
        return cls(tuple(kept), rules.code)

    @classmethod
    def from_tokens(cls, tokens: Iterable[str]) -> Vocabulary:
        """The frame and the given tokens as they are, for text that is cut into words already."""
        return cls(tuple(dict.fromkeys((*FRAME, *tokens))))

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def specials(self) -> Specials:
        return Specials(BOS, EOS, UNK, tuple(range(self.size - len(self.contexts), self.size)))

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        return last_values(self.words)

    def with_contexts(self, values: Sequence[str]) -> Vocabulary:
        return Vocabulary((*self.words, *map(token_of, values)), self.language)

    def without_contexts(self) -> Vocabulary:
        return Vocabulary(self.words[: self.size - len(self.contexts)], self.language)

    @property
    def kind(self) -> str:
        return "words"

    @property
    def file_name(self) -> str:
        return VOCABULARY

    @property
    def contents(self) -> bytes:
        """One token a line, in the order of the ids; before them the language, where it is not the default."""
        return "".join(f"{line}\n" for line in (*self._named, *self.words)).encode()

    @property
    def _named(self) -> tuple[str, ...]:
        return () if self.language == DEFAULT else (_LANGUAGE + self.language,)

    @cached_property
    def rules(self) -> Language:
        """How its language cuts text into words."""
        return find_language(self.language)

    @property
    def page_rules(self) -> Json:
        """The rules for a page that cuts text as this vocabulary does; with a sample to check it on."""
        rules = (ENGLISH if self.rules.is_cut else self.rules).to_json()  # what is typed is not cut yet
        if self.rules.segmented:
            text = SAMPLES[self.language]
            rules["without_spaces"] = WITHOUT_SPACES.pattern
            rules["sample"] = {"text": text, "tokens": tokenise(text, self.rules)}
        return rules

    @property
    def is_words(self) -> bool:
        return True

    @property
    def space_inside(self) -> bool:
        return False

    @cached_property
    def joins(self) -> np.ndarray:
        return fixed_mask(np.zeros(self.size, bool))

    @cached_property
    def word_mask(self) -> np.ndarray:
        """True where the id is a word or a number, False for specials, placeholders and punctuation."""
        return fixed_mask([is_word(word) for word in self.words])

    @cached_property
    def starts_word(self) -> np.ndarray:
        """True where a word begins: at every word, and at `unk`."""
        return fixed_mask(self.word_mask | (np.arange(self.size) == UNK))

    @cached_property
    def typed_mask(self) -> np.ndarray:
        """False for specials and placeholders: what was typed there is not known."""
        hidden = {*SPECIALS, *PLACEHOLDERS, *map(token_of, self.contexts)}
        return fixed_mask([word not in hidden for word in self.words])

    def fold(self, text: str) -> str:
        """A text in lower case, as its language writes it."""
        return fold(text, self.rules)

    def text_of(self, token: int) -> str:
        """The characters of one token."""
        return self.words[token]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a word; none for specials."""
        return b"" if token < len(SPECIALS) or token in self.specials.contexts else self.words[token].encode()

    def is_word(self, token: int) -> bool:
        return bool(self.word_mask[token])

    @cached_property
    def fingerprint(self) -> str:
        return blake2b("\n".join((*self._named, *self.words)).encode(), digest_size=16).hexdigest()

    @cached_property
    def _ids(self) -> dict[str, int]:
        # Without the specials: typed text never becomes one.
        last = self.size - len(self.contexts)
        return {word: number for number, word in enumerate(self.words[:last]) if number >= len(SPECIALS)}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, from BOS to EOS."""
        return [BOS, *map(self._ids.get, tokenise(text, self.rules), repeat(UNK)), EOS]

    def encode_measured(self, text: str) -> list[int]:
        """As `encode`, but a word outside the vocabulary keeps its length: n letters become the number size + n."""
        ids, size = self._ids, self.size
        # No id of a word is 0, so `or` means "not in the vocabulary".
        words = tokenise(text, self.rules)
        return [BOS, *[ids.get(word) or size + min(len(word), LONGEST_COUNTED) for word in words], EOS]

    def encode_many(self, texts: Any) -> TokenColumn:
        """`encode_measured` of each text of an Arrow array of strings, with the same ids."""
        if self.rules.segmented or self.rules.is_cut:
            return TokenColumn.of(map(self.encode_measured, texts_of(texts)), wide_tokens(self.size))
        return self._many.encode(texts)

    @cached_property
    def _many(self) -> ManyWords:
        return ManyWords(self.words, self.rules)

    def separate(self, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids that `encode_measured` gave, and the lengths of the words outside the vocabulary, in order."""
        return separate_unknown(measured, self.size, UNK)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The tokens of some ids, with a space between them."""
        return " ".join(self.words[token] for token in ids)

    def save(self, path: str | Path) -> None:
        """Write one token a line, in the order of the ids."""
        Path(path).write_bytes(self.contents)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a saved vocabulary: the same tokens with the same ids."""
        words = tuple(line.rstrip("\r\n") for line in lines(path))
        try:
            named = _language_named(words[0]) if words else None
            return cls(words) if named is None else cls(words[1:], named)
        except SottoError as error:
            raise SottoError(f"{path} is not a saved vocabulary: {error}") from error


def needs_words(tokenizer: Tokenizer, what: str) -> Vocabulary:
    """The vocabulary of words that something needs; any other tokenizer is refused."""
    if not isinstance(tokenizer, Vocabulary):
        raise SottoError(f"{what} needs tokens that are whole words, and these are {tokenizer.kind}; use a word list")
    return tokenizer


def _language_named(line: str) -> str | None:
    """The language that the first line of a saved vocabulary names. No word has a space, so it is no word."""
    return find_language(line.removeprefix(_LANGUAGE).strip()).code if line.startswith(_LANGUAGE) else None


def _check_size(size: int) -> None:
    if size < SMALLEST:
        raise SettingError(
            f"{{vocabulary_size}} is too small; the smallest is {SMALLEST}: "
            f"{len(FRAME)} special tokens and marks, and one word",
            vocabulary_size=size,
        )
