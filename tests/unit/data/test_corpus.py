"""Every format gives the same records; every fault gives one line that names it."""

import csv
import gzip
import io
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from pyarrow import parquet

from sottovoce.data import lines
from sottovoce.data.census import Census
from sottovoce.data.corpus import Corpus, Pieces, Reading, sources
from sottovoce.data.corpus import records as records_of
from sottovoce.data.words import tokenise
from sottovoce_evidence.errors import SottoError

PAIRS = [("ann", "Hello, world"), ("bob", 'two\nlines and "quotes"'), ("7", "tab\there"), ("ann", "été 😂")]


def records(corpus: Corpus, *fields: str, **settings: str) -> Iterator[tuple[str, str]]:
    """Records of one owner each."""
    reading = Reading(fields[:-1], fields[-1], **settings) if fields else Reading(**settings)
    return ((" & ".join(owners), text) for owners, text in records_of(sources(corpus), reading))


def pieces(corpus: Corpus, tokens: int) -> Iterator[tuple[str, str]]:
    cut = Pieces(tokens, lambda text: len(tokenise(text)) + 2)
    return ((piece, text) for (piece,), text in cut.of(sources(corpus, plain_text=True)))


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def as_jsonl(pairs: list[tuple[str, str]]) -> bytes:
    rows = ({"x": None, "text": text, "user": int(user) if user.isdigit() else user} for user, text in pairs)
    return "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def as_table(delimiter: str) -> Callable[[list[tuple[str, str]]], bytes]:
    def write(pairs: list[tuple[str, str]]) -> bytes:
        sheet = io.StringIO(newline="")
        csv.writer(sheet, delimiter=delimiter).writerows([("x", "user", "text"), *(("", *pair) for pair in pairs)])
        return sheet.getvalue().encode()

    return write


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)])
@pytest.mark.parametrize(
    ("kind", "write"),
    [("jsonl", as_jsonl), ("json", as_jsonl), ("ndjson", as_jsonl), ("csv", as_table(",")), ("TSV", as_table("\t"))],
)
def test_text_formats_plain_and_packed(
    tmp_path: Path,
    kind: str,
    write: Callable[[list[tuple[str, str]]], bytes],
    suffix: str,
    pack: Callable[[bytes], bytes],
) -> None:
    path = tmp_path / f"some.corpus.{kind}{suffix}"
    path.write_bytes(pack(write(PAIRS)))
    assert list(records(path)) == PAIRS


@pytest.mark.parametrize("user_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: Path, user_type: pa.DataType) -> None:
    path = tmp_path / "corpus.parquet"
    users = pa.array([user for user, _ in PAIRS]).cast(user_type)
    parquet.write_table(pa.table({"x": [1] * 4, "text": [text for _, text in PAIRS], "user": users}), path)
    assert list(records(path)) == PAIRS


def test_several_files_follow_one_another_with_own_field_names(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"author": "ann", "body": "one"}\n')
    (tmp_path / "b.csv").write_text("body,author\ntwo,bob\n")
    paths = [tmp_path / "a.jsonl", str(tmp_path / "b.csv")]
    assert list(records(paths, "author", "body")) == [("ann", "one"), ("bob", "two")]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("user,text\nann,hi\n".encode("utf-8-sig"))
    (tmp_path / "a.jsonl").write_bytes('{"user": "ann", "text": "hi"}'.encode("utf-8-sig"))
    assert list(records([tmp_path / "a.csv", tmp_path / "a.jsonl"])) == [("ann", "hi")] * 2


def test_a_csv_field_may_be_longer_than_the_standard_limit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"user,text\nann,{'word ' * 50_000}\n")
    [(_, text)] = records(tmp_path / "a.csv")
    assert len(text) == 250_000


