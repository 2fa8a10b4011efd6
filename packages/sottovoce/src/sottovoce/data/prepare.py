"""A corpus to a user store: tokenise, group by user, cut, split. The corpus may be larger than memory."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sottovoce.data.census import Census, few_users
from sottovoce.data.corpus import Corpus, Source
from sottovoce.data.encoding import encoded
from sottovoce.data.grouping import Grouping, Progress, Spill, parts_for
from sottovoce.data.rows import shard_files
from sottovoce.data.splits import SplitCounts, Splits
from sottovoce.data.store import DECLARED, SPLITS, Store, VocabularySource, write_facts
from sottovoce.data.tokenizer import Tokenizer, wide_tokens
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.files import made_aside
from sottovoce_evidence.errors import SettingError, SottoError, count_of, plural
from sottovoce_evidence.files import Facts

PREPARATION_FILE = "preparation.json"
MUCH_UNKNOWN = 0.15
MANY_EMPTY = 0.1


@dataclass(frozen=True)
class PreparationSummary(Facts):
    """What became of a corpus. Exact counts of private text: for the owner, not for a report.

    `tokens_cut` are of the users kept; the tokens of users dropped are in `tokens_seen` only. `records_dropped` have
    too many owners; `look_alike_users` have an id much like another's; `nameless_records` have a user such as "null";
    `guessed_lines` of tables are not UTF-8 and were read as Windows-1252; `records_filtered` were left out of a dump:
    deleted comments, bots, sentences beyond the limit; `records_empty` have no text.
    """

    records: int
    users_seen: int
    users_kept: int
    users_dropped: int
    users_cut: int
    tokens_seen: int
    tokens_kept: int
    tokens_cut: int
    unknown_rate: float | None  # None: the tokenizer writes everything
    train_users: int
    train_tokens: int
    test_users: int
    test_tokens: int
    records_dropped: int = 0
    single_record_users: int = 0
    look_alike_users: int = 0
    nameless_records: int = 0
    guessed_lines: int = 0
    records_filtered: int = 0
    records_empty: int = 0
    records_with_context: int | None = None  # None: nothing was to be known of writers

    def __repr__(self) -> str:
        users = f"{count_of(self.train_users, 'user')} to train on, {self.test_users:,} held out"
        unknown = "" if self.unknown_rate is None else f", {self.unknown_rate:.1%} unknown"
        about = f"{users}, {count_of(self.tokens_kept, 'token')}{unknown}"
        return f"<PreparationSummary: {about}, {count_of(len(self.warnings), 'warning')}>"

    @property
    def warnings(self) -> list[str]:
        """What the owner should look at before training, a sentence each."""
        unknown = self.unknown_rate or 0.0
        found = {
            f"{count_of(self.look_alike_users, 'user id differs', 'user ids differ')} from another id only in case, "
            "spaces, the domain of an address, a final .0, characters that are not seen or letters of another script "
            "that look the same: a person with two ids is protected for each id apart. "
            "Merge the ids of one person first": self.look_alike_users > 0,
            f"{count_of(self.nameless_records, 'record has', 'records have')} a user such as null or unknown: all "
            "such records count as one user, and those who wrote them are not protected one by one. Leave them "
            "out": self.nameless_records > 0,
            f"{self.records_dropped:,} of {self.records:,} records {plural(self.records_dropped, 'is', 'are')} left "
            "out: more owners than are allowed": self.records_dropped > 0,
            f"{self.records_empty:,} of {self.records:,} records {plural(self.records_empty, 'is', 'are')} empty, and "
            "left out. Check that the text field holds the text": self.records_empty > MANY_EMPTY * self.records,
            f"{unknown:.0%} of the tokens are not in the vocabulary. Check that the text field holds the "
            "text. For another language name it (--language) or give a public word list of it; for names and slang "
            "find words privately, or take a larger vocabulary": unknown > MUCH_UNKNOWN,
            "no record has one of the declared values: check the field of the context, and how its values are "
            "written": self.records_with_context == 0,
            self._guessed: self.guessed_lines > 0,
        }
        return [*few_users(self.train_users), *(sentence for sentence, applies in found.items() if applies)]

    @property
    def warnings_of_public_text(self) -> list[str]:
        """The same where no text is a user's: few pieces are no harm, and its own words may be counted."""
        unknown = self.unknown_rate or 0.0
        found = {
            f"{unknown:.0%} of the tokens are not in the vocabulary. Name the language (--language), take a larger "
            "vocabulary, or the most frequent words of this text (--own-words)": unknown > MUCH_UNKNOWN,
            self._guessed: self.guessed_lines > 0,
        }
        return [sentence for sentence, applies in found.items() if applies]

    @property
    def _guessed(self) -> str:
        return (
            f"{count_of(self.guessed_lines, 'line is not UTF-8 and was', 'lines are not UTF-8 and were')} read as "
            "Windows-1252. If letters are wrong, name the encoding (--encoding)"
        )


