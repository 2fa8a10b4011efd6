"""Ledgers lose no charge unseen: whatever befalls the file, ε is not lower without an error or a note."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from power_cut import Disk
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.ledger import Ledger, StoreLedger, read_ledger
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.ledger import release_ledger

EVENT = SampledGaussian(1.0, "poisson", 0.01)


def of_run(path: Path) -> None:
    ledger = Ledger.create(path, {"run": "a", "recipe": "b"})
    ledger.spend([EVENT] * 3, 1)


def of_store(path: Path) -> None:
    for run in ("a", "b", "c"):
        StoreLedger(path).charge(run, "training", EVENT, 2)


def of_release(path: Path) -> None:
    (path).write_bytes(release_ledger("a", [(EVENT, 2), (SampledGaussian(2.0, "poisson", 0.01), 3)]))


MAKERS: dict[str, Callable[[Path], None]] = {"run": of_run, "store": of_store, "release": of_release}


def charges(path: Path) -> tuple[int, list[str]]:
    found = read_ledger(path)
    return sum(count for _, count in found.spent), found.notes


def cuts(contents: bytes) -> Iterator[bytes]:
    for length in range(len(contents)):
        yield contents[:length]


def flips(contents: bytes) -> Iterator[bytes]:
    for place in range(len(contents)):
        bit = (0, 3, 5)[place % 3]
        yield contents[:place] + bytes([contents[place] ^ 1 << bit]) + contents[place + 1 :]


def moves(contents: bytes) -> Iterator[bytes]:
    lines = contents.splitlines(keepends=True)
    for number in range(len(lines)):
        yield b"".join(lines[:number] + lines[number + 1 :])
        yield b"".join([*lines[:number], lines[number], *lines[number:]])
        for other in range(number):
            swapped = list(lines)
            swapped[number], swapped[other] = swapped[other], swapped[number]
            yield b"".join(swapped)
    yield contents + lines[-1]
    yield contents.replace(b'"count": 2', b'"count": 1').replace(b'"round": 3', b'"round": 2')


@pytest.mark.parametrize("accident", [cuts, flips, moves], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", MAKERS)
def test_no_accident_lowers_what_was_spent_unseen(tmp_path, kind, accident):
    path = tmp_path / "ledger.jsonl"
    MAKERS[kind](path)
    whole, before = path.read_bytes(), charges(path)[0]
    refused = 0
    for contents in accident(whole):
        if contents == whole:
            continue
        path.write_bytes(contents)
        try:
            found, notes = charges(path)
        except SottoError:
            refused += 1
            continue
        assert found >= before or notes, contents[-80:]
    assert refused


@pytest.mark.parametrize("kind", ["run", "store"])
def test_whoever_writes_next_sees_the_same(tmp_path, kind):
    """And never makes a loss good by writing over it."""
    path = tmp_path / "ledger.jsonl"
    MAKERS[kind](path)
    whole, before, head = path.read_bytes(), charges(path)[0], path.with_suffix(".head").read_bytes()

    def write_more() -> None:
        if kind == "store":
            StoreLedger(path).charge("d", "training", EVENT, 1)
        else:
            Ledger.open(path).spend([EVENT], 4)

    for contents in [*cuts(whole), *moves(whole)]:
        path.write_bytes(contents)
        path.with_suffix(".head").write_bytes(head)
        try:
            write_more()
        except SottoError:
            assert path.read_bytes() == contents
            continue
        assert charges(path)[0] == before + 1


@pytest.mark.parametrize("kind", MAKERS)
def test_a_last_line_without_its_newline_counts(tmp_path, kind):
    """`truncate -s -1`: the whole charge is there."""
    path = tmp_path / "ledger.jsonl"
    MAKERS[kind](path)
    whole, before = path.read_bytes(), charges(path)
    path.write_bytes(whole[:-1])
    assert charges(path) == before
    if kind == "run":
        assert Ledger.open(path).rounds == 3
        assert path.read_bytes() == whole  # mended
    if kind == "store":
        StoreLedger(path).charge("d", "training", EVENT, 5)
        assert path.read_bytes().startswith(whole)
        assert charges(path)[0] == before[0] + 5


def test_only_what_does_not_parse_is_cut_and_it_is_said(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    of_store(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"run": "d", "wh')
    (note,) = read_ledger(path).notes
    assert "counts for nothing" in note
    StoreLedger(path).charge("e", "training", EVENT, 1)
    assert "is cut off" in caplog.text
    assert charges(path) == (7, [])
    run = tmp_path / "run.jsonl"
    of_run(run)
    with open(run, "ab") as file:
        file.write(b'{"round": 4, "atte')
    opened = Ledger.open(run)
    assert (opened.rounds, len(opened.notes)) == (3, 1)
    assert Ledger.open(run).notes == []


def test_what_comes_after_a_line_on_the_same_line_is_no_torn_line(tmp_path):
    """The newline turned into something else: cut off as torn, a charge would be gone."""
    path = tmp_path / "ledger.jsonl"
    of_store(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x0b")
    with pytest.raises(DamagedRun, match="line 3"):
        read_ledger(path)


@pytest.mark.parametrize("write", [of_run, of_store])
def test_a_ledger_cannot_shed_its_checksums(tmp_path, write):
    path = tmp_path / "ledger.jsonl"
    write(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["check"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    path.with_suffix(".head").unlink()
    for reader in (Chain.read, read_ledger):
        with pytest.raises(DamagedRun, match="has no checksum"):
            reader(path)


@pytest.mark.parametrize("contents", [None, b""], ids=["gone", "emptied"])
def test_a_store_that_knows_of_runs_has_charges(tmp_path, contents):
    path = tmp_path / "ledger.jsonl"
    if contents is not None:
        path.write_bytes(contents)
    assert StoreLedger(path).spent() == []
    (tmp_path / "ledger.charged").touch()
    with pytest.raises(DamagedRun, match="put it back"):
        StoreLedger(path).spent()
    with pytest.raises(DamagedRun, match="put it back"):
        StoreLedger(path).charge("a", "training", EVENT, 1)


def test_every_charge_leaves_a_trace_of_itself(tmp_path):
    """Of an evaluation or a choice among runs too."""
    path = tmp_path / "ledger.jsonl"
    StoreLedger(path).charge("evaluate", "private evaluation", EVENT, 1)
    assert StoreLedger(path).spent() == [(EVENT, 1)]
    for name in ("ledger.jsonl", "ledger.head"):
        (tmp_path / name).unlink()
    with pytest.raises(DamagedRun, match="its people were charged before"):
        StoreLedger(path).spent()


def test_an_empty_ledger_is_no_proof_that_nothing_was_spent(tmp_path):
    (tmp_path / "ledger.jsonl").touch()
    with pytest.raises(SottoError, match="holds no charge; give the ledger"):
        read_ledger(tmp_path / "ledger.jsonl")


def test_a_line_that_cannot_be_written_leaves_nothing_of_it(tmp_path, monkeypatch):
    from sottovoce.runs import hash_chain as module

    path = tmp_path / "ledger.jsonl"
    chain = Chain(path)
    chain.append({"a": 1})
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            chain.append({"a": 2})
    assert path.read_bytes() == before
    chain.append({"a": 3})
    assert Chain.read(path).lines == [{"a": 1}, {"a": 3}]


def test_a_head_that_is_damaged_is_named_itself(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "ledger.jsonl")
    chain.append({"one": 1})
    (tmp_path / "ledger.head").write_bytes(bytes(32))
    with pytest.raises(DamagedRun, match=r"ledger\.head is damaged"):
        Chain.read(tmp_path / "ledger.jsonl")


def test_a_charge_that_is_on_disk_is_not_refused_for_what_lies_beside_it(tmp_path, monkeypatch):
    """It would be charged again."""
    real = os.open

    def full(path, flags, mode=0o777):
        if Path(path).name in ("ledger.head", "charged.partial"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    StoreLedger(tmp_path / "ledger.jsonl").charge("a", "training", EVENT, 1)
    assert StoreLedger(tmp_path / "ledger.jsonl").spent() == [(EVENT, 1)]


def test_a_file_whose_name_a_killed_process_did_not_flush_outlasts_a_power_cut_once_it_was_read(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    disk = Disk(tmp_path, monkeypatch)
    try:
        Chain(path).append({"round": 1})
        disk.cut()
        assert not path.exists()
        Chain(path).append({"round": 1})
        assert Chain.read(path, repair=True).lines
        disk.cut()
        assert Chain.read(path).lines == [{"round": 1}]
    finally:
        disk.close()
