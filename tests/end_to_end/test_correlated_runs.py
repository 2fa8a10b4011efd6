"""Whole runs with noise that is correlated over rounds: no round is released twice, and none before it is on disk."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_world import results_of
from test_kill_and_resume import KILLED_TRAINING
from test_sums_and_noise import change_sums
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.build import assembly
from sottovoce.commands.audit_canaries import audit_canaries
from sottovoce.commands.audit_rounds import audit_rounds
from sottovoce.commands.audit_tails import audit_tails
from sottovoce.commands.helper import work_as_helper
from sottovoce.commands.release import release_run
from sottovoce.runs import checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.runs.record import Lines
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting import epsilon, total_of
from sottovoce_evidence.accounting.events import ADDED, CorrelatedGaussian, Covered
from sottovoce_evidence.errors import BudgetExhausted, SottoError
from sottovoce_evidence.files import CHECKSUM
from sottovoce_evidence.recipe import Recipe
from thread_group import in_every_process

KINDS = {
    "banded": {"noise": "banded", "noise_coefficients": (1.0, 0.5, 0.3)},
    "blt": {"noise": "blt", "noise_coefficients": (0.3, 0.2), "noise_decays": (0.9, 0.4)},
}
OTHERS_ARE_SLOW = [pytest.param(kind, marks=() if kind == "blt" else pytest.mark.slow) for kind in KINDS]
SHARED = "share earlier noise"


class Killed(BaseException):
    """No `except Exception` sees it: as after kill -9, the disk is all there is."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return make_store(tmp_path_factory.mktemp("people"))


def recipe_of(store: Path, kind: str = "blt", **privacy) -> Recipe:
    own = {"sampling": "in_turn", "accountant": "pld", **KINDS[kind], **privacy}
    return make_recipe(store).replace(privacy=own)


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """A run of each kind that was never stopped."""
    folder, found = tmp_path_factory.mktemp("whole"), {}

    def run(kind: str = "blt") -> Path:
        if kind not in found:
            sottovoce.train(recipe_of(store, kind), folder / kind)
            found[kind] = folder / kind
        return found[kind]

    return run


def die_at(patch: pytest.MonkeyPatch, owner, name: str, nth: int = 1, *, before: bool = False) -> None:
    """The nth call of a function is the last thing the process does."""
    real, calls = getattr(owner, name), []

    def deadly(*arguments, **named):
        calls.append(name)
        if before and len(calls) == nth:
            raise Killed
        result = real(*arguments, **named)
        if len(calls) == nth:
            raise Killed
        return result

    patch.setattr(owner, name, deadly)


def kill(owner, name: str, nth: int, act, *, before: bool = False) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, owner, name, nth, before=before)
        with pytest.raises(Killed):
            act()


def killed_in_round(recipe: Recipe, out: Path, number: int) -> None:
    """The round is paid for, and its noise is not drawn. Checkpoints are at rounds 4 and 6."""
    kill(Ledger, "spend", number, lambda: sottovoce.train(recipe, out))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def charges(store: Path) -> Counter:
    """What the people of a store were charged, by event."""
    return total_of(StoreLedger(store / "ledger.jsonl").spent())


# --- kill and resume -------------------------------------------------------------------------------------------------

DEATHS = [
    *[(Ledger, "spend", 1, False)] * 3,  # each time one more round is paid for, and nothing of it is on disk
    (checkpoint, "save", 1, True),  # the keys and the state of the noise are saved, the checkpoint is not
    (checkpoint, "save", 1, False),  # the checkpoint is saved, its lines are not in the record
    (Lines, "append", 1, False),  # a line of the record is written, and the others are not
    (Ledger, "spend", 1, True),
    (Secrets, "save", 1, False),
    (RunFolder, "save_model", 1, True),  # all rounds are done, and the model is not written
]


@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_killed_anywhere_and_resumed_a_run_ends_with_the_same_bits(store, whole, tmp_path, kind):
    unbroken, out = whole(kind), tmp_path / "run"
    before = charges(store)
    kill(Ledger, "spend", 1, lambda: sottovoce.train(recipe_of(store, kind), out))
    for owner, name, nth, early in DEATHS:
        kill(owner, name, nth, lambda: sottovoce.resume(out), before=early)
    assert sottovoce.resume(out).ended == "finished"
    assert results_of(out) == results_of(unbroken)
    assert lines(out / "record.jsonl") == lines(unbroken / "record.jsonl")
    ((_, count),) = (charges(store) - before).items()
    assert count == 1  # the run is charged once


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blt"])
def test_killed_by_the_system_and_resumed_by_another_process_a_run_ends_with_the_same_bits(store, tmp_path, kind):
    path, out = tmp_path / "tiny.toml", tmp_path / "run"
    path.write_text(recipe_of(store, kind).to_toml())
    train = "import sottovoce, sys; sottovoce.train(*sys.argv[1:])"
    assert process(train, path, tmp_path / "unbroken").returncode == 0
    for place, nth, when in (("spend", 6, "after"), ("checkpoint", 2, "after")):
        shutil.rmtree(out, ignore_errors=True)
        dead = process(KILLED_TRAINING, place, nth, when, path, out)
        assert dead.returncode == -signal.SIGKILL, dead.stderr
        again = process("import sottovoce, sys; sottovoce.resume(sys.argv[1])", out)
        assert again.returncode == 0, again.stderr
        assert results_of(out) == results_of(tmp_path / "unbroken")


