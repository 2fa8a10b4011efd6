"""`sotto prepare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sottovoce.cli.display import Shown, print_json, print_table, progress_on_terminal, shown_epsilon
from sottovoce.cli.options import (
    ContextValues,
    Delimiter,
    Encoding,
    Flag,
    Json,
    TextField,
    UserField,
    delimiter_of,
    log,
    option,
)
from sottovoce_evidence.errors import SottoError, count_of

if TYPE_CHECKING:
    from sottovoce.data.corpus import Dump
    from sottovoce.data.grouping import Grouping
    from sottovoce.data.prepare import PreparationSummary
    from sottovoce.data.store import VocabularySource
    from sottovoce.data.tokenizer import Tokenizer


@Parameter(name="*")
@dataclass(frozen=True)
class Grouped:
    """How text is grouped by user."""

    user_field: UserField = ("user",)
    text_field: TextField = "text"
    min_tokens: Annotated[int, option("Leave out users with fewer.")] = 1
    tokens_per_user: Annotated[int, option("Cut users to this many.")] = 1600
    test_users: Annotated[float, option("Share of users, whole, to hold out for evaluation.")] = 0.1
    split_key: Annotated[str, option("Key of the hash that decides who is held out.")] = "sottovoce"
    held_out: Annotated[
        Literal["exact", "private"],
        option("Figures of those held out: exact and public, or with noise alone (evaluate --private-epsilon)."),
    ] = "exact"
    plain_text: Annotated[Flag, option("Public text without users: no private run may train on it.")] = False
    owners_per_record: Annotated[int, option("Drop records that more users own; others count for each.")] = 1
    every_record_is_a_user: Annotated[Flag, option("Each record is another person's, not a message's id.")] = False
    delimiter: Delimiter = None
    encoding: Encoding = None
    context_field: Annotated[str | None, option("Field of what is known of a writer, such as a language.")] = None
    context_values: ContextValues = ()

    def grouping(self, dump: Dump | None = None) -> Grouping:
        from sottovoce.data.grouping import Grouping

        return Grouping(**asdict(replace(self, delimiter=delimiter_of(self.delimiter))), dump=dump)


@Parameter(name="*")
@dataclass(frozen=True)
class Published:
    """Dumps that the literature uses."""

    format: Annotated[
        Literal["stackoverflow", "reddit"] | None,
        option("A published dump: TensorFlow Federated's StackOverflow, or Reddit's comments."),
    ] = None
    sentences_per_user: Annotated[int | None, option("With stackoverflow: the first of a user (default: 256).")] = None
    sentence_tokens: Annotated[int | None, option("With stackoverflow: sentences are cut to it (default: 20).")] = None
    split: Annotated[str | None, option("With stackoverflow: train (default), heldout or test.")] = None

    def __post_init__(self) -> None:
        if self.format != "stackoverflow" and self._given:
            raise SottoError(
                "--sentences-per-user, --sentence-tokens and --split are for --format stackoverflow; leave them out"
            )

    @property
    def _given(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "format" and value is not None}

    @property
    def dump(self) -> Dump | None:
        from sottovoce.data.reddit import Reddit
        from sottovoce.data.stackoverflow import StackOverflow

        if self.format is None:
            return None
        return Reddit() if self.format == "reddit" else StackOverflow(**self._given)


@Parameter(name="*")
@dataclass(frozen=True)
class Words:
    """Where the vocabulary comes from."""

    vocabulary_size: Annotated[int, option("Tokens in all: specials, punctuation, frequent words.")] = 10_000
    vocabulary: Annotated[Path | None, option("A public word list, one a line, most frequent first.")] = None
    language: Annotated[str | None, option("Its code: whose public words, and how words are cut.")] = None
    tokenizer: Annotated[str | None, option("Not words: a tokenizer.json, bytes or characters.")] = None
    own_words: Annotated[Flag, option("With --plain-text: the most frequent words of the text itself.")] = False
    private_vocabulary: Annotated[Flag, option("Find words in the users' text; charged to the store.")] = False
    epsilon: Annotated[float | None, option("What the private vocabulary may cost, on top of training.")] = None
    delta: Annotated[float | None, option("Its δ: well below 1/users, at most half of training's.")] = None
    words_per_user: Annotated[int | None, option("Words a user brings (default: 400; 25 with --extend-public).")] = None
    extend_public: Annotated[Flag, option("Keep the public list; words found replace its rarest.")] = False

    def __post_init__(self) -> None:
        if self.private_vocabulary and self.vocabulary:
            raise SottoError("--vocabulary names the words and --private-vocabulary finds them; leave one of them out")
        if self.private_vocabulary and self.tokenizer:
            raise SottoError("--private-vocabulary finds words, and --tokenizer has others; leave one of them out")
        if self.private_vocabulary and (self.epsilon is None or self.delta is None):
            raise SottoError("--private-vocabulary needs --epsilon and --delta, for example --epsilon 1 --delta 1e-7")
        if self.private_vocabulary and self.own_words:
            raise SottoError("--own-words is for public text, which has no people to protect; leave one of them out")
        for name in ("epsilon", "delta", "words_per_user", "extend_public"):
            if not self.private_vocabulary and getattr(self, name) not in (None, False):
                flag = "--" + name.replace("_", "-")
                raise SottoError(f"{flag} is for --private-vocabulary; add that, or leave {flag} out")

    def of_dump(self, format: str | None) -> Words:
        """StackOverflow's words are cut already, and a list of its words is of such words."""
        if format != "stackoverflow" or self.vocabulary is None:
            return self
        log(
            f"warning: was {self.vocabulary.name} counted in these users' text, as stackoverflow.word_count was? The "
            "literature takes it as public: the guarantee then does not cover which words there are"
        )
        return replace(self, language=self.language or "spaces")

    def open(self, text: Sequence[Path] = ()) -> tuple[Tokenizer, VocabularySource]:
        """The public tokenizer, and what the store says of its source; `text` is public, to count its own words."""
        from sottovoce.commands.tokenizer import TokenizerChoice

        return TokenizerChoice(self.vocabulary_size, self.vocabulary, self.language, self.tokenizer, text).open()

    def text_to_count(self, files: Sequence[Path], grouping: Grouping) -> list[Path]:
        """The files of public text whose words are counted: none, unless that is asked for."""
        if not self.own_words:
            return []
        if not grouping.plain_text:
            raise SottoError("--own-words counts public text (--plain-text); in users' text: --private-vocabulary")
        return [each for each in grouping.sources(files) if isinstance(each, Path)]


