"""Folders of work: whole or not at all, and what a killed process leaves is removed."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from power_cut import Disk
from sottovoce.files import explain_full_disk, made_aside, make_folder, remove_partial, work_folder, write_aside
from sottovoce_evidence.errors import InUse, SottoError
from sottovoce_evidence.files import (
    FACTS,
    Facts,
    as_json,
    check_plain,
    from_json_number,
    parse_json,
    read_plain,
    read_sealed,
    sha256_of,
    to_json_number,
)

AT_WORK = """
import sys, time
from pathlib import Path
from sottovoce.files import made_aside
with made_aside(Path(sys.argv[1])) as draft:
    (draft / "tokens").write_text("what people wrote")
    print(draft, flush=True)
    time.sleep(600)
"""


def at_work(out: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", AT_WORK, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def test_what_a_killed_process_left_is_removed_and_said_and_what_is_in_use_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed, left = at_work(tmp_path / "store")
    working, used = at_work(tmp_path / "other")
    try:
        end(killed)
        assert (left / "tokens").exists()
        with made_aside(tmp_path / "store") as draft:
            (draft / "tokens").write_text("again")
        assert not left.parent.exists()
        assert (used / "tokens").exists()
        assert [record.getMessage() for record in caplog.records] == [
            f"removed what a process that was killed had left in {tmp_path}: {left.parent.name}"
        ]
    finally:
        end(working)
    with work_folder(tmp_path, "third"):
        assert not used.parent.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]
    with made_aside(tmp_path / "other"):  # its name is free again
        pass


def test_folders_that_only_look_like_work_are_left_alone(tmp_path: Path) -> None:
    for name in (".store-mybackup", ".store-12345678"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("keep")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".sottovoce-in-use").touch()
    (tmp_path / ".store-abcdefgh").symlink_to(elsewhere)
    with work_folder(tmp_path, "store"):
        pass
    assert (elsewhere / ".sottovoce-in-use").exists()
    assert (tmp_path / ".store-12345678" / "mine").exists()
    assert (tmp_path / ".store-mybackup" / "mine").exists()


def test_what_could_not_be_finished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "round-1.key.partial").write_bytes(b"half a key")
    (tmp_path / "round-1.key").write_bytes(b"a key")
    remove_partial([tmp_path, tmp_path / "not there"])
    assert [path.name for path in tmp_path.iterdir()] == ["round-1.key"]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_with_the_file_and_leaves_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_aside(tmp_path / "model", b"before")
    monkeypatch.setattr(os, "fsync", full)
    message = rf"cannot write {tmp_path}/model \(No space left on device\); free some space there, then go on"
    with pytest.raises(SottoError, match=message), explain_full_disk(tmp_path, "then go on"):
        write_aside(tmp_path / "model", b"after")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model": b"before"}
    with pytest.raises(PermissionError), explain_full_disk(tmp_path, "then go on"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_folder_for_which_there_is_no_space_vanishes_and_the_same_command_may_be_given_again(tmp_path: Path) -> None:
    def fill() -> None:
        with made_aside(tmp_path / "a" / "store") as draft:
            (draft / "half").write_text("half")
            full()

    with pytest.raises(SottoError, match=r"No space left on device.*nothing of it is kept.*same command again"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with pytest.raises(SottoError, match="NUL"), made_aside(Path("a\0b")):
        pass


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**33)


ODD = {"a pipe": make_pipe, "a hole": make_hole, "a folder": Path.mkdir}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ODD)
def test_kind_and_size_of_a_file_are_looked_at_before_its_contents(tmp_path: Path, kind: str) -> None:
    """A pipe would keep its reader waiting for ever, and a hole of gigabytes would fill the memory."""
    path = tmp_path / "file"
    ODD[kind](path)
    for read in (read_plain, read_sealed, lambda path: check_plain(path, FACTS)):
        with pytest.raises(OSError, match=re.escape(str(path))):
            read(path)
    if kind != "a hole":
        with pytest.raises(OSError, match=re.escape(str(path))):
            sha256_of(path)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_plain(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="it has 4 bytes, and such a file at most 3"):
        read_plain(tmp_path / "file", 3)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", f"{10**400}", f"{2**63}", "-" + "9" * 5000])
def test_a_number_that_no_file_has_is_no_json(number: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_json(f'{{"round": {number}}}'.encode())
    assert parse_json(f"[{2**63 - 1}, -1e308]".encode()) == [2**63 - 1, -1e308]


@pytest.mark.parametrize("value", [0.0, -2.5, 1e300, math.inf, -math.inf])
def test_numbers_go_through_json_and_back(value: float) -> None:
    assert from_json_number(json.loads(json.dumps(to_json_number(value), allow_nan=False))) == value


def test_one_way_to_write_infinity_and_two_to_read_it() -> None:
    assert (to_json_number(math.inf), to_json_number(math.nan)) == ("infinity", None)
    assert math.isnan(from_json_number(None))
    assert from_json_number(None, null=math.inf) == math.inf
    with pytest.raises(ValueError, match="'many' is not a number"):
        from_json_number("many")


@dataclass(frozen=True)
class Inner(Facts):
    value: float = math.inf


@dataclass(frozen=True)
class Outer(Facts):
    count: int
    share: float | None = None
    inner: tuple[Inner, ...] = ()
    one: Inner | None = None
    points: tuple[tuple[int, float], ...] = ()
    bound: float = field(default=math.nan, metadata={"null": math.inf})


def test_facts_are_plain_json_and_read_by_the_types_of_their_fields() -> None:
    facts = Outer(1, math.inf, (Inner(), Inner(1.0)), Inner(2.0), ((1, 0.5), (2, math.inf)), 3.0)
    written = {
        "count": 1,
        "share": "infinity",
        "inner": [{"value": "infinity"}, {"value": 1.0}],
        "one": {"value": 2.0},
        "points": [[1, 0.5], [2, "infinity"]],
        "bound": 3.0,
    }
    assert facts.to_json() == as_json({"facts": facts})["facts"] == written
    assert Outer.from_json(json.loads(json.dumps(written))) == facts


def test_facts_of_other_versions_may_hold_more_or_less() -> None:
    assert Outer.from_json({"count": 1, "later": 3, "one": None, "bound": None}) == Outer(1, None, bound=math.inf)
    for broken in ({}, {"count": None}, {"count": 1, "one": 3}, {"count": 1, "inner": 3}):
        with pytest.raises(TypeError):
            Outer.from_json(broken)
    with pytest.raises(ValueError, match="shorter"):
        Outer.from_json({"count": 1, "points": [[1]]})


@dataclass(frozen=True)
class Sparse(Facts, sparse=True):
    required: float | None
    text: str | None = None
    flag: bool = False
    count: int = 0
    items: tuple[Inner, ...] = ()


def test_sparse_facts_leave_out_defaults_that_say_nothing() -> None:
    assert Sparse(None).to_json() == {"required": None, "count": 0}
    assert Sparse(1.0, "", True, 2, (Inner(),)).to_json() == {
        "required": 1.0,
        "text": "",
        "flag": True,
        "count": 2,
        "items": [{"value": "infinity"}],
    }
    assert Sparse.from_json({"required": None}) == Sparse(None)


def test_what_has_its_name_is_on_disk_with_all_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    with made_aside(tmp_path / "a" / "b" / "store") as draft:
        (draft / "plain").write_text("never flushed by who wrote it")
        (draft / "folder").mkdir()
        (draft / "folder" / "deep").write_text("nor this")
        (draft / "link").symlink_to("plain")
    write_aside(tmp_path / "file", b"contents")
    make_folder(tmp_path / "c" / "d")
    write_aside(tmp_path / "c" / "d" / "file", b"too")
    disk.cut()
    disk.close()
    texts = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert texts.pop("a/b/store/link", "") == ""  # a link itself is not flushed
    assert texts == {
        "a/b/store/plain": "never flushed by who wrote it",
        "a/b/store/folder/deep": "nor this",
        "file": "contents",
        "c/d/file": "too",
    }


def test_a_name_is_taken_from_the_beginning(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with made_aside(out) as draft:
        (draft / "first").touch()
        with pytest.raises(InUse, match="is being made by another process"), made_aside(out):
            pytest.fail("it was made")
    assert [path.name for path in out.iterdir()] == ["first"]
    with pytest.raises(SottoError, match="is not an empty folder"), made_aside(out):
        pytest.fail("it was made")


def test_a_folder_that_was_there_empty_stays_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("run", "other"):
        with pytest.raises(RuntimeError), made_aside(tmp_path / name):
            raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
