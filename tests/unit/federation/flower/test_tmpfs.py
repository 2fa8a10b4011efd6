"""State that must not reach a disk."""

from __future__ import annotations

import pytest

from sottovoce.federation.flower.tmpfs import in_memory
from sottovoce_evidence.errors import SottoError


def test_the_state_of_a_link_is_kept_in_memory_only(tmp_path, monkeypatch):
    """A folder on a disk is refused: updates in it are not noised."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nmemory {tmp_path}/shm tmpfs rw 0 0\n")
    monkeypatch.setattr("sottovoce.federation.flower.tmpfs.MOUNTS", mounts)
    (tmp_path / "shm" / "state").mkdir(parents=True)
    assert in_memory(tmp_path / "shm" / "state")
    with pytest.raises(SottoError, match="must not reach a disk"):
        in_memory(tmp_path)
    with pytest.raises(SottoError, match="not a folder"):
        in_memory(tmp_path / "nowhere")
    (tmp_path / "shm" / "a disk").mkdir()
    with mounts.open("a") as more:
        more.write(f"disk {tmp_path}/shm/a\\040disk ext4 rw 0 0\n")
    with pytest.raises(SottoError, match="is on ext4"):
        in_memory(tmp_path / "shm" / "a disk")
    mounts.unlink()
    with pytest.raises(SottoError, match="must not reach a disk"):
        in_memory(tmp_path / "shm")
