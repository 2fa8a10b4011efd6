"""Comments of a made-up dump: whose they are, which count, and in which order."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path

import pyarrow as pa
import pytest

from sottovoce.data import lines, reddit
from sottovoce.data.census import Census
from sottovoce.data.grouping import Grouping
from sottovoce.data.reddit import Reddit, is_bot
from sottovoce_evidence.errors import SottoError


def comment(author: object, body: object, time: object = 0, **more: object) -> dict[str, object]:
    return {"author": author, "body": body, "created_utc": time, "subreddit": "test", "score": 1, **more}


def write(path: Path, *comments: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in comments), encoding="utf-8")
    return path


def read(*paths: Path) -> list[tuple[str, str]]:
    grouping = Grouping(dump=Reddit())
    return list(grouping.records(grouping.sources(list(paths))))


def test_comments_of_nobody_and_of_programs_are_left_out(tmp_path: Path) -> None:
    left_out = [
        comment("[deleted]", "a"), comment("b", "[removed]"), comment("c", "[deleted]"), comment("d", ""),
        comment(None, "e"), comment("f", None), comment("AutoModerator", "g"), comment("RemindMeBot", "h"),
        comment("haiku_bot-1", "i"), comment("j", "&gt; only another's words"),
    ]  # fmt: skip
    path = write(tmp_path / "RC_2017-11", *left_out, comment("anna", "mine\n&gt; yours\nstill &amp; mine"))
    grouping, census = Grouping(dump=Reddit()), Census()
    assert list(grouping.records(grouping.sources([path]), census=census)) == [("anna", "mine\nstill & mine")]
    assert census.filtered == len(left_out)


@pytest.mark.parametrize("name", ["AutoModerator", "autotldr", "WikiTextBot", "imgur-bot", "BOT", "bot_99"])
def test_a_bot_is_known_by_its_name(name: str) -> None:
    assert is_bot(name)
    assert not is_bot(f"{name}s friend")


def test_comments_of_one_author_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    """Guarantee of Reddit.records: over all files, whatever their order, and where a dump is a little out of order."""
    late = write(tmp_path / "b.jsonl", comment("x", "five", 50), comment("x", "three", "30"), comment("x", "six", 60.5))
    early = write(tmp_path / "a.jsonl", comment("y", "two", 20), comment("x", "one", 10), comment("x", "four", 40))
    assert [text for user, text in read(late, early) if user == "x"] == ["one", "three", "four", "five", "six"]
    assert read(late, early) == read(early, late)
    same = write(tmp_path / "c.jsonl", *(comment("x", str(number), 7) for number in range(9)))
    assert [text for _, text in read(same)] == [str(number) for number in range(9)]


def test_a_file_far_out_of_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reddit, "_WAITING", 8)
    times = [*range(100), 1]
    path = write(tmp_path / "a.jsonl", *(comment("x", "text", time) for time in times))
    with pytest.raises(SottoError, match=r"a\.jsonl:101: a comment is older than many before it; sort the lines"):
        read(path)
    nearly = sorted(range(100), key=lambda time: time + random.Random(time).uniform(0, 4))
    path = write(tmp_path / "b.jsonl", *(comment("x", str(time), time) for time in nearly))
    assert [int(text) for _, text in read(path)] == list(range(100))


PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pa.compress(raw, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_dump_may_be_packed_and_must_be_whole(tmp_path: Path, suffix: str) -> None:
    rows = [comment(f"user{number % 7}", random.Random(number).randbytes(64).hex(), number) for number in range(800)]
    raw = write(tmp_path / "plain", *rows).read_bytes()
    packed = PACKERS[suffix](raw)
    path = tmp_path / f"RC_2017-11{suffix}"
    path.write_bytes(packed)
    assert read(path) == [(row["author"], row["body"]) for row in rows]
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(SottoError, match=r"RC_2017-11") as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"author": "a", "created_utc": 1}, "no field 'body'"),
        ({"author": "a", "body": "b"}, "no field 'created_utc'"),
        ({"body": "b", "created_utc": 1}, "no field 'author'"),
        (comment("a", "b", "soon"), "'created_utc' is not a number"),
        (comment("a", "b", True), "'created_utc' is not a number"),
        (comment("a", "b", "1e999"), "'created_utc' is not a number"),
        (comment(7, "b"), "'author' is a value of type int"),
        (comment("a", ["b"]), "'body' is a value of type list"),
        ([1], "a JSON list, not an object"),
    ],
)
def test_a_comment_that_is_not_whole_is_named(tmp_path: Path, row: object, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(comment("a", "b")) + "\n" + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(SottoError) as error:
        read(path)
    assert text in str(error.value)
    assert "a.jsonl:2" in str(error.value)


def test_a_folder_is_read_whole_and_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "RC_2017-12.jsonl", comment("x", "second", 2))
    write(tmp_path / "RC_2017-11", comment("x", "first", 1))
    (tmp_path / "README.md").write_text("no dump", encoding="utf-8")
    assert [text for _, text in read(tmp_path)] == ["first", "second"]
    monkeypatch.setattr(reddit, "_MOST_FILES", 1)
    with pytest.raises(SottoError, match="2 files cannot be merged"):
        read(tmp_path)


# The first bytes of a frame with a window of 2 GiB, as `zstd --long=31` writes it.


def test_a_long_window_is_unpacked(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    rows = [comment(f"user{number % 7}", "hello there", number) for number in range(2000)]
    raw = write(tmp_path / "plain", *rows).read_bytes()
    wanted = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    half = raw.index(b"\n", len(raw) // 2) + 1
    frames = []
    for part in (raw[:half], raw[half:]):  # two frames, as several writers leave them
        packer = zstandard.ZstdCompressor(compression_params=wanted).compressobj()
        frames.append(packer.compress(part) + packer.flush())
    path = tmp_path / "RC_2017-11.zst"
    path.write_bytes(b"".join(frames))
    assert lines._window_of(path) == 2**28
    assert len(read(path)) == 2000
    path.write_bytes(b"".join(frames)[:-9])
    with pytest.raises(SottoError, match="it ends in the middle"):
        read(path)
