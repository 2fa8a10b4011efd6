"""One noise, one sum: whatever makes two sums differ, they never share noise, and both are paid for."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_run import StopAfter, crash_after, make_recipe, make_store

import sottovoce
from sottovoce.commands.release import release_run
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.runs import payments
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def store(tmp_path) -> Path:
    return make_store(tmp_path)


# With secrets from entropy every other user joins: a cohort that is empty, whose sum nothing can change, is as good as
# impossible (2^-36), and so are two cohorts that are the same.
ENTROPY = {"secrets": "entropy", "cohort": 18}


@pytest.fixture(params=["entropy", pytest.param("seeded", marks=pytest.mark.slow)])
def recipe(request, store) -> Recipe:
    privacy = ENTROPY if request.param == "entropy" else {"secrets": "seeded"}
    return make_recipe(store).replace(privacy=privacy, run={"rounds": 8})


@pytest.fixture
def keys(monkeypatch) -> list[tuple[int, bytes]]:
    """The keys of all noise that is drawn, each with its round."""
    drawn, real = [], Mechanism.add_noise

    def add_noise(self, query, noise, round_number, clip_norms, key):
        drawn.append((round_number, bytes(key)))
        return real(self, query, noise, round_number, clip_norms, key)

    monkeypatch.setattr(Mechanism, "add_noise", add_noise)
    return drawn


def change_sums(patch: pytest.MonkeyPatch, cohorts: list | None = None) -> None:
    """As a switch of the machine does that no list of switches has: the same names, other sums."""
    real = SumInBlocks.__call__

    def changed(self, algorithm, task, store):
        if cohorts is not None:
            cohorts.append(tuple(task.cohort))
        summed = real(self, algorithm, task, store)
        return summed._replace(total=jax.tree.map(lambda leaf: np.asarray(leaf) * (1 + 2**-20), summed.total))

    patch.setattr(SumInBlocks, "__call__", changed)


def charged(store: Path) -> int:
    return sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent())


def test_the_same_sum_again_has_the_same_noise_at_no_charge(recipe, store, tmp_path, keys):
    crash_after(recipe, tmp_path / "run", 6)  # the checkpoint is at round 4; 5 and 6 were paid for
    before = charged(store)
    result = sottovoce.resume(tmp_path / "run")
    assert result.statement.charged_again == 0
    assert charged(store) == before
    assert keys[4:6] == keys[6:8]
    assert len({key for _, key in keys}) == 8


def test_another_sum_under_the_same_name_is_a_new_attempt_that_is_paid_for(recipe, store, tmp_path, keys, monkeypatch):
    crash_after(recipe, tmp_path / "run", 6)
    before, cohorts = charged(store), []
    change_sums(monkeypatch, cohorts)
    result = sottovoce.resume(tmp_path / "run")
    entries = Ledger.open(tmp_path / "run" / "ledger.jsonl").entries
    assert [(entry.round, entry.attempt) for entry in entries][-4:] == [(5, 1), (6, 1), (7, 0), (8, 0)]
    assert result.statement.charged_again == 2
    assert charged(store) == before + 2
    assert len({key for _, key in keys}) == len(keys) == 6 + 4
    # Round 5 is added up under the old attempt's keys, given up, and added up anew on a cohort of its own.
    assert cohorts[0] != cohorts[1]


def test_two_copies_whose_sums_differ_share_no_noise_and_both_are_charged(recipe, store, tmp_path, keys, monkeypatch):
    sottovoce.train(recipe, tmp_path / "one", stop=StopAfter(3))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    sottovoce.resume(tmp_path / "one")
    before = charged(store)
    with monkeypatch.context() as patch:
        change_sums(patch)
        sottovoce.resume(tmp_path / "copy")
    assert charged(store) == before + 5
    assert len({key for _, key in keys}) == len(keys) == 8 + 5


def test_copies_of_store_and_run_whose_sums_differ_share_no_noise(store, tmp_path, keys, monkeypatch):
    """Neither knows of the other: their names agree in everything, and so do their cohorts."""
    recipe = make_recipe(store).replace(privacy=ENTROPY)
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3))
    kept = tmp_path / "kept"
    for name in ("run", "store"):
        shutil.copytree(tmp_path / name, kept / name)
    sottovoce.resume(tmp_path / "run")
    first = keys[3:]
    for name in ("run", "store"):
        shutil.rmtree(tmp_path / name)
        shutil.copytree(kept / name, tmp_path / name)
    with monkeypatch.context() as patch:
        change_sums(patch)
        sottovoce.resume(tmp_path / "run")
    second = keys[6:]
    assert [number for number, _ in first] == [number for number, _ in second] == [4, 5, 6]
    assert not {key for _, key in first} & {key for _, key in second}


@pytest.mark.parametrize("lost", ["gone", "torn"])
def test_a_paid_attempt_whose_sum_is_not_known_is_a_new_one(recipe, store, tmp_path, keys, lost):
    crash_after(recipe, tmp_path / "run", 6)
    for path in (tmp_path / "run" / "secrets").glob("*.sums"):
        path.unlink() if lost == "gone" else path.write_bytes(path.read_bytes()[:-1])
    expected = 2 if lost == "gone" else 1  # of round 5 it is known
    assert sottovoce.resume(tmp_path / "run").statement.charged_again == expected
    assert len({key for _, key in keys}) == 8 + expected


@pytest.mark.parametrize("place", ["_chain_append", "sums_kept"])
def test_a_crash_between_the_sum_and_the_ledger_is_safe(recipe, store, tmp_path, keys, monkeypatch, place):
    """Before or after the sum is on disk: nothing was released, so nothing is paid for twice."""
    with monkeypatch.context() as patch:
        owner, name = (Ledger, "spend") if place == "_chain_append" else (payments.Sums, "keep")
        real, calls = getattr(owner, name), []

        def die(self, *arguments):
            calls.append(name)
            if len(calls) == 3:
                raise RuntimeError("crash")
            return real(self, *arguments)

        patch.setattr(owner, name, die)
        with pytest.raises(RuntimeError, match="crash"):
            sottovoce.train(recipe, tmp_path / "run")
    assert sottovoce.resume(tmp_path / "run").statement.charged_again == 0
    assert {number for number, _ in keys} == set(range(1, 9))
    assert len({key for _, key in keys}) == 8


def test_the_hash_of_a_sum_is_nowhere(store, tmp_path, monkeypatch, capsys, caplog):
    """Whoever guesses a sum could confirm it, and take the noise off."""
    digests, real = [], payments.digest_of

    def noted(sums):
        digests.append(real(sums))
        return digests[-1]

    monkeypatch.setattr(payments, "digest_of", noted)
    recipe = make_recipe(store).replace(privacy=ENTROPY, run={"rounds": 8})
    crash_after(recipe, tmp_path / "run", 6)
    result = sottovoce.resume(tmp_path / "run")
    assert len(digests) == 6 + 4
    secrets = tmp_path / "run" / "secrets"
    tags = [line.split()[1] for path in secrets.glob("*.sums") for line in path.read_text().split("\n") if line]
    assert len(tags) >= 2
    for path in secrets.iterdir():
        assert path.stat().st_mode & 0o077 == 0
    forms = [form for digest in digests for form in (digest, digest.hex().encode(), base64.b64encode(digest))]
    forms += [digest[:16].hex().encode()[:16] for digest in digests]
    of_tags = [form for tag in tags for form in (tag.encode()[:16], bytes.fromhex(tag)[:16])]
    for path in secrets.iterdir():
        assert not any(form in path.read_bytes() for form in forms), path
    sottovoce.report_run(tmp_path / "run")
    assert release_run(tmp_path / "run", tmp_path / "out").released
    assert not secrets.exists()
    files = [path for folder in ("run", "store", "out") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert len(files) > 10
    said = capsys.readouterr()
    texts = [path.read_bytes() for path in files]
    texts += [text.encode() for text in (said.out, said.err, caplog.text, repr(result))]
    for text in texts:
        assert not any(form in text for form in [*forms, *of_tags])


def copied_when(patch: pytest.MonkeyPatch, owner, name: str, round_number: int, copy) -> None:
    """Take a copy when something is called in a round, before or while a run goes on."""
    real, calls = getattr(owner, name), []

    def noted(*arguments):
        calls.append(name)
        if len(calls) == round_number:
            copy()
        return real(*arguments)

    patch.setattr(owner, name, noted)


@pytest.mark.parametrize("what", ["ledger", "folder"])
def test_a_copy_that_lacks_a_release_is_charged(store, tmp_path, keys, monkeypatch, what):
    """A ledger may be of an earlier round than the secrets copied after it, and a folder of before its line."""
    recipe = make_recipe(store).replace(privacy=ENTROPY, run={"rounds": 8, "checkpoint_every": 9})
    run, copy = tmp_path / "run", tmp_path / "copy"

    def copy_ledger():
        copy.mkdir()
        for name in ("ledger.jsonl", "ledger.head"):
            shutil.copy(run / name, copy / name)

    with monkeypatch.context() as patch:
        # Either before round 5, the rest after round 6; or in round 6, after all was checked and before its line.
        if what == "ledger":
            copied_when(patch, Ledger, "spend", 5, copy_ledger)
        else:
            copied_when(patch, payments.Sums, "keep", 6, lambda: shutil.copytree(run, copy))
        crash_after(recipe, run, 6)
    if what == "ledger":
        for path in run.rglob("*"):
            if path.is_file() and not (copy / path.relative_to(run)).exists():
                (copy / path.relative_to(run)).parent.mkdir(exist_ok=True)
                shutil.copy(path, copy / path.relative_to(run))
    monkeypatch.setattr("sottovoce.build.assembly.fingerprint", lambda *_: "another machine")
    sottovoce.resume(copy)
    assert len({key for _, key in keys}) <= charged(store)


@pytest.mark.parametrize("algorithm", ["central", "fedavg"])
def test_where_nothing_is_promised_a_sum_that_is_not_known_does_not_end_a_run(store, tmp_path, algorithm):
    """Central training adds nothing up that could be another sum."""
    recipe = make_recipe(store).replace(
        privacy={"mode": "none", "noise_multiplier": None, "accountant": "auto"}, run={"algorithm": algorithm}
    )
    crash_after(recipe, tmp_path / "run", 5)
    for path in (tmp_path / "run" / "secrets").glob("*.sums"):
        path.unlink()
    assert sottovoce.resume(tmp_path / "run").round == 6
    entries = Ledger.open(tmp_path / "run" / "ledger.jsonl").entries
    assert [(entry.round, entry.attempt) for entry in entries][-2:] == [(5, 0), (6, 0)]
