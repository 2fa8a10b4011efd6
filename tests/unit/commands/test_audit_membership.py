"""The membership attack with losses that are given, and on a model that learnt nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_run import WORDS, make_recipe

from sottovoce.commands import audit_membership as command
from sottovoce.commands.audit_membership import audit_membership
from sottovoce.commands.new_run import Context, begin
from sottovoce.commands.train import Training
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import SottoError


@pytest.fixture
def audited(tiny_store: Path, tmp_path: Path) -> RunFolder:
    """A run with enough users held out, and no round."""
    grouping = Grouping(tokens_per_user=16, test_users=0.4)
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "halves", Vocabulary.from_words(WORDS), grouping)
    opened = begin(make_recipe(tmp_path / "halves"), tmp_path / "audited", Context())
    run = RunFolder(tmp_path / "audited")
    Training(run, Context(), opened)._finish()
    return run


def test_a_model_that_learnt_nothing_tells_nobody_apart(audited):
    found = audit_membership(audited.path)
    (attack,) = found.attacks
    assert attack.attack == "loss threshold"
    assert attack.low < 0.5 < attack.high
    assert found.in_users + found.out_users == 40
    assert (found.references, found.proved.private, found.rounds_a_user) == (0, True, 0.0)
    assert audited.read_audit("membership")["attacks"][0]["auc"] == attack.auc


def test_users_with_a_lower_loss_are_taken_for_members(audited, monkeypatch):
    def losses(self, model):
        return np.concatenate([np.linspace(1, 2, len(self.inside)), np.linspace(3, 4, len(self.outside))])

    monkeypatch.setattr(command._Audited, "losses", losses)
    found = audit_membership(audited.path, users=8)
    assert (found.in_users, found.out_users) == (8, 8)
    assert found.attacks[0].auc == 1.0


@pytest.mark.slow
def test_shadow_models_are_trained_on_halves_and_scored(audited, monkeypatch):
    seen = {}

    def shadow_models(training, always, texts, inside, secrets_of):
        seen.update(always=always, texts=len(texts), halves=inside.shape, rounds=training.rounds)
        return [training.start] * len(inside)

    monkeypatch.setattr(command, "train_shadow_models", shadow_models)
    found = audit_membership(audited.path, references=4, users=6)
    names = [one.attack for one in found.attacks]
    assert names == ["loss threshold", "references, offline", "references, online"]
    assert (seen["texts"], seen["halves"], seen["rounds"]) == (12, (4, 12), 0)
    assert len(seen["always"]) == audit_membership(audited.path).in_users - 6


def test_users_are_chosen_by_the_seed(audited):
    store = command.open_users(command.Recipe.of(audited), audited)
    chosen = [command._Audited.choose(*store, 7, Secrets.seeded(seed)).inside.tolist() for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert chosen[0] == sorted(set(chosen[0]))


def test_too_few_users_are_refused(audited, run):
    with pytest.raises(SottoError, match="users=4 must be at least 5"):
        audit_membership(audited.path, users=4)
    with pytest.raises(SottoError, match="an attack needs 5 of each"):
        audit_membership(run.path)
    with pytest.raises(SottoError, match="must be"):
        audit_membership(audited.path, references=3)
