"""`sotto prepare`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_table, shown_epsilon


def prepare(
    *files: Path,
    out: Path,
    user_field: str = "user",
    text_field: str = "text",
    vocabulary_size: int = 10_000,
    vocabulary: Path | None = None,
    private_vocabulary: Annotated[bool, Parameter(negative=())] = False,
    epsilon: float | None = None,
    delta: float | None = None,
    words_per_user: int | None = None,
    extend_public: Annotated[bool, Parameter(negative=())] = False,
    min_tokens: int = 1,
    tokens_per_user: int = 1600,
    test_users: float = 0.1,
    split_key: str = "sottovoce",
    plain_text: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Turn text by user into a store to train on.

    Reads .jsonl, .csv, .tsv (each also .gz or .zst) and .parquet. Every user is one user, however many records and
    files hold them. With --plain-text, public text for pre-training: any files, whose lines are read as they are.

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
    private_vocabulary
        Find the words in the users' own text, and charge it to the store: needs --epsilon and --delta.
    epsilon
        What the private vocabulary may cost; training on the store comes on top.
    delta
        Its δ: well below 1/users, and at most half of the δ to train with.
    words_per_user
        How many words a user brings to a private vocabulary; 400 unless told, 25 with --extend-public.
    extend_public
        Keep the public list and find only words that it lacks, which take the places of its rarest.
    min_tokens
        Leave out users with fewer.
    tokens_per_user
        Cut users to this many.
    test_users
        Share of users, whole, to hold out for evaluation.
    split_key
        Key of the hash that decides who is held out.
    plain_text
        The files are text that is nobody's: pieces of --tokens-per-user tokens stand for users. No private run may
        train on it.
    json
        One JSON object.
    """
    from sottovoce.data.grouping import Grouping
    from sottovoce.errors import SottoError

    if not files:
        raise SottoError("name at least one corpus file, for example `sotto prepare corpus.jsonl --out store`")
    grouping = Grouping(user_field, text_field, min_tokens, tokens_per_user, test_users, split_key, plain_text)
    if private_vocabulary:
        from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately

        if vocabulary:
            raise SottoError("--vocabulary names the words and --private-vocabulary finds them; leave one of them out")
        if epsilon is None or delta is None:
            raise SottoError(
                "--private-vocabulary needs --epsilon and --delta, for example --epsilon 1 --delta 1e-7: "
                "words found in people's text are paid for"
            )
        wanted = PrivateVocabulary(epsilon, delta, words_per_user, vocabulary_size, extend_public)
        summary, facts = prepare_privately(files, out, wanted, grouping, _silent if json else _tell)
    else:
        from sottovoce.data import prepare as preparation
        from sottovoce.data.vocabulary import Vocabulary

        _refuse_stray(epsilon=epsilon, delta=delta, words_per_user=words_per_user, extend_public=extend_public or None)
        words = Vocabulary.from_file(vocabulary, vocabulary_size) if vocabulary else Vocabulary.public(vocabulary_size)
        facts = {"source": "file", "file": vocabulary.name} if vocabulary else {"source": "public", "list": "wordfreq"}
        summary = preparation.prepare(files, out, words, grouping, facts)
    shown = summary.to_json() | ({"vocabulary": facts} if private_vocabulary else {})
    if json:
        print_json(shown)
        return
    print_table(f"Store {out}", {name.replace("_", " "): _shown(value) for name, value in summary.to_json().items()})
    if private_vocabulary:
        _print_found(facts)
    if plain_text:
        print(f"next: sotto train RECIPE --out RUN --set data.store={out} --set run.algorithm=central ...")
        return
    users = _rounded_down(summary.train_users)
    print(f"next: sotto train RECIPE --out RUN --set data.store={out} --set privacy.users={users}")
    print("      (users to train on, rounded down: the exact number is private, the declared one is known to all)")


def _rounded_down(count: int) -> int:
    """To one digit: 7,818 becomes 7,000. What is pasted into a recipe is published."""
    unit = 10 ** (len(str(count)) - 1)
    return count // unit * unit


def _print_found(facts: Mapping[str, Any]) -> None:
    print(
        f"private vocabulary: {facts['words_found']:,} words that about {facts['threshold']:,} users or more brought; "
        f"ε = {shown_epsilon(facts['epsilon'], 6)} at δ = {facts['delta']:g} is charged to the store"
    )
    if not facts["words_found"]:
        print(
            "warning: no word is shared by enough users, so the store knows none of its own. More users, a larger "
            "--epsilon or --extend-public help; this draw is paid for, so keep its ledger and add it to the next one's"
        )


def _refuse_stray(**given: float | bool | None) -> None:
    from sottovoce.errors import SottoError

    for name, value in given.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise SottoError(f"{flag} is for --private-vocabulary; add that, or leave {flag} out")


def _tell(stage: str) -> None:
    print(f"{stage} ...", file=sys.stderr, flush=True)


def _silent(stage: str) -> None:
    pass


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2%}" if isinstance(value, float) else str(value)