def test_files_are_read_as_a_stream(tmp_path: Path) -> None:
    """The fault in the second line is met only when the second record is asked for."""
    (tmp_path / "a.jsonl").write_text('{"user": "ann", "text": "hi"}\nnot json\n')
    stream = records(tmp_path / "a.jsonl")
    assert next(stream) == ("ann", "hi")
    with pytest.raises(SottoError, match=r"a\.jsonl:2: not JSON"):
        next(stream)


def test_plain_text_is_cut_into_pieces_of_about_as_many_tokens(tmp_path: Path) -> None:
    """A piece ends with the line that fills it; a line longer than a piece is cut, and files share no piece."""
    (tmp_path / "a.txt").write_text("= One =\nthe sky is blue .\n\n" + "so it goes on and on " * 3)
    (tmp_path / "b.tokens.gz").write_bytes(gzip.compress(b"two\n"))
    found = list(pieces([tmp_path / "a.txt", tmp_path / "b.tokens.gz"], 10))
    assert found == [
        ("0 0", "= One ="),
        ("0 0", "the sky is blue ."),
        ("0 1", "so it goes on and on so it goes on"),
        ("0 2", "and on so it goes on and on"),
        ("1 0", "two"),
    ]
    by_letter = Pieces(10, len).of([tmp_path / "a.txt"])
    assert [text for _, text in by_letter][:3] == ["= One =", "the sky", "is blue ."]
    assert "--plain-text out" in str(_refused(lambda: pieces(tmp_path / "a.jsonl", 10), tmp_path / "a.jsonl"))


def _refused(call: Callable[[], object], path: Path) -> SottoError:
    path.write_text(GOOD)
    with pytest.raises(SottoError) as caught:
        call()
    return caught.value


