"""Whole runs with noise that is correlated over rounds: its state, the plan, processes, audits, what is public."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.build import assembly
from sottovoce.commands import new_run
from sottovoce.commands.audit_canaries import audit_canaries
from sottovoce.commands.audit_rounds import audit_rounds
from sottovoce.commands.audit_tails import audit_tails
from sottovoce.commands.helper import work_as_helper
from sottovoce.commands.release import release_run
from sottovoce.runs.folder import RunFolder, load_arrays
from sottovoce.runs.ledger import Ledger, StoreLedger
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


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def charges(store: Path) -> Counter:
    """What the people of a store were charged, by event."""
    return total_of(StoreLedger(store / "ledger.jsonl").spent())


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
    (kept,) = load_arrays(next((tmp_path / "run/secrets").glob("*.noise")), "").values()
    sottovoce.resume(tmp_path / "run", stop=StopAfter(1))
    for found in (kept, states[4][0]):
        assert found.dtype == np.float64
        assert np.array_equal(found, states[3][1])
    assert np.abs(kept).max() > 2**30  # float32 would not hold it
    assert np.array_equal(kept, np.rint(kept))


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS_ARE_SLOW)
def test_a_run_is_one_charge_and_stopping_early_costs_what_was_planned(store, whole, tmp_path, kind):
    before = charges(store)
    result = sottovoce.train(recipe_of(store, kind), tmp_path / "run", stop=StopAfter(3))
    ((event, count),) = (charges(store) - before).items()
    assert isinstance(event, CorrelatedGaussian)
    assert count == 1
    events = Ledger.open(tmp_path / "run/ledger.jsonl").events
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
    monkeypatch.setattr(Secrets, "fresh", staticmethod(lambda: Secrets(b"k" * 32, b"s" * 32)))
    monkeypatch.setattr(new_run, "new_name", lambda: "a run")
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
