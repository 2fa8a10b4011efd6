"""The card of a base whose weights and words a test has put into a folder."""

from __future__ import annotations

from pathlib import Path

from sottovoce.data.tokenizer_files import load_tokenizer
from sottovoce_evidence.bases import CARD, PUBLIC, Base
from sottovoce_evidence.files import pretty, sealed


def write_card(folder: Path, **changes: object) -> None:
    words = load_tokenizer(folder)
    card = Base(
        name="tiny", kind="lstm", model={"embedding": 4, "hidden": 5}, words=words.fingerprint, vocabulary=words.size,
        text="lines of colours", tokens=1, licence="CC0", command="", passes=1, top1=0.1, perplexity=9, files={},
        trained_on=PUBLIC, language=None, longest_recited=None,
    )  # fmt: skip
    (folder / CARD).write_bytes(pretty(sealed({**card.to_json(), **changes})))