GOOD = '{"user": "ann", "text": "hi"}\n'
LATIN = '{"user": "ann", "text": "été"}\n'.encode("latin-1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"hi", r"a\.txt has the unknown format '\.txt'; use \.jsonl"),
        ("corpus", b"hi", r"unknown format '\(no suffix\)'"),
        ("a.parquet.gz", b"hi", r"unknown format '\.parquet\.gz'"),
        (
            "a.jsonl",
            GOOD + '{"usr": 1, "text": "x"}',
            r"a\.jsonl:2: no field 'user'; it has 2 fields, .*name it with user_field",
        ),
        ("a.jsonl", '{"user": 1}', r"a\.jsonl:1: no field 'text'; it has 1 field,"),
        ("a.jsonl", "{}", r"no field 'user'; it has no fields"),
        ("a.jsonl", GOOD + '{"user": ', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.json", f"[{GOOD.strip()}]", r"a\.json:1: a JSON list, not an object; .*jq"),
        ("a.jsonl", GOOD.encode() + LATIN, r"a\.jsonl:2: text is not UTF-8; .*encoding"),
        ("a.jsonl", GOOD.encode("utf-16")[:-1], r"a\.jsonl: text is not utf-16; .*encoding"),
        (
            "a.jsonl",
            '{"user": null, "text": "x"}',
            r"a\.jsonl:1: the user in 'user' is null; every record needs a user",
        ),
        ("a.jsonl", '{"user": "", "text": "x"}', r"the user in 'user' is empty"),
        ("a.jsonl", '{"user": "  ", "text": "x"}', r"the user in 'user' is empty"),
        ("a.jsonl", '{"user": true, "text": "x"}', r"the user in 'user' is a value of type bool"),
        ("a.jsonl", '{"user": 1.5, "text": "x"}', r"the user in 'user' is a value of type float"),
        ("a.jsonl", '{"user": 1, "text": null}', r"a\.jsonl:1: the text in 'text' is null; it must be a string"),
        ("a.jsonl", '{"user": 1, "text": ["x"]}', r"the text in 'text' is a value of type list"),
        (
            "a.csv",
            "name,text\nann,hi\n",
            r"a\.csv:1: no field 'user'; its first line names 2 fields, .* private \(see `head -1 \S*a\.csv`\)",
        ),
        ("a.csv.gz", gzip.compress(b"name,text\nann,hi\n", mtime=0), r"whose names are not shown: .* private; a table"),
        ("a.csv", "user:text\nann:hi\n", r"names 1 field, whose name is not shown: it .*; is delimiter right\?"),
        ("a.csv", "user,text\rann,hi\n", r"a\.csv:1: a carriage return within a line; is this a table, as text\?"),
        (
            "a.csv",
            'user,text\nann,"two\nlines"\nbob\n',
            r"a\.csv:4: no 'text': 1 field where the header names 2; complete",
        ),
        ("a.csv", "user,text,sent\nann,hi\n,x\n", r"a\.csv:3: the user in 'user' is empty; every"),
        (
            "a.csv",
            "user,text\n,hi\nann,x\n ,x\n,x\n",
            r"a\.csv:2: the user in 'user' is empty, as in 2 other rows of this file; every record needs a user",
        ),
        ("a.csv", "user,text\n,hi\n,x\nann,x,y\n,x\n", r"a\.csv:2: the user in 'user' is empty; every record"),
        ("a.csv", "sent,user,text\n1,ann\n", r"a\.csv:2: no 'text': 2 fields where the header names 3; complete"),
        ("a.csv", "user,text\n,hi\n", r"a\.csv:2: the user in 'user' is empty; .*; remove all records without one, or"),
        ("a.csv", "user,text\nann,well, hi\n", r"a\.csv:2: 3 fields where the header names 2; put quotes"),
        ("a.csv", 'user,text\nann,"never closed\n', r"a\.csv:2: unexpected end of data; is a quote not closed"),
        ("a.tsv", 'user\ttext\nann\t"so" she said\n', r"a\.tsv:2: .* expected after '\"'; is a quote not closed"),
        ("a.jsonl.gz", b"not gzip", r"cannot read .*a\.jsonl\.gz \(not gzip, or damaged"),
        ("a.jsonl.gz", gzip.compress(GOOD.encode() * 9, mtime=0)[:-20], r"cannot read .*a\.jsonl\.gz"),
        ("a.jsonl.gz", gzip.compress(GOOD.encode(), mtime=0)[:12] + b"\xff" * 9, r"cannot read .*a\.jsonl\.gz"),
        ("a.jsonl.zst", b"not zstd", r"cannot read .*a\.jsonl\.zst \(ZSTD"),
        ("a.jsonl.zst", zstd(GOOD.encode() * 9)[:-8], r"cannot read .*a\.jsonl\.zst \(Truncated"),
        ("a.parquet", b"PAR1 but not really PAR1", r"a\.parquet is not a whole parquet file"),
        ("a.parquet", b"", r"a\.parquet is not a whole parquet file"),
        (
            "a.jsonl",
            GOOD + '{"user": 1, "text": "x", "user": 2}',
            r"a\.jsonl:2: the field 'user' is there more than once",
        ),
        ("a.jsonl", '{"text": "x", "user": 1, "text": "x"}', r"a\.jsonl:1: the field 'text' is there more than once"),
        ("a.csv", "user,text,user\nann,hi,bob\n", r"a\.csv:1: the field 'user' is there more than once"),
        ("a.tsv", "user\ttext\ttext\nann\thi\tho\n", r"a\.tsv:1: the field 'text' is there more than once"),
    ],
)
def test_a_fault_in_a_file_is_one_line_that_names_it(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SottoError, match=message) as caught:
        list(records(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"user": ["a"], "body": ["x"]}, r"c\.parquet:row 1: no field 'text'; it has 'user', 'body'"),
        ({"user": ["a", None], "text": ["x", "y"]}, r"c\.parquet:row 2: the user in 'user' is null"),
        ({"user": ["a", "b"], "text": ["x", None]}, r"c\.parquet:row 2: the text in 'text' is null"),
        ({"user": ["a"], "text": [b"x"]}, r"c\.parquet: the column 'text' holds binary; it must hold str"),
        ({"user": [1.5], "text": ["x"]}, r"c\.parquet: the column 'user' holds double; it must hold strings or whole"),
        (
            {"user": ["a"], "text": pa.array([b"\xe9t\xe9"]).view(pa.string())},
            r"c\.parquet:after row 0: text is not UTF-8",
        ),
    ],
)
def test_a_fault_in_parquet_names_the_row(tmp_path: Path, table: dict[str, list[object]], message: str) -> None:
    path = tmp_path / "c.parquet"
    parquet.write_table(pa.table(table), path)
    with pytest.raises(SottoError, match=message) as caught:
        list(records(path))
    assert "\n" not in str(caught.value)