@Parameter(name="*")
@dataclass(frozen=True)
class Engine:
    """What reads the text: this machine, or Spark."""

    engine: Annotated[Literal["local", "spark"], option("spark: PySpark, for text beyond one machine.")] = "local"
    table: Annotated[str | None, option("With spark: a table of its catalog, in place of files.")] = None
    order_field: Annotated[str | None, option("With spark: orders a user's records; else files and lines do.")] = None
    shards: Annotated[int, option("With spark: files of each split, written and read side by side.")] = 1

    def __post_init__(self) -> None:
        if self.engine == "spark":
            return
        if self.order_field:
            raise SottoError(
                "--order-field is for --engine spark: else a user's records stay in the order of files and lines; "
                "leave it out, and sort the files if that matters"
            )
        if self.table or self.shards != 1:
            raise SottoError("--table and --shards are for --engine spark; add that, or leave them out")

    def write(self, files: Sequence[Path], out: Path, words: Words, grouping: Grouping) -> PreparationSummary:
        from sottovoce.data.spark import SparkCorpus, prepare_with_spark

        if grouping.dump is not None:
            raise SottoError("--format is read on this machine; leave --engine spark out")
        if words.private_vocabulary or words.own_words:
            raise SottoError("with --engine spark the vocabulary is given: --vocabulary, --language or --tokenizer")
        corpus = SparkCorpus(tuple(files), self.table, self.order_field, self.shards)
        vocabulary, source = words.open()
        return prepare_with_spark(corpus, out, vocabulary, grouping, source)


GROUPED, WORDS, ENGINE, PUBLISHED = Grouped(), Words(), Engine(), Published()
_NAMES = {
    "guessed_lines": "lines that are not UTF-8",
    "records_empty": "empty records left out",
    "single_record_users": "users with one record",
}
_MOST_NAMED = 4  # files
_HELD_OUT = {
    "exact": "how well models predict them is measured exactly, and may be published; they are not protected",
    "private": "no exact figure of them is computed; `sotto evaluate --private-epsilon` measures them with noise",
}
# Not shown where there are none.
_MISTAKES = (
    "records_dropped",
    "look_alike_users",
    "nameless_records",
    "guessed_lines",
    "records_filtered",
    "records_empty",
)


