"""What is read at once is what is read one by one; what is not plain is read one by one, and refused as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from sottovoce.data import blocks as blocks_module
from sottovoce.data.blocks import Columns, JsonLines, OwnedTexts, blocks, blocks_of
from sottovoce.data.census import Census
from sottovoce.data.corpus import AS_USUAL, Reading, records
from sottovoce.data.grouping import Grouping
from sottovoce.data.tokenizer import texts_of
from sottovoce_evidence.errors import SottoError

PLAIN = b'{"user":"a","text":"b"}\n'
# Lines, and whether Arrow may read them at once. All others must be read one by one, whatever comes of it.
LINES = [
    (PLAIN, True),
    (PLAIN[:-1], True),
    (b"\xef\xbb\xbf" + PLAIN, True),
    (PLAIN.replace(b"\n", b"\r\n") * 2, True),
    (b'{"text":"\\u00e9\\ud83d\\ude00\\/","us\\u0065r":"a","user ":1,"x":{"user":[2]}}\n', True),
    ('{"user":"ä","text":"日本 \u200d"}\n'.encode(), True),
    (PLAIN + b"\n" + PLAIN, False),
    (b'{"user":7,"text":"b"}\n', False),
    (b'{"user":["a"],"text":"b"}\n', False),
    (b'{"user":"a","text":"b\\ud800"}\n', False),
    (b'{"user":"a","text":"b","x":NaN}\n', True),
    (b'{"user":"a","user":"c","text":"b"}\n', False),
    (b'{"user":"a","text":"b\xff"}\n', False),
    (PLAIN[:-1] + PLAIN, False),
    (PLAIN[:-1] + PLAIN + b'{"user":"c",\n"text":"d"}\n', False),
    (b'{"user":"c","x":\n{},"text":"d"}\n' + PLAIN[:-1] + PLAIN, False),
    (b'{"user":" ","text":"b"}\n', False),
    (b'{"user":"","text":"b"}\n', False),
    (b'{"user":null,"text":"b"}\n', False),
    (b'{"user":"a","text":null}\n', False),
    (b'{"user":"a"}\n', False),
    (b'{"user":"a","text":3}\n', False),
    (b"[]\n", False),
    (b"oops\n", False),
    (b'{"user":"a","text":"b",}\n', False),
    (b'{"user":"a","text":"b\x01"}\n', False),
]


def outcome(read) -> list[tuple[str, str]] | str:
    try:
        return read()
    except SottoError as error:
        return str(error)


def pairs(texts: OwnedTexts) -> list[tuple[str, str]]:
    return list(zip((texts.users[place] for place in texts.owner), texts_of(texts.texts), strict=True))


@pytest.mark.parametrize(("raw", "at_once"), LINES)
def test_lines_at_once_are_lines_one_by_one(tmp_path: Path, raw: bytes, at_once: bool) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(raw)
    assert (JsonLines(path, raw, 0)._at_once(AS_USUAL) is not None) == at_once
    alone = outcome(lambda: [(owner, text) for owners, text in records([path]) for owner in owners])
    assert (
        outcome(
            lambda: [pair for block in blocks([path], AS_USUAL, Census()) for pair in pairs(block.read(AS_USUAL, 9))]
        )
        == alone
    )


def test_errors_know_the_line_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 30)
    path = tmp_path / "c.jsonl"
    path.write_bytes(PLAIN * 5 + b"\n\n" + PLAIN + b"oops\n" + PLAIN)
    found = blocks([path], AS_USUAL, Census())
    with pytest.raises(SottoError, match=r"c\.jsonl:9: not JSON"):
        [block.read(AS_USUAL, 1) for block in found]


def test_columns_at_once_are_rows_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 10_000)
    rows = [{"user": f"user {number % 9}", "text": f"text {number} é"} for number in range(3000)]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.Table.from_pylist(rows).cast(pa.schema([("user", kind), ("text", kind)]))
        path = tmp_path / "c.parquet"
        parquet.write_table(table, path)
        for source in (path, *Grouping().sources(table)):
            found = list(blocks([source], AS_USUAL, Census()))
            assert len(found) > 2
            read = [pair for block in found for pair in pairs(block.read(AS_USUAL, 1))]
            assert read == [(row["user"], row["text"]) for row in rows]
    wrong = Columns(path, [pa.RecordBatch.from_pylist([*rows[:2], {"user": None, "text": "a"}])], 40)
    with pytest.raises(SottoError, match="row 43: the user in"):
        wrong.read(AS_USUAL, 1)


def test_a_record_is_of_each_owner_or_of_none() -> None:
    found = OwnedTexts.of([(("ann", "bob"), "x"), (("bob",), "y"), (("a", "b", "c"), "z")], 2)
    assert pairs(found) == [("ann", "x"), ("bob", "x"), ("bob", "y")]
    assert (found.records, found.dropped) == (3, 1)
    several = Reading(("from", "to"), "text")
    raw = b'{"from":"ann","to":"bob","text":"x"}\n'
    assert pairs(JsonLines(Path("c.jsonl"), raw, 0).read(several, 2)) == [("ann", "x"), ("bob", "x")]


def test_blocks_of_records_are_not_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 1000)
    found = [((f"user {number}",), "x" * number) for number in range(100)]
    cut = [block.read(AS_USUAL, 1) for block in blocks_of(iter(found))]
    assert [pair for block in cut for pair in pairs(block)] == [(owners[0], text) for owners, text in found]
    assert max(sum(map(len, texts_of(block.texts))) for block in cut) < 1200
