"""The tokenizer of a folder: of a store, a run's model, a release, a base, an export or a device."""

from __future__ import annotations

from pathlib import Path

from sottovoce.data.subwords import TOKENIZER, Subwords
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import VOCABULARY, Vocabulary
from sottovoce.files import write_aside
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import TOKENS, check_plain, unreadable

FILES = (VOCABULARY, TOKENIZER)  # words; all else


def option_of(file: Path) -> str:
    """The option of `sotto prepare` that takes this file."""
    return "--vocabulary" if file.name == VOCABULARY else "--tokenizer"


def find_tokenizer(folder: Path) -> Path:
    """The file of a folder's tokenizer; where there is none, that of words, which is then missing."""
    found = [folder / name for name in FILES if (folder / name).is_file()]
    if len(found) > 1:
        raise SottoError(f"{folder} has both {' and '.join(FILES)}, and it is not known which counts; remove one")
    return found[0] if found else folder / VOCABULARY


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer in a folder, or of a file of that name."""
    path = Path(folder)
    path = path if path.name in FILES and not path.is_dir() else find_tokenizer(path)
    if path.exists():
        try:
            check_plain(path, TOKENS)
        except OSError as error:
            raise SottoError(f"{unreadable(path, error)}; put it back as it was written") from None
    return Subwords.load(path) if path.name == TOKENIZER else Vocabulary.load(path)


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> Path:
    """Write a tokenizer into a folder, under the name of its kind."""
    path = Path(folder) / tokenizer.file_name
    write_aside(path, tokenizer.contents)
    return path
