"""The words of many texts at once, in compiled code (numpy, pyarrow): the ids that `Vocabulary.encode_measured` gives.

The texts of a batch become one array of characters, with two characters that no word has between texts: one becomes the
end of a text, the other the beginning of the next. Classes of characters, compared with those of their neighbours, tell
where each token begins; a hash table finds all tokens in the vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from sottovoce.data.languages import Language
from sottovoce.data.tokenizer import LONGEST_COUNTED, TokenColumn, wide_tokens
from sottovoce.data.words import BOS, EOS, JOINERS, LETTER, PLACEHOLDER, SPECIALS, UNK, fold, marks

_SPACE, _LETTER, _DIGIT, _OTHER, _MARK, _JOINER = range(6)
# White space to the pattern of words, and in no word of a vocabulary. A text may have them: there they are spaces.
_BEGIN, _END = "\x1f", "\x1e"
_APOSTROPHE, _L, _Q, _U, _DOT, _QUOTE = map(ord, "'lqu·\"")
_PLACEHOLDER_BYTES = re.compile(PLACEHOLDER.encode())
_PLACEHOLDER = re.compile(PLACEHOLDER)
_PLAIN = bytes.maketrans((_BEGIN + _END).encode(), b"  ")


@dataclass(frozen=True)
class ManyWords:
    """Encodes texts with the words of a vocabulary, by the rules of its language. Languages without spaces are not."""

    words: tuple[str, ...]
    rules: Language

    def encode(self, texts: Any) -> TokenColumn:
        """The measured ids of an Arrow array of strings."""
        if not len(texts):
            return TokenColumn.of([], wide_tokens(len(self.words)))
        if self.rules.letters or self.rules.drops_marks:  # plain letters may become others
            return self._of_text(_joined(texts))
        plain = _compute("string_is_ascii", texts).to_numpy(zero_copy_only=False)
        if plain.all():
            return self._of_ascii(_joined(texts))
        if not plain.any():
            return self._of_text(_joined(texts))
        ones, others = (texts.take(np.flatnonzero(chosen)) for chosen in (plain, ~plain))
        return _merged(plain, self._of_ascii(_joined(ones)), self._of_text(_joined(others)))

    def _of_ascii(self, text: bytes) -> TokenColumn:
        text = text.lower()
        return self._found(*self._tokens(np.frombuffer(text, np.uint8), text.translate(_ascii_classes()), text))

    def _of_text(self, text: bytes) -> TokenColumn:
        folded = fold(text.decode("utf-8", "surrogatepass"), self.rules)
        if folded.isascii():
            return self._of_ascii(folded.encode())
        codes = np.frombuffer(folded.encode("utf-32-le", "surrogatepass"), np.uint32)
        letters, starts = self._tokens(codes, _classes()[codes].tobytes(), folded)
        written = letters.tobytes().decode("utf-32-le", "surrogatepass").encode("utf-8", "surrogatepass")
        sizes = np.ones(letters.size, np.uint8)
        for first in (0x80, 0x800, 0x10000):
            sizes += letters >= first
        ends = np.cumsum(sizes, dtype=np.int32)
        bytes_before = np.concatenate([np.zeros(1, np.int32), ends])[starts]
        return self._found(np.frombuffer(written, np.uint8), starts, bytes_before)

    def _tokens(self, codes: np.ndarray, classes: bytes, text: str | bytes) -> tuple[np.ndarray, np.ndarray]:
        """The characters of all tokens, without spaces between them, and where each token begins in them."""
        kinds = np.frombuffer(classes, np.uint8)
        core = _core(kinds)
        inside = self._inside(codes, kinds, core)
        word, digit = core | inside, kinds == _DIGIT
        starts = kinds != _SPACE
        filled = starts.copy()
        # The first character of a batch is a beginning: it has no neighbour.
        starts[1:] &= ~((word[1:] & word[:-1]) | (digit[1:] & digit[:-1]))
        if self.rules.elides:
            _elide(codes, kinds, inside, starts)
        pattern = _PLACEHOLDER_BYTES if isinstance(text, bytes) else _PLACEHOLDER
        if spans := [found.span() for found in pattern.finditer(text)]:  # pyrefly: ignore
            begins, ends = np.array(spans).T
            starts[begins + 1] = starts[ends - 1] = False
        return codes[filled], np.flatnonzero(starts[filled])

    def _inside(self, codes: np.ndarray, kinds: np.ndarray, core: np.ndarray) -> np.ndarray:
        """Marks inside a word: between its letters, as `words` says."""
        inside = codes == _APOSTROPHE
        if codes.dtype == np.uint8:
            wanted = core
        else:
            wanted = kinds == _LETTER
            hebrew = (codes >= ord("א")) & (codes <= ord("ת"))
            for mark, needed in ((_QUOTE, hebrew), (_DOT, codes == _L)):
                places = np.flatnonzero(codes[1:-1] == mark) + 1
                inside[places] = needed[places - 1] & needed[places + 1]
        inside[1:-1] &= core[:-2] & wanted[2:]
        inside[[0, -1]] = False
        return inside

    def _found(self, data: np.ndarray, starts: np.ndarray, before: np.ndarray | None = None) -> TokenColumn:
        """The ids of tokens; `before` are the bytes before each token, where characters have several bytes."""
        import pyarrow as pa

        offsets = np.append(starts if before is None else before, data.size).astype(np.int32)
        tokens = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        ids = _compute("index_in", tokens, self._lookup)
        known = ids.is_valid().to_numpy(zero_copy_only=False)
        values = ids.fill_null(0).to_numpy()
        if not known.all():
            lengths = np.diff(starts, append=starts[-1])  # the last one is an end, which is known
            values = np.where(known, values, len(self.words) + np.minimum(lengths, LONGEST_COUNTED))
        ends = np.flatnonzero(values == EOS) + 1
        kind = np.uint32 if wide_tokens(len(self.words)) else np.uint16
        return TokenColumn(values.astype(kind), np.diff(ends, prepend=0))

    @cached_property
    def _lookup(self) -> Any:
        """The words by their ids. In place of the specials stand the marks between texts; nothing is `unk`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        specials = {BOS: _BEGIN, EOS: _END, UNK: _BEGIN + _BEGIN}
        listed = [specials[number] for number in range(len(SPECIALS))] + list(self.words[len(SPECIALS) :])
        return pc.SetLookupOptions(pa.array([word.encode("utf-8", "surrogatepass") for word in listed], pa.binary()))


