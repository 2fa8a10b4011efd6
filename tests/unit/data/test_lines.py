"""The bytes of files that are read, in any encoding, and how far."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sottovoce.data.lines import Position, lines, opened
from sottovoce_evidence.errors import SottoError

TEXT = "".join(f"line {number} é\n" for number in range(50_000))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_position_goes_to_the_size_of_the_file(tmp_path: Path, packed: bool, encoding: str) -> None:
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(TEXT.encode(encoding)) if packed else TEXT.encode(encoding))
    position, seen = Position(), []
    for _ in range(2):
        with opened(path, position=position) as reader:
            while reader.next():
                if reader.number % 10_000 == 0:
                    seen.append(position.bytes)
    size = path.stat().st_size
    assert seen == sorted(seen)
    assert len(set(seen)) > 4
    assert 0 < seen[0] < size
    assert position.bytes == 2 * size


def test_lines_are_strict_where_nobody_asked_to_guess(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(SottoError, match=r"words\.txt:1: text is not UTF-8"):
        list(lines(tmp_path / "words.txt"))


def test_where_a_wrong_encoding_was_named_the_cure_is_to_name_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"user,text\nann,\x81\n")
    wanted = r"a\.csv: text is not cp1252; leave encoding out: UTF-8, UTF-16 and"
    with pytest.raises(SottoError, match=wanted), opened(path, "cp1252") as reader:
        list(iter(reader.next, ""))