def test_lines_of_the_record_that_a_crash_lost_are_written_again(store, whole, tmp_path):
    out = tmp_path / "run"
    kill(checkpoint, "save", 2, lambda: sottovoce.train(recipe_of(store), out))  # the first is before round 1
    assert lines(out / "record.jsonl") == []
    sottovoce.resume(out, stop=StopAfter(1))
    assert lines(out / "record.jsonl") == lines(whole() / "record.jsonl")[:5]


@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_the_state_of_the_noise_survives_in_float64_to_the_bit(store, tmp_path, kind, monkeypatch):
    from sottovoce.privacy.mechanism import Mechanism

    states, real = {}, Mechanism.add_noise

    def add_noise(self, estimate, noise, number, clip_norms, key):
        noised, after = real(self, estimate, noise, number, clip_norms, key)
        states[number] = np.asarray(noise), np.asarray(after)
        return noised, after

    monkeypatch.setattr(Mechanism, "add_noise", add_noise)
    sottovoce.train(recipe_of(store, kind), tmp_path / "run", stop=StopAfter(3))
    (kept,) = Secrets.read_noise(tmp_path / "run/secrets", 4).values()
    sottovoce.resume(tmp_path / "run", stop=StopAfter(1))
    for found in (kept, states[4][0]):
        assert found.dtype == np.float64
        assert np.array_equal(found, states[3][1])
    assert np.abs(kept).max() > 2**30  # float32 would not hold it
    assert np.array_equal(kept, np.rint(kept))


# --- a second release of a round is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("secrets", ["entropy", pytest.param("seeded", marks=pytest.mark.slow)])
def test_another_sum_of_a_round_that_was_paid_for_is_refused(store, tmp_path, secrets, monkeypatch):
    out = tmp_path / "run"
    killed_in_round(recipe_of(store, secrets=secrets), out, 6)
    before, entries = charges(store), lines(out / "ledger.jsonl")
    with monkeypatch.context() as patch:
        change_sums(patch)
        result = sottovoce.resume(out)
    assert (result.ended, result.round) == ("budget", 4)
    assert any(SHARED in note for note in result.notes)
    assert charges(store) == before
    assert lines(out / "ledger.jsonl") == entries
    assert [line["round"] for line in lines(out / "record.jsonl")] == [1, 2, 3, 4]
    assert all(np.isfinite(values).all() for values in RunFolder(out).load_weights().values())  # usable
    assert sottovoce.resume(out).ended == "finished"  # with the sums as they were


def test_a_round_that_was_paid_for_on_another_machine_or_version_is_refused(store, tmp_path, monkeypatch):
    out, real = tmp_path / "run", assembly.fingerprint
    killed_in_round(recipe_of(store), out, 6)
    before = charges(store)
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "fingerprint", lambda *facts: real(*facts)[::-1])
        result = sottovoce.resume(out)
    assert (result.ended, result.round) == ("budget", 4)
    assert any(SHARED in note for note in result.notes)
    assert charges(store) == before


def test_another_machine_may_do_the_rounds_that_nobody_paid_for(store, tmp_path, monkeypatch):
    """The state of the noise is in the checkpoint. What was not released before is released once."""
    out, real = tmp_path / "run", assembly.fingerprint
    sottovoce.train(recipe_of(store), out, stop=StopAfter(3))
    monkeypatch.setattr(assembly, "fingerprint", lambda *facts: real(*facts)[::-1])
    assert sottovoce.resume(out).ended == "finished"


@pytest.mark.parametrize("secrets", ["entropy", pytest.param("seeded", marks=pytest.mark.slow)])
def test_a_copy_of_a_run_that_went_on_elsewhere_is_refused(store, tmp_path, secrets):
    run, copy = tmp_path / "run", tmp_path / "copy"
    sottovoce.train(recipe_of(store, secrets=secrets), run, stop=StopAfter(3))
    shutil.copytree(run, copy)
    assert sottovoce.resume(copy, stop=StopAfter(1)).round == 4
    before = charges(store)
    result = sottovoce.resume(run)  # also the original, where a copy went on first
    assert (result.ended, result.round) == ("budget", 3)
    assert any(SHARED in note for note in result.notes)
    assert charges(store) == before
    assert sottovoce.resume(copy).ended == "finished"