def _compute(name: str, *given: Any) -> Any:
    """A function of Arrow, by its name: its options, if it has some, come last."""
    import pyarrow.compute as pc

    options = given[-1] if isinstance(given[-1], pc.FunctionOptions) else None
    return pc.call_function(name, list(given[:-1] if options else given), options)


def _joined(texts: Any) -> bytes:
    """All texts, each from `_BEGIN` to `_END`."""
    import pyarrow as pa

    texts = texts.cast(pa.binary())
    listed = pa.ListArray.from_arrays([0, len(texts)], texts)
    joined = _compute("binary_join", listed, pa.scalar((_END + _BEGIN).encode()))[0].as_py()
    if joined.count(_BEGIN.encode()) != len(texts) - 1 or joined.count(_END.encode()) != len(texts) - 1:
        clean = [text.translate(_PLAIN) for text in texts.to_pylist()]
        joined = (_END + _BEGIN).encode().join(clean)
    return _BEGIN.encode() + joined + _END.encode()


def _core(kinds: np.ndarray) -> np.ndarray:
    """True for what words are of: letters, and marks and joiners after a letter of the same word."""
    letter = kinds == _LETTER
    if not (kinds >= _MARK).any():
        return letter
    linked = letter | (kinds == _MARK)
    joiners = np.flatnonzero(kinds == _JOINER)
    if joiners.size:  # some joiners count if a letter or a mark follows them
        others = np.flatnonzero(kinds != _JOINER)
        linked[joiners] = linked[others[np.searchsorted(others, joiners)]]
    # In a run of linked characters a word begins with the first letter.
    begins = linked.copy()
    begins[1:] &= ~linked[:-1]
    letters = np.cumsum(letter)
    before = np.maximum.accumulate(np.where(begins, letters - letter, 0))
    return linked & (letters > before)


def _elide(codes: np.ndarray, kinds: np.ndarray, inside: np.ndarray, starts: np.ndarray) -> None:
    """Part "l'homme" and "qu'on" at the apostrophe, and what follows again."""
    apostrophe = inside & (codes == _APOSTROPHE)
    places = np.flatnonzero(starts & (kinds == _LETTER))
    while places.size:
        ends = places + 1 + ((codes[places] == _Q) & (codes[places + 1] == _U))
        parted = ends[apostrophe[ends]]
        starts[parted] = starts[parted + 1] = True
        places = parted + 1


def _merged(first: np.ndarray, ones: TokenColumn, others: TokenColumn) -> TokenColumn:
    """Two columns as one, where `first` says from which of them each text is."""
    lengths = np.empty(len(first), np.int64)
    lengths[first], lengths[~first] = ones.lengths, others.lengths
    tokens = np.empty(int(lengths.sum()), ones.tokens.dtype)
    chosen = np.repeat(first, lengths)
    tokens[chosen], tokens[~chosen] = ones.tokens, others.tokens
    return TokenColumn(tokens, lengths)


@cache
def _ascii_classes() -> bytes:
    return _classes()[:256].tobytes()


@cache
def _classes() -> np.ndarray:
    """The class of every character, as the patterns of `words` have it."""
    codes = np.arange(0x110000, dtype="<u4")
    every = codes.tobytes().decode("utf-32-le", "surrogatepass")
    classes = np.full(len(every), _OTHER, np.uint8)
    patterns = {_SPACE: r"\s+", _LETTER: f"{LETTER}+", _DIGIT: r"\d+", _JOINER: JOINERS}
    for kind, pattern in patterns.items():
        for found in re.finditer(pattern, every):
            classes[slice(*found.span())] = kind
    for first, last in marks():
        classes[first : last + 1] = _MARK
    classes[[ord(_BEGIN), ord(_END)]] = _OTHER
    return classes
