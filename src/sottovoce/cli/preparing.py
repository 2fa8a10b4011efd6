"""`sotto prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table


def prepare(
    *files: Path,
    out: Path,
    user_field: str = "user",
    text_field: str = "text",
    vocabulary_size: int = 10_000,
    vocabulary: Path | None = None,
    min_tokens: int = 1,
    tokens_per_user: int = 1600,
    test_users: float = 0.1,
    split_key: str = "sottovoce",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Turn text by user into a store to train on.

    Reads .jsonl, .csv, .tsv (each also .gz or .zst) and .parquet. Every user is one user, however many records and
    files hold them.

    Parameters
    ----------
    files
        Corpus files.
    out
        Folder of the new store.
    user_field
        Field or column that names the user.
    text_field
        Field or column that holds the text.
    vocabulary_size
        Tokens in all: specials, punctuation and the most frequent English words (of wordfreq, or of --vocabulary).
    vocabulary
        A public word list instead, one word a line, most frequent first.
    min_tokens
        Leave out users with fewer.
    tokens_per_user
        Cut users to this many.
    test_users
        Share of users, whole, to hold out for evaluation.
    split_key
        Key of the hash that decides who is held out.
    json
        One JSON object.
    """
    from sottovoce.data import prepare as preparation
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.errors import SottoError

    if not files:
        raise SottoError("name at least one corpus file, for example `sotto prepare corpus.jsonl --out store`")
    words = Vocabulary.from_file(vocabulary, vocabulary_size) if vocabulary else Vocabulary.public(vocabulary_size)
    summary = preparation.prepare(
        files, out, user_field=user_field, text_field=text_field, vocabulary=words, min_tokens=min_tokens,
        tokens_per_user=tokens_per_user, test_users=test_users, split_key=split_key,
    )  # fmt: skip
    if json:
        print_json(summary.to_json())
        return
    print_table(f"Store {out}", {name.replace("_", " "): _shown(value) for name, value in summary.to_json().items()})
    print(f"next: sotto train RECIPE --out RUN --set data.store={out} --set privacy.users={summary.train_users}")
    print("      (declare a round number of users that may be known to all; the exact one is private)")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2%}" if isinstance(value, float) else str(value)
