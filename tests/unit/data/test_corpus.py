"""Every format gives the same records; every fault gives one line that names it."""

import csv
import gzip
import io
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from pyarrow import parquet

from sottovoce.data import corpus
from sottovoce.data.corpus import pieces, records
from sottovoce.errors import SottoError

PAIRS = [("ann", "Hello, world"), ("bob", 'two\nlines and "quotes"'), ("7", "tab\there"), ("ann", "été 😂")]


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


def test_parquet_users_may_be_integers(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pa.table({"user": [3, 2**40], "text": ["a", "b"]}), path)
    assert list(records(path)) == [("3", "a"), (str(2**40), "b")]


def test_several_files_follow_one_another_with_own_field_names(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"author": "ann", "body": "one"}\n')
    (tmp_path / "b.csv").write_text("body,author\ntwo,bob\n")
    paths = [tmp_path / "a.jsonl", str(tmp_path / "b.csv")]
    assert list(records(paths, "author", "body")) == [("ann", "one"), ("bob", "two")]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("user,text\nann,hi\n".encode("utf-8-sig"))
    (tmp_path / "a.jsonl").write_bytes('{"user": "ann", "text": "hi"}'.encode("utf-8-sig"))
    assert list(records([tmp_path / "a.csv", tmp_path / "a.jsonl"])) == [("ann", "hi")] * 2


def test_a_zst_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(as_jsonl(PAIRS[:2]) + b"\n") + zstd(as_jsonl(PAIRS[2:])))
    assert list(records(tmp_path / "a.jsonl.zst")) == PAIRS


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
            r"a\.jsonl:2: no field 'user'; it has 2 fields, .*name the fields with user_field",
        ),
        ("a.jsonl", '{"user": 1}', r"a\.jsonl:1: no field 'text'; it has 1 field,"),
        ("a.jsonl", "{}", r"no field 'user'; it has no fields"),
        ("a.jsonl", GOOD + '{"user": ', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.json", f"[{GOOD.strip()}]", r"a\.json:1: a JSON list, not an object; .*jq"),
        ("a.jsonl", GOOD.encode() + LATIN, r"a\.jsonl:2: text is not UTF-8; .*iconv"),
        ("a.jsonl", GOOD.encode("utf-16"), r"a\.jsonl:1: text is not UTF-8"),
        ("a.csv", "user,text\nann,été\n".encode("latin-1"), r"a\.csv:2: text is not UTF-8"),
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
        ("a.csv", "name,text\nann,hi\n", r"a\.csv:1: no field 'user'; its first line names 2 fields"),
        ("a.csv", 'user,text\nann,"two\nlines"\nbob\n', r"a\.csv:4: no field 'text'; it has 1 field,"),
        ("a.csv", "user,text\n,hi\n", r"a\.csv:2: the user in 'user' is empty"),
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


def test_a_column_of_parquet_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    columns = [pa.array(["ann"]), pa.array(["one"]), pa.array(["two"])]
    parquet.write_table(pa.Table.from_arrays(columns, names=["user", "text", "text"]), path)
    with pytest.raises(SottoError, match=r"c\.parquet: the field 'text' is there more than once"):
        list(records(path))


def test_what_repeats_beside_user_and_text_or_differs_in_case_is_no_fault(tmp_path: Path) -> None:
    """JSON and parquet tell names by their case, and so do the options that name the fields."""
    (tmp_path / "a.jsonl").write_text('{"x": 1, "user": "ann", "User": 3, "x": {"text": 1, "text": 2}, "text": "hi"}\n')
    (tmp_path / "a.csv").write_text("x,user,x,Text,text\n,ann,,no,hi\n")
    assert list(records([tmp_path / "a.jsonl", tmp_path / "a.csv"])) == [("ann", "hi")] * 2


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
    real = corpus._LineReader.next

    def counted(self) -> str:
        nonlocal taken
        taken += 1
        return real(self)

    monkeypatch.setattr(corpus._LineReader, "next", counted)
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


def test_a_damaged_page_of_parquet_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    parquet.write_table(pa.table({"user": ["ann"] * 500, "text": [f"text {i}" for i in range(500)]}), path)
    content = bytearray(path.read_bytes())
    content[4:300] = b"\xff" * 296
    path.write_bytes(content)
    with pytest.raises(SottoError, match=r"c\.parquet") as caught:
        list(records(path))
    assert "\n" not in str(caught.value)


def test_a_file_without_line_ends_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "LONGEST_LINE", 100)
    (tmp_path / "a.json").write_text(GOOD + "[" + GOOD.strip() * 9)
    with pytest.raises(SottoError, match=r"a\.json:2: a line of more than 100 bytes"):
        list(records(tmp_path / "a.json"))


def test_paths_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    good = tmp_path / "a.jsonl"
    good.write_text(GOOD)
    for paths, message in [
        ([good, tmp_path / "gone.jsonl"], "gone.jsonl does not exist"),
        ([good, tmp_path], "is a folder; name the files in it"),
        ([good, tmp_path / ".." / tmp_path.name / "a.jsonl"], "is named twice"),
        ([], "names no file"),
    ]:
        with pytest.raises(SottoError, match=message):
            records(paths)
    with pytest.raises(SottoError, match="both 'text'"):
        records(good, "text", "text")


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind root, so the refusal is simulated."""
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SottoError, match=r"cannot read .*a\.jsonl \(Permission denied\)"):
        list(records(path))


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
    real = corpus._open
    monkeypatch.setattr(corpus, "_open", lambda path: opened.append(real(path)) or opened[-1])
    path = tmp_path / name
    path.write_text(content + content)  # more to read after the fault
    with pytest.raises(SottoError) as held:
        list(records(path))
    assert held.value
    assert [stream.closed for stream in opened] == [True]