def prepare(
    *files: Annotated[Path, option("Files, folders or patterns.")],
    out: Annotated[Path, option("Folder of the new store.")],
    words: Words = WORDS,
    grouped: Grouped = GROUPED,
    engine: Engine = ENGINE,
    published: Published = PUBLISHED,
    json: Json = False,
) -> None:
    """Turn text by user into a store to train on.

    Reads .jsonl, .csv, .tsv (each also .gz, .zst, .bz2 or .xz), .parquet, and folders of them. Every user is one user,
    however many records and files hold them. With --plain-text, public text for pre-training: any files, whose lines
    are read as they are. With --engine spark, text beyond one machine. With --format, a published dump.

    Examples:
        sotto prepare messages.csv --tokens-per-user 480 --out store
        sotto prepare messages.csv --user-field author --text-field body --out store
        sotto prepare public.txt --plain-text --out public
    """
    if not files and not engine.table:
        raise SottoError("name at least one corpus file, for example `sotto prepare corpus.jsonl --out store`")
    grouping, words = grouped.grouping(published.dump), words.of_dump(published.format)
    if engine.engine == "spark":
        summary, facts = engine.write(files, out, words, grouping), {}
    elif words.private_vocabulary:
        from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately
        from sottovoce.data.languages import DEFAULT

        assert words.epsilon is not None
        assert words.delta is not None
        wanted = PrivateVocabulary(
            words.epsilon,
            words.delta,
            words.words_per_user,
            words.vocabulary_size,
            words.extend_public,
            words.language or DEFAULT,
        )
        progress = (lambda stage: None) if json else (lambda stage: log(f"{stage} ..."))
        summary, facts = prepare_privately(files, out, wanted, grouping, progress)
    else:
        from sottovoce.data import prepare as preparation

        vocabulary, facts = words.open(words.text_to_count(files, grouping))
        with _reading_progress(files, grouping, out, quiet=json) as progress:
            summary = preparation.prepare(files, out, vocabulary, grouping, facts, progress)
    for warning in summary.warnings_of_public_text if grouped.plain_text else summary.warnings:
        log(f"warning: {warning}")
    if json:
        print_json(summary.to_json() | ({"vocabulary": facts} if words.private_vocabulary else {}))
        return
    shown = {name: fact for name, fact in summary.to_json().items() if fact or name not in _MISTAKES}
    shown = {name: fact for name, fact in shown.items() if fact is not None}
    rows = {_NAMES.get(name, name.replace("_", " ")): _format(fact) for name, fact in shown.items()}
    print_table(f"Store {out}", _files_read(files, grouping, out) | rows)
    if words.private_vocabulary:
        _print_found(facts)
    if grouped.plain_text:
        print(f"next: sotto base train {out} --out BASE")
        return
    print(f"held-out users are declared {grouped.held_out}: {_HELD_OUT[grouped.held_out]}")
    print(f"next: sotto init {out} --out mine.toml")


@contextmanager
def _reading_progress(
    files: Sequence[Path], grouping: Grouping, out: Path, quiet: bool
) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how much of the files is read, in megabytes."""
    megabytes = sum(each.stat().st_size for each in grouping.sources(files) if isinstance(each, Path)) / 1e6
    with progress_on_terminal(f"prepare {out.name}, MB", quiet=quiet) as step:
        yield lambda records, read: step(round(read / 1e6), max(round(megabytes), 1), Shown((f"{records:,} records",)))


def _files_read(files: Sequence[Path], grouping: Grouping, out: Path) -> dict[str, str]:
    """A row on what was read: a folder or a pattern does not say which files it has. By now it may have the store."""
    listed = [each for each in grouping.sources(files) if isinstance(each, Path)] if files else []
    found = [each for each in listed if not each.resolve().is_relative_to(out.resolve())]
    if not found:
        return {}
    names = ", ".join(each.name for each in found[:_MOST_NAMED]) + (", …" if len(found) > _MOST_NAMED else "")
    return {"files read": f"{len(found):,}: {names}"}


def _print_found(facts: Mapping[str, Any]) -> None:
    print(
        f"private vocabulary: {count_of(facts['words_found'], 'word')} that about "
        f"{facts['threshold']:,} users or more brought; "
        f"ε = {shown_epsilon(facts['epsilon'], 6)} at δ = {facts['delta']:g} is charged to the store"
    )
    if not facts["words_found"]:
        print(
            "warning: no word is shared by enough users. More users, a larger --epsilon or --extend-public help; this "
            "draw is paid for, so keep its ledger and add it to the next one's"
        )


def _format(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2%}" if isinstance(value, float) else str(value)