SECRET = "zebra quagga okapi"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"ann,{SECRET}\nbob,hi\n"),
        ("a.csv", f"user,text\nann,{SECRET},{SECRET}\n"),
        ("a.csv", f'user,text\nann,"{SECRET}"{SECRET}\n'),
        ("a.csv", f"user,{SECRET}\nann,{SECRET}\n"),
        ("a.tsv", f"ann\t{SECRET}\n"),
        ("a.jsonl", json.dumps({"ann": SECRET, SECRET: "ann"})),
        ("a.jsonl", json.dumps({"user": "ann", "text zebra": "quagga"})),
        ("a.jsonl", json.dumps({"user": {SECRET: SECRET}, "text": [SECRET]})),
        ("a.jsonl", json.dumps({"user": "ann", "text": {SECRET: SECRET}})),
        ("a.jsonl", json.dumps([SECRET])),
        ("a.jsonl", f'{{"user": "ann", "text": "{SECRET}" "okapi"}}'),
        ("a.jsonl", f'{{"user": "ann", "text": "\\zebra {SECRET}"}}'),
        ("a.jsonl", f'{{"user": "ann", "text": {SECRET}}}'),
        ("a.jsonl", SECRET.encode() + b"\xff"),
        ("a.jsonl.gz", SECRET),
        ("a.jsonl.zst", SECRET),
        ("a.parquet", SECRET),
    ],
)
def test_no_error_repeats_what_people_wrote(tmp_path: Path, name: str, content: str | bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SottoError) as caught:
        list(records(path))
    shown = "".join(traceback.format_exception(caught.value))  # whatever a log may keep of it
    for part in (*SECRET.split(), f"b'{SECRET[:2]}"):
        assert part not in shown


