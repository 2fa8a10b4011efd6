"""Copies, restored folders and ledgers, two processes in one folder, forks: one goes on. And where secrets lie."""

from __future__ import annotations

import base64
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from test_kills import BLT
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from power_cut import put_back, tree_of
from sottovoce.commands.export import export_run
from sottovoce.commands.live_line import Progress
from sottovoce.commands.release import release_run
from sottovoce.reporting.statement import read_statement
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import FellBehind, StoreLedger
from sottovoce.runs.payments import RoundPayment
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe

LEDGER = ("ledger.jsonl", "ledger.head")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store: Path) -> Recipe:
    """Checkpoints at rounds 2, 4 and 6."""
    return make_recipe(store).replace(privacy={"secrets": "entropy"}, run={"checkpoint_every": 2})


@pytest.fixture
def begun(recipe: Recipe, tmp_path: Path) -> Path:
    """A run after round 2."""
    return sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(2)).path


def seen_of(run: Path) -> set[int]:
    """The rounds of which a folder shows anything."""
    folder = RunFolder(run)
    lines = {line["round"] for lines in (folder.record, folder.diagnostics) for line in lines.read()}
    return lines | {checkpoints.last_round(folder.checkpoints) or 0, folder.read_statement()["rounds_done"]}


def test_of_two_copies_one_goes_on_and_the_other_is_told_the_way(begun, store, tmp_path):
    copy = Path(shutil.copytree(begun, tmp_path / "copy"))
    assert sottovoce.resume(copy).ended == "finished"
    with pytest.raises(DamagedRun, match=rf"{begun} fell behind: .*to round 6") as refused:
        sottovoce.resume(begun)
    assert "start another run from its model (model.initial), which is charged as one" in str(refused.value)
    assert max(seen_of(begun)) == 2
    # The way on: what it has released is a start like another, and its people are charged for both runs.
    then = make_recipe(store).replace(model={"initial": str(begun)}, run={"rounds": 1}, privacy={"secrets": "entropy"})
    after = sottovoce.train(then, tmp_path / "then").statement
    assert after.epsilon > read_statement(RunFolder(begun)).epsilon


@pytest.mark.parametrize("where", ["a copy", "the same folder"])
def test_of_two_processes_that_train_one_run_one_commits(begun, tmp_path, monkeypatch, where):
    """The second begins, and ends, while the first plays its rounds. The lock is a courtesy: here nobody has it."""
    other = begun if where == "the same folder" else Path(shutil.copytree(begun, tmp_path / "copy"))
    monkeypatch.setattr(RunFolder, "locked", lambda self: nullcontext())
    shown: list[int] = []

    def observe(progress: Progress) -> None:
        shown.append(progress.round)
        if len(shown) == 1:
            assert sottovoce.resume(other, stop=StopAfter(2)).round == 4

    with pytest.raises(FellBehind, match=r"went on, to round 4.*nothing of its rounds after round 2 was shown"):
        sottovoce.resume(begun, observer=observe)
    assert shown == [2]
    assert max(seen_of(begun)) == (4 if other == begun else 2)
    assert sottovoce.resume(other).ended == "finished"


def test_a_draft_of_another_process_never_gets_the_name_of_a_committed_checkpoint(begun, monkeypatch):
    """Without a lock, a second process begins, and is killed, between the draft and the commit of the first."""
    monkeypatch.setattr(RunFolder, "locked", lambda self: nullcontext())
    real, drafts, shown = checkpoints.save_draft, [], []

    def save_draft(folder, saved):
        drafts.append(real(folder, saved))
        if len(drafts) == 2:
            raise RuntimeError("killed")
        with pytest.raises(RuntimeError, match="killed"):
            sottovoce.resume(begun)
        return drafts[0]

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_draft", save_draft)
        with pytest.raises(FileNotFoundError):  # the second has tidied up, so the first shows nothing
            sottovoce.resume(begun, observer=lambda progress: shown.append(progress.round))
    assert [commit.round for commit in drafts] == [4, 4]
    assert shown == [2]
    assert max(seen_of(begun)) == 2
    with pytest.raises(DamagedRun, match="went on elsewhere to round 4"):
        sottovoce.resume(begun)


def test_an_older_folder_of_a_run_is_refused(begun):
    kept = tree_of(begun)
    sottovoce.resume(begun, stop=StopAfter(2))
    put_back(begun, kept)
    with pytest.raises(DamagedRun, match="fell behind"):
        sottovoce.resume(begun)
    assert max(seen_of(begun)) == 2