# --- nothing is seen before it is on disk ----------------------------------------------------------------------------


def test_nothing_of_a_round_is_seen_before_its_checkpoint_is_on_disk(store, tmp_path, monkeypatch):
    out, seen = tmp_path / "run", []

    def on_disk() -> int:
        saved, _ = checkpoint.latest(out / "checkpoints")
        assert saved is not None
        return saved.round

    real_append, real_model = Lines.append, RunFolder.save_model

    def append(self, entry):
        if self.path.name == "record.jsonl":
            seen.append(("record", entry["round"], on_disk()))
        real_append(self, entry)

    def save_model(self, *files, **more):
        seen.append(("model", None, on_disk()))
        return real_model(self, *files, **more)

    monkeypatch.setattr(Lines, "append", append)
    monkeypatch.setattr(RunFolder, "save_model", save_model)

    def observer(progress):
        seen.append(("observer", progress.round, on_disk()))

    evaluated = recipe_of(store).replace(run={"evaluate_every": 3, "evaluate_users": 2})
    sottovoce.train(evaluated, out, observer=observer, stop=StopAfter(5))
    assert sottovoce.resume(out, observer=observer).round == 6
    assert all(number is None or number <= saved for _, number, saved in seen), seen
    assert [number for what, number, _ in seen if what == "record"] == [1, 2, 3, 4, 5, 6]
    assert [number for what, number, _ in seen if what == "observer"] == [0, 1, 2, 3, 4, 5, 5, 6]
    assert [saved for what, _, saved in seen if what == "model"] == [5, 6]
    assert [line["round"] for line in lines(out / "record.jsonl") if "evaluation" in line] == [3, 6]


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_a_run_is_one_charge_and_stopping_early_costs_what_was_planned(store, whole, tmp_path, kind):
    before = charges(store)
    result = sottovoce.train(recipe_of(store, kind), tmp_path / "run", stop=StopAfter(3))
    ((event, count),) = (charges(store) - before).items()
    assert isinstance(event, CorrelatedGaussian)
    assert count == 1
    events = [entry.event for entry in Ledger.open(tmp_path / "run/ledger.jsonl").entries]
    assert events == [event, *[Covered(1.2, ADDED)] * 2]
    statement = json.loads((whole(kind) / "privacy.json").read_text())
    assert result.statement.to_json()["epsilon"] == statement["epsilon"]
    assert result.statement.epsilon == pytest.approx(epsilon([(event, 1)], 1e-3, "pld"), rel=1e-3)


def test_no_round_beyond_the_planned_ones_is_noised_or_charged(store):
    from sottovoce.data.store import Store

    made = assembly.assemble(recipe_of(store), Store.open(store))
    mechanism = made.algorithm.mechanism
    with pytest.raises(SottoError, match="7 rounds are more than the 6 planned ones"):
        mechanism.events(7)
    nothing = mechanism.estimate((np.zeros(3),), np.float64(9), np.zeros(1))
    state = mechanism.init_noise(nothing.update)
    clip_norms = mechanism.clip_norms(1, None)
    mechanism.add_noise(nothing, state, 6, clip_norms, bytes(32))
    with pytest.raises(SottoError, match="round 7 was not planned"):
        mechanism.add_noise(nothing, state, 7, clip_norms, bytes(32))


def test_a_payment_beyond_the_planned_rounds_is_refused(store, tmp_path):
    from sottovoce.commands.new_run import Context
    from sottovoce.commands.train import Training

    sottovoce.train(recipe_of(store), tmp_path / "run")
    training = Training(RunFolder(tmp_path / "run"), Context())
    with pytest.raises(BudgetExhausted, match="round 7 was not planned"):
        training.payments.begin(7)