def prepare(
    corpus: Corpus,
    out: str | Path,
    vocabulary: Tokenizer,
    grouping: Grouping | None = None,
    source: VocabularySource = DECLARED,
    progress: Progress | None = None,
) -> PreparationSummary:
    """Write the store of a corpus to the new folder `out`.

    A user is one user in any number of records and files. Who is held out, and the order of the users, follow from a
    keyed hash of the user's id: neither the order of the input nor one person joining moves any other user.

    Args:
        corpus: paths, folders or patterns; a table; or records, as pairs (user, text) or mappings.
        out: the folder of the store. It must be new.
        vocabulary: the tokens that the store may hold.
        grouping: which fields, who is kept, who is held out.
        source: where the vocabulary is from.
        progress: called with the number of records read, and of bytes of their files.
    """
    grouping = grouping or Grouping()
    sources = grouping.sources(corpus)
    with new_store(Path(out)) as folder:
        return write_store(folder, sources, grouping, vocabulary, source, progress)


@contextmanager
def new_store(out: Path) -> Generator[Path, None, None]:
    """A folder to write a store into, which becomes `out` at the end. Work files next to it are then removed."""
    if out.exists() and not out.is_dir():
        raise SottoError(f"{out} is a file; name a new folder for the store")
    if out.exists() and any(out.iterdir()):
        raise SottoError(
            f"{out} is not empty, and a store is never overwritten; if it holds these people, use it: runs on two "
            "stores of the same people add up (`sotto plan --ledger`). For other people name a new folder; delete this "
            "one only if nothing was charged to it"
        )
    with made_aside(out) as folder:
        folder.chmod(0o700)  # owner only: the folder holds what people wrote
        yield folder


def write_store(
    folder: Path,
    corpus: list[Source],
    grouping: Grouping,
    vocabulary: Tokenizer,
    source: VocabularySource = DECLARED,
    progress: Progress | None = None,
) -> PreparationSummary:
    """Write the store of a corpus into the empty folder of `new_store`."""
    vocabulary = grouping.with_contexts(vocabulary)
    spill = Spill(folder.parent / "spill", parts_for(corpus), wide=wide_tokens(vocabulary.size))
    census = Census()
    for block in encoded(corpus, grouping, vocabulary, census, progress):
        spill.add_many(block.names, block.column)
    with Splits(split_paths(folder), grouping, vocabulary, needed_tokens(vocabulary, source)) as splits:
        for users in spill.blocks(grouping.tokens_per_user):
            splits.add(users)
    counts = splits.counts + SplitCounts(single=spill.single)
    return finish_store(folder, summarise(counts, census, grouping, vocabulary), grouping, vocabulary, source)


def split_paths(folder: Path, shards: int = 1, shard: int = 0) -> dict[str, Path]:
    return {split: shard_files(folder, split, shards)[shard] for split in SPLITS}


def needed_tokens(vocabulary: Tokenizer, source: VocabularySource) -> np.ndarray:
    """A mask of the tokens that show that text is of this vocabulary. A private draw is paid for, whatever it finds."""
    counted = vocabulary.word_mask if vocabulary.is_words else vocabulary.typed_mask
    return np.ones_like(counted) if source["source"] == "private" else counted