@pytest.mark.parametrize("older", ["of round 2", "of before the run", "emptied", "gone"])
def test_an_older_ledger_of_a_store_is_refused(recipe, store, tmp_path, older):
    sottovoce.train(recipe.replace(run={"rounds": 1}), tmp_path / "other")  # so it has charges before
    kept = {"of before the run": {name: (store / name).read_bytes() for name in LEDGER}}
    run = sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(2)).path
    kept["of round 2"] = {name: (store / name).read_bytes() for name in LEDGER}
    sottovoce.resume(run, stop=StopAfter(2))
    for name in LEDGER:
        (store / name).unlink()
        if older == "emptied":
            (store / name).touch()
        elif older != "gone":
            (store / name).write_bytes(kept[older][name])
    before = {name: (store / name).read_bytes() for name in LEDGER if (store / name).exists()}
    with pytest.raises(DamagedRun):
        sottovoce.resume(run)
    assert {name: (store / name).read_bytes() for name in LEDGER if (store / name).exists()} == before
    assert max(seen_of(run)) == 4


def test_a_process_that_is_forked_before_the_sum_gives_two_noises(recipe, tmp_path, monkeypatch):
    keys, real = [], RoundPayment.charge

    def charge(self, event):
        inside, outside = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            os.write(outside, real(self, event))
            os._exit(0)
        os.waitpid(child, 0)
        keys.append((os.read(inside, 64), real(self, event)))
        return keys[-1][1]

    monkeypatch.setattr(RoundPayment, "charge", charge)
    sottovoce.train(recipe, tmp_path / "run")
    assert len({key for pair in keys for key in pair}) == 2 * 6
    assert all(len(key) == 32 for pair in keys for key in pair)


def forms(secret: bytes) -> list[bytes]:
    return [secret, secret.hex().encode(), base64.b64encode(secret)]


def served(run: Path, out: Path) -> list[Path]:
    """All files that verbs make of a run, the release last: it erases the secrets."""
    sottovoce.report_run(run)
    if find_spec("onnxruntime"):
        export_run(run, out / "export")
    assert (found := release_run(run, out / "release")).released, found.reasons
    return [path for path in out.rglob("*") if path.is_file()]


def everything_but(folder: Path, hidden: Callable[[Path], bool]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not hidden(path)}


def test_the_state_of_correlated_noise_lies_with_the_secrets_alone(store, tmp_path, monkeypatch):
    """Its bytes are in no other file of the run, of a report, an export or a release; at the end in none at all."""
    states, real = [], Secrets.save

    def save(self, folder, noise=None):
        states.extend((noise or {}).values())
        return real(self, folder, noise)

    monkeypatch.setattr(Secrets, "save", save)
    # z is so large that the release passes its own checks.
    privacy = {**BLT, "secrets": "entropy", "noise_multiplier": 3.0}
    recipe = make_recipe(store).replace(privacy=privacy, run={"checkpoint_every": 2})
    run = sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(4)).path
    rows = [row for state in states for row in np.atleast_2d(state) if np.any(row)]
    parts = [row[:2] for row in rows]
    needles = [part.tobytes() for part in parts] + [part.astype(np.float32).tobytes() for part in parts]
    needles += [str(int(part[0])).encode() for part in parts]
    assert len(needles) >= 6
    secrets = RunFolder(run).secrets
    assert len(list(secrets.glob("*.noise"))) == 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in (secrets, *secrets.iterdir()))
    stopped = Path(shutil.copytree(run, tmp_path / "stopped"))
    served(stopped, tmp_path / "out")
    for path, contents in everything_but(tmp_path, lambda path: path.suffix == ".noise").items():
        assert not any(needle in contents for needle in needles), path
    assert not RunFolder(stopped).secrets.exists()
    sottovoce.resume(run)
    assert not list(tmp_path.rglob("*.noise"))
    for path, contents in everything_but(tmp_path, lambda path: False).items():
        assert not any(needle in contents for needle in needles), path


def test_keys_of_noise_are_never_on_disk_and_old_keys_are_erased(recipe, store, tmp_path, monkeypatch):
    noise, stretches = [], []
    draw, forget = Secrets.noise_key, Secrets.forget

    def noise_key(self, number):
        noise.append(draw(self, number))
        stretches.append(self.stretch)
        return noise[-1]

    def check() -> None:
        files = everything_but(tmp_path, lambda path: False)
        assert not any(form in contents for key in noise for form in forms(key) for contents in files.values())

    monkeypatch.setattr(Secrets, "noise_key", noise_key)
    monkeypatch.setattr(Secrets, "forget", staticmethod(lambda *given: (check(), forget(*given))))
    sottovoce.train(recipe, tmp_path / "run", observer=lambda progress: check())
    assert len(set(noise)) == 6
    assert len(set(stretches)) == 3
    files = everything_but(tmp_path, lambda path: False)
    assert not any(form in contents for key in stretches for form in forms(key) for contents in files.values())
    assert StoreLedger(store / "ledger.jsonl").path in files