@pytest.mark.parametrize(
    ("privacy", "says"),
    [
        ({"adaptive_quantile": 0.5}, "adaptive_quantile changes rounds"),
        ({"clip_schedule": ((1, 1.0), (3, 0.5))}, "clip_schedule changes rounds"),
        ({"noise_schedule": ((1, 1.0), (3, 0.5))}, "keep the noise as it is"),
        ({"sampling": "poisson"}, "how often and how close together a user joins"),
        ({"sampling": "fixed"}, "how often and how close together a user joins"),
        ({"mode": "experiment"}, "an experiment has independent noise"),
        ({"noise_coefficients": (0.9, 0.2), "noise_decays": (0.9, 0.4)}, "nor add up to more than 1"),
        ({"noise": "banded", "noise_coefficients": (1.0, 0.2, 0.3), "noise_decays": ()}, "must never increase"),
    ],
)
def test_what_correlated_noise_cannot_do_is_refused_in_a_sentence(store, tmp_path, privacy, says):
    with pytest.raises(SottoError, match=says) as refused:
        sottovoce.train(recipe_of(store).replace(privacy=privacy), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


# --- the state is a secret -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_the_state_of_the_noise_lies_with_the_secrets_alone_and_is_erased_at_release(store, tmp_path, kind, caplog):
    caplog.set_level(logging.DEBUG)
    run = tmp_path / "run"
    # z is so large that the release passes its own checks.
    sottovoce.train(recipe_of(store, kind, secrets="entropy", noise_multiplier=3.0), run)
    kept = sorted((run / "secrets").glob("*.noise"))
    assert [path.stem for path in kept] == ["round-00000005", "round-00000007"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*kept, run / "secrets"))
    needles = []
    for path in kept:
        (state,) = Secrets.read_noise(run / "secrets", int(path.stem[-8:])).values()
        for row in state[np.any(state, axis=1)]:
            needles += [row[:2].tobytes(), row[:2].astype(np.float32).tobytes(), str(int(row[0])).encode()]
    assert len(needles) >= 6
    result = release_run(run, tmp_path / "out")
    assert result.released, result.reasons
    everything = [path for folder in (run, tmp_path / "out", store) for path in folder.rglob("*") if path.is_file()]
    texts = [path.read_bytes() for path in everything if path not in kept] + [caplog.text.encode()]
    assert len(texts) > 10
    assert not any(needle in text for needle in needles for text in texts)
    assert not list(run.rglob("*.noise"))


# --- several processes -----------------------------------------------------------------------------------------------


def test_several_processes_give_the_bits_of_one(store, whole, tmp_path):
    def play(group):
        if not group.is_leader:
            return work_as_helper(group)
        result = sottovoce.train(recipe_of(store), tmp_path / "run", group=group)
        group.dismiss()
        return result

    result, ended = in_every_process(2, play)
    assert (result.ended, ended) == ("finished", None)
    alone, together = (RunFolder(path).load_weights() for path in (whole(), tmp_path / "run"))
    assert all(np.array_equal(alone[name], together[name]) for name in alone)


# --- audits ----------------------------------------------------------------------------------------------------------


def test_audits_that_know_independent_noise_alone_are_refused(whole):
    with pytest.raises(SottoError, match="its rounds are one release, and this audit plays each round alone"):
        audit_rounds(whole(), rounds=40)
    with pytest.raises(SottoError, match="canaries would take the places of users"):
        audit_canaries(whole())


@pytest.mark.slow
def test_an_audit_that_leaves_users_out_trains_with_the_same_stream(whole):
    """Both models of a pair have the same m, so they differ by what one user moves the run."""
    result = audit_tails(whole(), leave_out=2, texts=500)
    assert math.isfinite(result.epsilon)


def test_no_released_file_follows_exactly_from_who_takes_part(tmp_path, monkeypatch):
    """One person more or less, under the same secrets: all but the weights, which have noise, is the same."""
    monkeypatch.setattr(Secrets, "fresh", staticmethod(lambda: Secrets(1, b"k" * 32, b"s" * 32)))
    apart = {"sampling": "min_separation", "min_separation": 2, "participations": 2, "secrets": "entropy"}
    realised, public = [], []
    for world, missing in (("with", None), ("without", "u27")):  # whose rounds have the largest sensitivity of all
        folder = tmp_path / world
        folder.mkdir()
        recipe = recipe_of(make_store(folder, without=missing), **apart).replace(run={"seed": 9, "block": 1})
        result = sottovoce.train(recipe, folder / "run")
        realised.append(result.epsilon_realised)
        kept = folder / "run/participation.json"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert json.loads(kept.read_text())["epsilon_realised"] == result.epsilon_realised
        assert release_run(folder / "run", folder / "release").released
        public.append(public_texts(folder / "release"))
    assert realised[0] > realised[1]
    assert public[0] == public[1]


def public_texts(release: Path) -> dict[str, object]:
    """What a release says, without the hashes of its weights and without what the model predicts."""
    assert not (release / "participation.json").exists()
    names = ("README.md", "ledger.jsonl", "training.toml", "record.jsonl")
    texts: dict[str, object] = {name: (release / name).read_text() for name in names}
    for name in ("privacy.json", "card.json"):
        texts[name] = without_hashes(json.loads((release / name).read_text()))
    page = (release / "report.html").read_text()
    texts["report.html"] = re.findall(r"(?:ε|epsilon)[^<]*", page)
    return texts


def without_hashes(facts):
    if not isinstance(facts, dict):
        return facts
    return {name: without_hashes(value) for name, value in facts.items() if name not in (CHECKSUM, "files")}
