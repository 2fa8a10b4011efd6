"""The audit by canaries with scores that are given: bounds, claims, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.commands import audit_canaries as command
from sottovoce.commands.audit_canaries import COPY, ITSELF, AuditedModel, audit_canaries
from sottovoce.commands.insert_canaries import choose_canaries
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.store import Store
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian
from sottovoce_evidence.errors import SottoError

CANARIES = {"users": 40, "secrets": 0, "prefix": 3}


@pytest.fixture
def planted(begun):
    """A run with canaries, before its first round."""
    return begun("planted", audit=CANARIES)


def copy_with(monkeypatch: pytest.MonkeyPatch, store, guessed: float, spent) -> None:
    """A copy whose scores tell this share of the canary users right."""

    def train(run, recipe, seed, progress):
        registry = choose_canaries(recipe, Store.open(store))
        present = np.arange(40) % 2 == 0
        right = np.arange(40) < 40 * guessed
        scores = np.where(present == right, 1.0, -1.0) + np.arange(40) * 1e-3
        return AuditedModel(COPY, registry, ModelFolder.open(run.path).model, 6, spent, present, scores)

    monkeypatch.setattr(command, "_train_copy", train)


@pytest.mark.slow
def test_perfect_guesses_contradict_a_small_claim_and_not_an_infinite_one(run, store, monkeypatch):
    settings = ("audit.users=40", "audit.prefix=3")
    copy_with(monkeypatch, store, 1.0, [(SampledGaussian(50.0, "poisson", 0.25), 6)])
    found = audit_canaries(run.path, settings=settings, delta=1e-5)
    assert found.contradicted
    assert found.shown > 1 > found.claimed
    assert (found.itself, found.of, found.round) == (False, COPY, 6)
    assert found.one_run.rounds.correct == found.one_run.rounds.guesses
    assert run.read_audit("canaries")["contradicted"] is True
    copy_with(monkeypatch, store, 1.0, [(NonPrivate(), 6)])
    found = audit_canaries(run.path, settings=settings)
    assert not found.contradicted
    assert found.claimed == math.inf


def test_a_curve_that_is_refuted_contradicts_where_the_bound_on_epsilon_does_not(run, store, monkeypatch):
    """All of 40 right: more than the ε of a little noise, whose claim is larger than 40 guesses can show."""
    copy_with(monkeypatch, store, 1.0, [(SampledGaussian(3.0, "poisson", 1.0), 1)])
    found = audit_canaries(run.path, settings=("audit.users=40", "audit.prefix=3"), delta=1e-9)
    assert found.shown < found.claimed
    assert found.one_run.rounds.noise == found.one_run.noise < 1 < found.one_run.model.noise
    assert found.one_run.rounds.by_curve > found.claimed
    assert found.contradicted
    assert found.one_run.weights is None


def test_blind_guesses_show_nothing(run, store, monkeypatch):
    copy_with(monkeypatch, store, 0.5, [(SampledGaussian(50.0, "poisson", 0.25), 6)])
    found = audit_canaries(run.path, settings=("audit.users=40", "audit.prefix=3"))
    assert (found.shown, found.contradicted) == (0.0, False)


def test_a_run_with_canaries_is_audited_itself(planted, monkeypatch):
    monkeypatch.setattr(command, "_train_copy", lambda *given: pytest.fail("a copy was trained"))
    monkeypatch.setattr(command, "_training_of", lambda run: None)  # end_to_end/test_auditing_canaries.py has it
    found = audit_canaries(planted.path)
    assert (found.itself, found.of, found.round, found.canaries.users) == (True, ITSELF, 0, 40)
    assert found.one_run is not None


def test_after_a_release_nobody_knows_which_canaries_were_in(planted):
    Secrets.erase(planted.secrets)
    found = audit_canaries(planted.path)
    assert found.one_run is None
    assert math.isnan(found.shown)
    assert found.contradicted is False


def test_what_cannot_be_audited_is_refused(run, planted):
    with pytest.raises(SottoError, match="has canaries of its own"):
        audit_canaries(planted.path, settings=["audit.users=40"])
    with pytest.raises(SottoError, match="has no secrets inserted"):
        audit_canaries(planted.path, [run.path])
    with pytest.raises(SottoError, match="no canaries are to be inserted"):
        audit_canaries(run.path, settings=["audit.users=0"])