@pytest.mark.parametrize(
    ("name", "head"), [("a.jsonl.gz", b""), ("a.csv.gz", b"user,text\n"), ("a.tsv", b"user\ttext\n")]
)
def test_blank_lines_are_passed_over_many_at_once(tmp_path: Path, name: str, head: bytes, monkeypatch) -> None:
    """A gigabyte of them packs into a megabyte: reading one after the other takes many minutes."""
    taken = 0
    real = lines.LineReader.next

    def counted(self) -> str:
        nonlocal taken
        taken += 1
        return real(self)

    monkeypatch.setattr(lines.LineReader, "next", counted)
    blank, record = 1_000_000, {"a.jsonl.gz": GOOD.encode(), "a.csv.gz": b'ann,"h\n\ni"\n', "a.tsv": b"ann\thi\n"}[name]
    contents = head + b"\n" * blank + record + b"\r\n" * 500 + record + b"}"
    (tmp_path / name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
    stream = records(tmp_path / name)
    text = "h\n\ni" if "csv" in name else "hi"
    assert [next(stream), next(stream)] == [("ann", text)] * 2
    assert taken < 1000
    line = blank + 500 + contents.count(b"\n", 0, len(head)) + 2 * record.count(b"\n") + 1
    with pytest.raises(SottoError, match=rf"{name}:{line}: "):
        next(stream)


def test_a_file_without_line_ends_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    (tmp_path / "a.json").write_text(GOOD + "[" + GOOD.strip() * 9)
    with pytest.raises(SottoError, match=r"a\.json:2: a line of more than 100 bytes"):
        list(records(tmp_path / "a.json"))


def test_paths_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    good = tmp_path / "a.jsonl"
    good.write_text(GOOD)
    for paths, message in [
        ([good, tmp_path / "gone.jsonl"], "gone.jsonl does not exist"),
        ([good, tmp_path / "gone*"], r"gone\* matches no file"),
        ([good, tmp_path / ".." / tmp_path.name / "a.jsonl"], "is named twice"),
        ([], "names no file"),
    ]:
        with pytest.raises(SottoError, match=message):
            records(paths)
    with pytest.raises(SottoError, match="both 'text'"):
        Reading(("text",), "text")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "user,text\nann,one,two\n"),
        ("b.csv", "user,words\nann,one\n"),
        ("c.jsonl", "[]\n"),
        ("d.jsonl", '{"user": 1}\n'),
    ],
)
def test_a_fault_closes_the_file_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    """The error is still held here, and with it every frame: garbage collection has had no chance."""
    opened: list[BinaryIO] = []
    real = lines._open
    monkeypatch.setattr(lines, "_open", lambda path: opened.append(real(path)) or opened[-1])
    path = tmp_path / name
    path.write_text(content + content)  # more to read after the fault
    with pytest.raises(SottoError) as held:
        list(records(path))
    assert held.value
    assert [stream.closed for stream in opened] == [True]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_delimiter_and_the_encoding_of_a_table_are_found(
    tmp_path: Path, delimiter: str, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / ("a.csv" if pack is bytes else "a.csv.gz")
    path.write_bytes(pack(as_table(delimiter)(PAIRS).decode().encode(encoding)))
    assert list(records(path)) == PAIRS


def test_a_given_delimiter_and_encoding_are_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("user:text\nann:живо\n".encode("koi8-r"))
    assert list(records(tmp_path / "a.csv", delimiter=":", encoding="koi8-r")) == [("ann", "живо")]
    (tmp_path / "b.jsonl").write_bytes(LATIN)
    assert list(records(tmp_path / "b.jsonl", encoding="latin-1")) == [("ann", "été")]
    with pytest.raises(SottoError, match=r"b\.jsonl: text is not utf-16"):
        list(records(tmp_path / "b.jsonl", encoding="utf-16"))


def test_a_line_of_a_table_that_is_not_utf8_is_guessed_by_itself(tmp_path: Path) -> None:
    """Whoever writes in another encoding changes nothing for others: each line is read by itself."""
    path = tmp_path / "a.csv"
    path.write_bytes("user,text\nann,été 😂\n".encode() + b"bob,caf\xe9 \x93so\x94\ncyd,\x81\n")
    census = Census()
    found = [text for _, text in records_of([path], census=census)]
    assert found == ["été 😂", "café “so”", "\x81"]
    assert census.guessed_lines == 2


def test_folders_and_patterns_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "deep/c.jsonl", "_SUCCESS", ".hidden.jsonl", ".git/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GOOD.replace("hi", name) if "jsonl" in name else f"user,text\nann,{name}\n")
    assert [text for _, text in records(tmp_path)] == ["a.csv", "b.jsonl", "deep/c.jsonl"]
    assert [text for _, text in records(f"{tmp_path}/*.jsonl")] == ["b.jsonl"]
    assert [text for _, text in records([tmp_path / "**" / "*.jsonl"])] == ["b.jsonl", "deep/c.jsonl"]
    with pytest.raises(SottoError, match="is named twice"):
        records([tmp_path, tmp_path / "a.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SottoError, match=r"no file to read in .*empty"):
        records(tmp_path / "empty")
    assert [text for _, text in pieces(tmp_path, 9)] == ["user,text", "ann,_SUCCESS"]


@pytest.mark.parametrize(
    ("name", "content", "owners"),
    [
        ("a.jsonl", '{"user": ["ann", 7], "text": "x"}', "ann & 7"),
        ("a.jsonl", '{"user": ["ann", "ann"], "text": "x"}', "ann"),
        ("a.csv", 'user,text\n"[""ann"", ""bob""]",x\n', "ann & bob"),
        ("a.csv", "user,text\n\"['ann', 'bob']\",x\n", "ann & bob"),
        ("a.csv", "user,text\n[deleted],x\n", "[deleted]"),
        ("a.csv", "user,text\n[[1]],x\n", "[[1]]"),
    ],
)
def test_a_field_may_list_the_owners(tmp_path: Path, name: str, content: str, owners: str) -> None:
    (tmp_path / name).write_text(content)
    assert list(records(tmp_path / name)) == [(owners, "x")]


def test_rows_of_empty_cells_are_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(',,\nuser,text\n,\nann,one\n" ",,,\n"",""\nbob,two\n')
    assert list(records(path)) == [("ann", "one"), ("bob", "two")]


def test_several_fields_name_the_owners_and_some_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("from,to,text\nann,bob,one\nann,,two\nann,ann,three\n")
    assert list(records(path, "from", "to", "text")) == [("ann & bob", "one"), ("ann", "two"), ("ann", "three")]
    path.write_text("from,to,text\n,,one\n")
    with pytest.raises(SottoError, match=r"a\.csv:2: no user in 'from' and 'to'"):
        list(records(path, "from", "to", "text"))


@pytest.mark.parametrize("user", ["[]", '[""]', "[null]", "{}", '{"ann": "bob"}', "[1.5]"])
def test_a_list_without_owners_is_refused(tmp_path: Path, user: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"user": {user}, "text": "x"}}')
    with pytest.raises(SottoError, match=r"a\.jsonl:1: .*every record needs a user") as caught:
        list(records(tmp_path / "a.jsonl"))
    assert "ann" not in str(caught.value)


def test_parquet_may_list_the_owners(tmp_path: Path) -> None:
    table = pa.table({"user": [["ann"], ["ann", "bob"]], "text": ["x", "y"]})
    parquet.write_table(table, tmp_path / "c.parquet")
    assert list(records(tmp_path / "c.parquet")) == [("ann", "x"), ("ann & bob", "y")]


class Capsule:
    """A table of a library that pyarrow does not know, such as polars."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Frame:
    """As pandas before 2.2: iterating gives the names of the columns."""

    def __init__(self, **columns: list[str]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> list[str]:
        return self._columns[name]


TABLE = pa.table({"text": [text for _, text in PAIRS], "user": [user for user, _ in PAIRS], "x": [1] * len(PAIRS)})


@pytest.mark.parametrize(
    "given",
    [
        PAIRS,
        (pair for pair in PAIRS),
        [list(pair) for pair in PAIRS],
        [{"user": user, "text": text, "x": 1} for user, text in PAIRS],
        TABLE,
        TABLE.to_reader(max_chunksize=2),
        Capsule(TABLE),
        Frame(**TABLE.to_pydict()),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_program_gives_records_or_tables(given: Any) -> None:
    assert list(records(given)) == PAIRS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user": ["ann"], "text": ["hi"]}, "the corpus is of type dict"),
        (7, "the corpus is of type int"),
        ([], "names no file"),
        ([("ann", "hi"), ("bob", None)], "the list:record 2: the text in 'text' is null"),
        ([("ann", "hi"), "bob"], "the list:record 2: a str; give"),
        ([("ann", "hi", "ho")], "the list:record 1: a tuple; give"),
        ([{"user": "ann"}], "the list:record 1: no field 'text'"),
        (pa.table({"user": [1.5], "text": ["hi"]}), "the Table: the column 'user' holds double"),
        (pa.table({"user": ["ann"], "texts": ["hi"]}), "no field 'text'; .* did you mean 'texts'"),
        (Frame(user=["ann"], body=["hi"]), "no field 'text'"),
    ],
)
def test_a_fault_in_what_a_program_gives_is_one_line(given: Any, message: str) -> None:
    with pytest.raises(SottoError, match=message) as caught:
        list(records(given))
    assert "\n" not in str(caught.value)
