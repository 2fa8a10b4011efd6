from __future__ import annotations

import errno
import shutil
from collections import namedtuple

import numpy as np
import pytest

from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import DamagedRun

Disk = namedtuple("Disk", "total used free")


def make(number: int) -> Checkpoint:
    return Checkpoint(number, {"w": np.full((3, 2), number, np.float32), "n": np.array(number)}, {"fact": number})


def commit(run: RunFolder, number: int):
    made = checkpoints.save_draft(run.checkpoints, make(number))
    checkpoints.give_name(run.checkpoints, made)
    return made


def test_the_committed_one_comes_back_and_no_other_is_kept(tmp_path):
    run = RunFolder(tmp_path)
    commits = [commit(run, number) for number in (0, 3, 6)]
    checkpoints.save_draft(run.checkpoints, make(9))
    found = checkpoints.open_committed(run, commits)
    assert (found.round, found.facts) == (6, {"fact": 6})
    np.testing.assert_array_equal(found.arrays["w"], make(6).arrays["w"])
    assert found.arrays["n"].shape == ()
    assert [path.name for path in run.checkpoints.iterdir()] == ["round-00000006.safetensors"]


def test_a_draft_that_was_committed_gets_its_name(tmp_path):
    run = RunFolder(tmp_path)
    commits = [commit(run, 3), checkpoints.save_draft(run.checkpoints, make(6))]
    assert checkpoints.open_committed(run, commits).round == 6
    assert checkpoints.last_round(run.checkpoints) == 6


@pytest.mark.parametrize("change", [lambda old: old[:-1], lambda old: old[:-5] + bytes([old[-5] ^ 1]) + old[-4:]])
def test_one_that_was_cut_or_changed_is_refused(tmp_path, change):
    run = RunFolder(tmp_path)
    commits = [commit(run, 3)]
    path = run.checkpoints / "round-00000003.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedRun, match=r"does not have the checkpoint of round 3.* put it back from a copy"):
        checkpoints.open_committed(run, commits)


def test_a_crash_while_saving_leaves_the_last_one(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    commits = [commit(run, 3)]
    with monkeypatch.context() as broken:
        broken.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save_draft(run.checkpoints, make(6))
    assert checkpoints.open_committed(run, commits).round == 3


def test_there_must_be_room_for_the_checkpoint_to_come(tmp_path, monkeypatch):
    """The last one is kept while another is written, with the state of its noise."""
    run = RunFolder(tmp_path)
    commit(run, 1)
    run.secrets.mkdir()
    (run.secrets / "round-00000001.noise").write_bytes(b"n" * 1000)
    needed = 1000 + (run.checkpoints / "round-00000001.safetensors").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**9, 10**9 - needed, needed))
    checkpoints.check_room(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(10**9, 10**9 - needed + 1, needed - 1))
    with pytest.raises(OSError, match=r"MB are free, and checkpoints need .* MB more") as error:
        checkpoints.check_room(run)
    assert error.value.errno == errno.ENOSPC


def test_a_disk_whose_room_is_not_known_is_not_refused(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    commit(run, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(0, 0, 0))  # as some network folders say
    checkpoints.check_room(run)

    def unknown(path):
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    checkpoints.check_room(run)
