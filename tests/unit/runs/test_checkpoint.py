from __future__ import annotations

import errno
import shutil
from collections import namedtuple

import numpy as np
import pytest

from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder

Disk = namedtuple("Disk", "total used free")


def make(number: int) -> Checkpoint:
    return Checkpoint(
        number, {"w": np.full((3, 2), number, np.float32), "n": np.array(number)}, {"lineage": f"l{number}"}
    )


def test_the_newest_comes_back_and_two_are_kept(tmp_path):
    for number in (0, 3, 6):
        checkpoints.save(tmp_path, make(number))
    found, damaged = checkpoints.latest(tmp_path)
    assert (found.round, found.facts, damaged) == (6, {"lineage": "l6"}, [])
    np.testing.assert_array_equal(found.arrays["w"], make(6).arrays["w"])
    assert found.arrays["n"].shape == ()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("keep", [0, 7, 60, -1], ids=["empty", "cut early", "cut in the header", "one byte short"])
def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path, keep):
    for number in (3, 6):
        checkpoints.save(tmp_path, make(number))
    newest = tmp_path / "round-00000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:keep])
    found, damaged = checkpoints.latest(tmp_path)
    assert found.round == 3
    assert damaged == [newest]


def test_a_flipped_byte_is_noticed(tmp_path):
    checkpoints.save(tmp_path, make(3))
    path = tmp_path / "round-00000003.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-5] ^= 1
    path.write_bytes(contents)
    assert checkpoints.latest(tmp_path) == (None, [path])


def test_a_crash_while_saving_leaves_the_last_one(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, make(3))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, make(6))
    assert checkpoints.latest(tmp_path)[0].round == 3


@pytest.mark.parametrize(("kept", "needed"), [(1, 2), (2, 1)])
def test_there_must_be_room_for_the_checkpoints_to_come(tmp_path, monkeypatch, kept, needed):
    """Two are kept while another is written, each with the state of its noise."""
    run = RunFolder(tmp_path)
    for number in range(kept):
        checkpoints.save(run.checkpoints, make(number))
    run.secrets.mkdir()
    (run.secrets / "round-00000001.noise").write_bytes(b"n" * 1000)
    needed *= 1000 + (run.checkpoints / "round-00000000.safetensors").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**9, 10**9 - needed, needed))
    checkpoints.check_room(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**9, 10**9 - needed + 1, needed - 1))
    with pytest.raises(OSError, match=r"MB are free, and checkpoints need .* MB more") as error:
        checkpoints.check_room(run)
    assert error.value.errno == errno.ENOSPC


def test_a_disk_whose_room_is_not_known_is_not_refused(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    checkpoints.save(run.checkpoints, make(0))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(0, 0, 0))  # as some network folders say
    checkpoints.check_room(run)

    def unknown(path):
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    checkpoints.check_room(run)
