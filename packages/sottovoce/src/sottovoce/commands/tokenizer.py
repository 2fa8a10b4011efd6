"""Choose the tokenizer of a store, or train one on public text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.data.corpus import is_plain_text, sources
from sottovoce.data.languages import DEFAULT, find_language
from sottovoce.data.lines import lines
from sottovoce.data.store import PUBLIC_LIST, STORE_FILE, VocabularySource
from sottovoce.data.subwords import TOKENIZER, Subwords, needs_library
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.files import write_aside
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Facts

BYTES, CHARACTERS = "bytes", "characters"
KINDS = {"bpe": ["<s>", "</s>"], "unigram": ["<unk>", "<s>", "</s>"], "wordpiece": ["[UNK]", "[CLS]", "[SEP]"]}
WORDS = 10_000  # the usual size of a vocabulary of words
_LARGEST = 2**20
OWN_WORDS = "own words"  # the most frequent ones of public text
_LISTED_FOR_CHARACTERS = 20_000


@dataclass(frozen=True)
class TokenizerChoice:
    """Which tokenizer a store gets: words of a public list, unless `tokenizer` names another kind.

    `text` are files of public text: their most frequent words take the place of the list.
    `tokenizer` is a `tokenizer.json` of Hugging Face, or "bytes", or "characters": those of the language's public list.
    `size` is of words, and `language` of words and characters: other tokens do without.
    """

    size: int = WORDS
    vocabulary: Path | None = None
    language: str | None = None
    tokenizer: str | None = None
    text: Sequence[Path] = ()

    def __post_init__(self) -> None:
        given = {"--own-words": self.text, "--vocabulary": self.vocabulary, "--tokenizer": self.tokenizer}
        if len(named := [flag for flag, value in given.items() if value]) > 1:
            raise SottoError(f"{' and '.join(named)} both say what the tokens are; leave one of them out")

    def open(self) -> tuple[Tokenizer, VocabularySource]:
        """The tokenizer, and what a store says of its origin."""
        language = find_language(self.language or DEFAULT)
        named = {} if language.code == DEFAULT else {"language": language.code}
        if self.tokenizer == BYTES:
            return Subwords.of_bytes(), {"source": "public", "list": BYTES}
        if self.tokenizer == CHARACTERS:
            listed = language.public_words(_LISTED_FOR_CHARACTERS)
            characters = sorted({letter for word in listed for part in (word, word.upper()) for letter in part})
            return Subwords.of_characters(characters), {"source": "public", "list": CHARACTERS, **named}
        if self.tokenizer is not None:
            if not Path(self.tokenizer).exists():
                text = f"{{tokenizer}} does not exist; name a {TOKENIZER}, or {BYTES}, or {CHARACTERS}"
                raise SettingError(text, tokenizer=self.tokenizer)
            return Subwords.load(self.tokenizer), {"source": "file", "file": Path(self.tokenizer).name}
        if self.text:
            found = (line for path in self.text for line in lines(path))
            return Vocabulary.of_text(found, self.size, language.code), {"source": "public", "list": OWN_WORDS, **named}
        if self.vocabulary is None:
            return Vocabulary.public(self.size, language.code), {**PUBLIC_LIST, **named}
        words = Vocabulary.from_file(self.vocabulary, self.size, self.language)
        return words, {"source": "file", "file": self.vocabulary.name}


@dataclass(frozen=True)
class TrainedTokenizer(Facts):
    """A tokenizer that was trained, and how long its tokens are in its text."""

    file: str
    kind: str
    size: int
    fingerprint: str
    bytes_per_token: float


def train_tokenizer(
    text: Sequence[str | Path],
    out: str | Path,
    *,
    public: bool,
    kind: str = "bpe",
    size: int = 8_000,
    lower_case: bool = False,
) -> TrainedTokenizer:
    """Train a tokenizer on public text, and write it as a `tokenizer.json` of Hugging Face.

    Guarantee: people's text is refused, as far as it can be told: a tokenizer that was learned from it would show what
    they wrote. A store, a file in a store's folder and a corpus with users are never read; of other files the owner
    must say that they are public.

    Args:
        text: plain text files, folders or patterns; may be .gz or .zst.
        out: the file to write; it must be new.
        public: the owner's word that the text is public.
        kind: bpe (of bytes, writes everything), unigram or wordpiece (both have a token for what is unknown).
        size: how many tokens, specials and letters among them.
        lower_case: makes all text lower case, as tokenizers of words do.
    """
    out = Path(out)
    if kind not in KINDS:
        raise SettingError(f"{{kind!r}} must be one of {', '.join(KINDS)}", kind=kind)
    smallest = len(KINDS[kind]) + (256 if kind == "bpe" else 1)  # of bpe all bytes are pieces
    if not smallest <= size <= _LARGEST:
        raise SettingError(f"{{size}} must be in [{smallest}, {_LARGEST}], special tokens and letters too", size=size)
    if not public:
        raise SettingError(
            "a tokenizer learns from text, and what it learned from people's would be a release; say that the text is "
            "public with {public.name}, if that is so",
            public=public,
        )
    if out.exists():
        raise SottoError(f"{out} exists; choose another --out")
    files = _public_files(text)
    made, trainer = _untrained(kind, size, lower_case)
    made.train_from_iterator(_read(files), trainer)
    contents = made.to_str(pretty=False).encode() + b"\n"
    tokenizer = Subwords(contents, str(out))
    sample = [line for line, _ in zip(_read(files), range(2_000), strict=False)]
    tokens = sum(len(tokenizer.encode(line)) - 2 for line in sample)
    if not tokens:
        raise SottoError(f"{', '.join(map(str, files))} holds no text; name public text to learn from")
    write_aside(out, contents)
    length = sum(len(line.encode()) for line in sample) / tokens
    return TrainedTokenizer(str(out), tokenizer.kind, tokenizer.size, tokenizer.fingerprint, length)


def _public_files(text: Sequence[str | Path]) -> list[Path]:
    """The files to read. What is a store's, or has users, is refused before anything is read."""
    if not text:
        raise SottoError("name at least one file of public text, for example `sotto tokenizer train text.txt --public`")
    for path in map(Path, text):
        store = next((folder for folder in (path, *path.resolve().parents) if (folder / STORE_FILE).is_file()), None)
        if store is not None:
            raise SottoError(f"{path} is in the store {store}: a tokenizer learns from public text, never from a store")
        if path.is_file() and not is_plain_text(path):
            raise SottoError(
                f"{path} has records, which belong to users: a tokenizer that learned from them would be a release; "
                f"name plain text that is public"
            )
    return [each for each in sources([str(path) for path in text], plain_text=True) if isinstance(each, Path)]


def _read(files: Sequence[Path]) -> Iterator[str]:
    return (stripped for file in files for line in lines(file) if (stripped := line.strip()))


def _untrained(kind: str, size: int, lower_case: bool) -> tuple[Any, Any]:
    """A tokenizer that has learned no pieces, and what trains it. A piece says whether a space comes before it."""
    library = needs_library()
    models, pre, decoders, trainers = library.models, library.pre_tokenizers, library.decoders, library.trainers
    common = {"vocab_size": size, "special_tokens": KINDS[kind], "show_progress": False}
    if kind == "bpe":
        model, cut, decoder = models.BPE(), pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre.ByteLevel.alphabet(), **common)
    elif kind == "unigram":
        model, cut, decoder = models.Unigram(), pre.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=KINDS[kind][0], **common)
    else:
        model, cut, decoder = models.WordPiece(unk_token="[UNK]"), pre.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**common)
    made = library.Tokenizer(model)
    made.pre_tokenizer, made.decoder = cut, decoder
    lower = [library.normalizers.Lowercase()] if lower_case else []
    made.normalizer = library.normalizers.Sequence([library.normalizers.NFC(), *lower])
    return made, trainer
