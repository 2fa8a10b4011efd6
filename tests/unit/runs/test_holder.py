from __future__ import annotations

import shutil
import threading

import pytest

from sottovoce.runs import holder


@pytest.fixture
def folders(tmp_path):
    folder, store = tmp_path / "run", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    assert not holder.take_up(folder, store)  # nobody held it
    assert holder.take_up(folder, store)
    return folder, store


def test_a_copy_is_a_stranger_as_soon_as_the_other_goes_on(folders, tmp_path):
    folder, store = folders
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert holder.hold_on(folder, store)
    assert not holder.hold_on(copy, store)
    assert holder.hold_on(folder, store)  # the stranger changed nothing
    assert not holder.take_up(copy, store)
    assert not holder.hold_on(folder, store)  # now the first is one
    assert holder.hold_on(copy, store)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_before_a_round_does_not_make_a_stranger(folders, monkeypatch, writes):
    folder, store = folders
    real, done = holder._write_over, []

    def crash(path, token):
        if len(done) == writes:
            raise RuntimeError("crash")
        done.append(path)
        real(path, token)

    with monkeypatch.context() as patch:
        patch.setattr(holder, "_write_over", crash)
        with pytest.raises(RuntimeError, match="crash"):
            holder.hold_on(folder, store)
    assert holder.take_up(folder, store)


def test_tokens_are_for_their_owner_alone(folders):
    folder, store = folders
    assert holder.hold_on(folder, store)
    for path in (*folder.iterdir(), *(store / "holders").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("go_on", [holder.take_up, holder.hold_on])
def test_two_at_once_come_one_after_the_other(folders, go_on):
    """Else both could find the token of before, and both be rightful."""
    folder, store = folders
    before = (folder / "holder").read_bytes()
    other = threading.Thread(target=go_on, args=(folder, store))
    with holder._alone(store):
        other.start()
        other.join(0.3)
        assert (folder / "holder").read_bytes() == before
    other.join()
    assert (folder / "holder").read_bytes() != before
