from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from sottovoce.runs import lease
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.lease import Lease


def ledger(*checks: str) -> Chain:
    """A ledger that ends with the last of these checksums."""
    chain = Chain(Path("ledger.jsonl"))
    chain.last_check, chain.checks = checks[-1], set(checks)
    return chain


LEDGER = ledger("a" * 32)


@pytest.fixture
def folders(tmp_path):
    folder, store = tmp_path / "run", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    assert not Lease(folder, store).acquire(LEDGER)  # nobody held it
    assert Lease(folder, store).acquire(LEDGER)
    return folder, store


def test_a_copy_is_a_stranger_as_soon_as_the_other_goes_on(folders, tmp_path):
    folder, store = folders
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert Lease(folder, store).renew(LEDGER)
    assert not Lease(copy, store).renew(LEDGER)
    assert Lease(folder, store).renew(LEDGER)  # the stranger changed nothing
    assert not Lease(copy, store).acquire(LEDGER)
    assert not Lease(folder, store).renew(LEDGER)  # now the first is one
    assert Lease(copy, store).renew(LEDGER)


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
            Lease(folder, store).renew(LEDGER)
    assert Lease(folder, store).acquire(LEDGER)


def test_tokens_are_for_their_owner_alone(folders):
    folder, store = folders
    assert Lease(folder, store).renew(LEDGER)
    for path in (*folder.iterdir(), *(store / "holders").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("go_on", [Lease.acquire, Lease.renew])
def test_two_at_once_come_one_after_the_other(folders, go_on):
    """Else both could find the token of before, and both be rightful."""
    folder, store = folders
    before = (folder / "holder").read_bytes()
    other = threading.Thread(target=go_on, args=(Lease(folder, store), LEDGER))
    with Lease(folder, store)._alone():
        other.start()
        other.join(0.3)
        assert (folder / "holder").read_bytes() == before
    other.join()
    assert (folder / "holder").read_bytes() != before


def test_a_copy_whose_ledger_is_older_than_its_token_is_a_stranger(folders):
    folder, store = folders
    later = ledger("a" * 32, "b" * 32)
    assert Lease(folder, store).renew(later)
    assert not Lease(folder, store).renew(LEDGER)
    assert Lease(folder, store).renew(later)
    assert not Lease(folder, store).acquire(LEDGER)


@pytest.mark.parametrize("name", ["holder.name", "holder"])
@pytest.mark.parametrize(
    "damage", [b"\xff" * 32, b"../" * 12, b"\0" * 40, b""], ids=["bytes", "a path", "NUL", "empty"]
)
def test_whose_token_is_damaged_does_not_hold_the_lease(folders, name, damage):
    """It pays, and gets another; what stands in the file is never the name of a path."""
    folder, store = folders
    (folder / "holder.next").unlink()
    (folder / name).write_bytes(damage)
    paid = []
    assert not Lease(folder, store).renew(LEDGER)
    assert not Lease(folder, store).acquire(LEDGER, lambda: paid.append(1))
    assert paid == [1]
    assert Lease(folder, store).renew(LEDGER)
