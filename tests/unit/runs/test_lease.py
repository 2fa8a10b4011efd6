from __future__ import annotations

import shutil
import threading

import pytest

from sottovoce.runs import lease
from sottovoce.runs.lease import State

LEDGER = State("a" * 32, {"a" * 32})


@pytest.fixture
def folders(tmp_path):
    folder, store = tmp_path / "run", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    assert not lease.take_up(folder, store, LEDGER)  # nobody held it
    assert lease.take_up(folder, store, LEDGER)
    return folder, store


def test_a_copy_is_a_stranger_as_soon_as_the_other_goes_on(folders, tmp_path):
    folder, store = folders
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert lease.hold_on(folder, store, LEDGER)
    assert not lease.hold_on(copy, store, LEDGER)
    assert lease.hold_on(folder, store, LEDGER)  # the stranger changed nothing
    assert not lease.take_up(copy, store, LEDGER)
    assert not lease.hold_on(folder, store, LEDGER)  # now the first is one
    assert lease.hold_on(copy, store, LEDGER)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_before_a_round_does_not_make_a_stranger(folders, monkeypatch, writes):
    folder, store = folders
    real, done = lease._write_over, []

    def crash(path, token):
        if len(done) == writes:
            raise RuntimeError("crash")
        done.append(path)
        real(path, token)

    with monkeypatch.context() as patch:
        patch.setattr(lease, "_write_over", crash)
        with pytest.raises(RuntimeError, match="crash"):
            lease.hold_on(folder, store, LEDGER)
    assert lease.take_up(folder, store, LEDGER)


def test_tokens_are_for_their_owner_alone(folders):
    folder, store = folders
    assert lease.hold_on(folder, store, LEDGER)
    for path in (*folder.iterdir(), *(store / "holders").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("go_on", [lease.take_up, lease.hold_on])
def test_two_at_once_come_one_after_the_other(folders, go_on):
    """Else both could find the token of before, and both be rightful."""
    folder, store = folders
    before = (folder / "holder").read_bytes()
    other = threading.Thread(target=go_on, args=(folder, store, LEDGER))
    with lease._alone(store):
        other.start()
        other.join(0.3)
        assert (folder / "holder").read_bytes() == before
    other.join()
    assert (folder / "holder").read_bytes() != before


def test_a_copy_whose_ledger_is_older_than_its_token_is_a_stranger(folders):
    folder, store = folders
    later = State("b" * 32, {"a" * 32, "b" * 32})
    assert lease.hold_on(folder, store, later)
    assert not lease.hold_on(folder, store, LEDGER)
    assert lease.hold_on(folder, store, later)
    assert not lease.take_up(folder, store, LEDGER)


def test_tokens_of_before_they_named_a_line_hold(folders):
    folder, store = folders
    token = "c" * 32
    for path in (folder / "holder", folder / "holder.next", store / "holders" / lease.name_of(folder)):
        path.write_text(token)
    assert lease.hold_on(folder, store, LEDGER)
    assert (folder / "holder").read_text().endswith(LEDGER.last)
