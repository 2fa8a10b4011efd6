"""What a run that starts from a base asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce_evidence.bases import CARD, FREQUENCIES, PLAIN, VOCABULARY, find, is_plain, read_base, shipped
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import TOKENS, read_plain


def read_frequencies(folder: Path) -> dict[str, int]:
    """How often the text of a base has each of its tokens; empty where the folder does not say."""
    if not (folder / FREQUENCIES).is_file() or not (folder / VOCABULARY).is_file():
        return {}
    try:
        tokens = read_plain(folder / VOCABULARY, TOKENS).decode().split("\n")
        tokens = tokens[tokens[0].startswith("# ") :]  # the language, where a vocabulary names one
        counts = read_plain(folder / FREQUENCIES, TOKENS).decode().split("\n")
        return {token: int(count) for token, count in zip(tokens, counts, strict=True) if token}
    except ValueError as error:
        raise SottoError(f"cannot read {folder / FREQUENCIES} ({error}); put it back, or remove it") from None


def check_name(folder: Path, name: object) -> None:
    """Refuse the card of a base whose name is not plain."""
    if not is_plain(name):
        raise SottoError(
            f"the name in {folder / CARD}, {ascii(name)[:100]}, is not plain, and would be in your statement; take a "
            f"base whose name has {PLAIN}"
        )


def fitting(kind: str, settings: Mapping[str, Any], words: str) -> str | None:
    """The name of the shipped base that a model of these settings can start from."""
    bases = {name: read_base(folder) for name in shipped() if (folder := find(name))}
    return next((name for name, base in bases.items() if base.fits(kind, settings, words)), None)