def finish_store(
    folder: Path,
    summary: PreparationSummary,
    grouping: Grouping,
    vocabulary: Tokenizer,
    source: VocabularySource,
    hashes: Mapping[str, str] = MappingProxyType({}),
) -> PreparationSummary:
    """Write what a store has beside its splits; with the `hashes` of their files, where they are known."""
    grouping.check_users(summary.users_seen, summary.single_record_users)
    save_tokenizer(vocabulary, folder)
    facts: dict[str, Any] = {
        "shards": max(1, len(hashes) // len(SPLITS)),
        "tokens_per_user": grouping.tokens_per_user,
        "min_tokens": grouping.min_tokens,
        "vocabulary_size": vocabulary.size,
        "vocabulary": dict(source),
        "tokenizer": {
            "kind": vocabulary.kind,
            "language": vocabulary.language,
            "size": vocabulary.size,
            "hash": vocabulary.fingerprint,
        },
        "splits": {
            "train": {"users": summary.train_users, "tokens": summary.train_tokens},
            "test": {"users": summary.test_users, "tokens": summary.test_tokens},
        },
        "people": not grouping.plain_text,
        "owners_per_record": grouping.owners_per_record,
        "every_record_is_a_user": grouping.every_record_is_a_user,
        "held_out": grouping.held_out,
        "test_users": grouping.test_users,
        "split_key": grouping.split_key,
    }
    if vocabulary.contexts:
        facts["context"] = {"field": grouping.context_field, "values": list(vocabulary.contexts)}
    write_facts(folder, facts, hashes)
    with open(os.open(folder / PREPARATION_FILE, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(summary.to_json(), indent=2) + "\n")
    return summary


def collect(
    corpus: Corpus, vocabulary: Tokenizer, grouping: Grouping | None = None, tokens_per_user: int | None = None
) -> Store:
    """A corpus that fits in memory, grouped as `prepare` groups it but not split.

    Users are cut to `tokens_per_user`; without it the longest user sets the cap, and a private run refuses the store.
    Plain text is cut as `prepare` does.
    """
    grouping = grouping or Grouping()
    if tokens_per_user is not None:
        grouping = replace(grouping, tokens_per_user=tokens_per_user)
    cap = grouping.tokens_per_user if grouping.plain_text else tokens_per_user
    users: dict[bytes, array[int]] = {}
    for user, text in grouping.records(grouping.sources(corpus), vocabulary):
        tokens = users.setdefault(grouping.name(user), array("I"))
        if cap is None or len(tokens) < cap:
            tokens.extend(vocabulary.encode_measured(text))
    names = sorted(users)
    separated = [vocabulary.separate(np.array(users[name], np.int64)) for name in names]
    store = Store.from_users([tokens for tokens, _ in separated], vocabulary, cap, [n for _, n in separated], names)
    return replace(store, people=not grouping.plain_text)


def summarise(
    counts: SplitCounts, census: Census, grouping: Grouping, vocabulary: Tokenizer, look_alikes: int | None = None
) -> PreparationSummary:
    """What became of a corpus. Splits without users to train on, or without a word that is known, are refused."""
    kept, tokens_kept = counts.train_users + counts.test_users, counts.train_tokens + counts.test_tokens
    if not kept:
        found = f"keeps none of the {count_of(counts.seen, 'user')}; the largest has {counts.largest} tokens"
        raise SettingError(f"{{min_tokens}} {found}; lower {{min_tokens.name}}, or give more text", **asdict(grouping))
    if counts.unknown and not counts.needed:
        raise SettingError(
            "the text has no word of the vocabulary: look at {text_field.name} and {language.name}, or give a public "
            "word list of its language ({vocabulary.name})",
            text_field=None,
            language=None,
            vocabulary=None,
        )
    if not counts.train_users:
        all_of = plural(kept, "the one user that has", f"all {kept} users that have")
        found = f"holds out {all_of} {{min_tokens}}"
        raise SettingError(f"{{test_users}} {found}; lower {{test_users.name}}, or give more users", **asdict(grouping))
    alike = census.look_alikes if look_alikes is None else look_alikes
    return PreparationSummary(
        records=census.records,
        users_seen=counts.seen,
        users_kept=kept,
        users_dropped=counts.seen - kept,
        users_cut=counts.cut,
        tokens_seen=counts.tokens_seen,
        tokens_kept=tokens_kept,
        tokens_cut=counts.tokens_cut,
        unknown_rate=None if vocabulary.specials.unk is None else counts.unknown / tokens_kept,
        train_users=counts.train_users,
        train_tokens=counts.train_tokens,
        test_users=counts.test_users,
        test_tokens=counts.test_tokens,
        records_dropped=census.dropped,
        single_record_users=counts.single,
        look_alike_users=0 if grouping.plain_text else alike,
        nameless_records=0 if grouping.plain_text else census.nameless,
        guessed_lines=census.guessed_lines,
        records_filtered=census.filtered,
        records_empty=census.empty,
        records_with_context=census.known if grouping.context_field else None,
    )
