"""The audit of rounds with scores that are given: when a claim is contradicted, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.commands import audit_rounds as command
from sottovoce.commands.audit_rounds import audit_rounds
from sottovoce.runs.checkpoint import digest
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

CLAIMED = 1.0  # noise over the sensitivity


def play_with(monkeypatch: pytest.MonkeyPatch, noise_std: float) -> None:
    """Rounds whose scores move by 1 if the canary is present, with this noise."""

    def play(rounds, secrets, step):
        generator = np.random.default_rng(0)
        present = generator.random(rounds) < 0.5
        noise = generator.normal(0, noise_std, rounds)
        for _ in range(rounds):
            step()
        return present + noise, present, noise

    audit = SimpleNamespace(
        start=SimpleNamespace(round=2),
        multiplier=CLAIMED,
        play=play,
        largest_shift=1.0,
        event=lambda: SampledGaussian(CLAIMED, "poisson", 1.0),
        algorithm=SimpleNamespace(mechanism=SimpleNamespace(noise_std=lambda number, norms: (CLAIMED, 0.0))),
        clip_norms=None,
        relative_norm=0.995,
    )
    monkeypatch.setattr(command, "_prepare", lambda run, recipe: (audit, "rdp"))


def test_noise_as_claimed_contradicts_nothing_and_is_written(run, monkeypatch):
    play_with(monkeypatch, CLAIMED)
    steps: list[tuple[int, int]] = []
    found = audit_rounds(run.path, rounds=600, progress=lambda done, total: steps.append((done, total)))
    assert found.contradicted is False
    assert (found.round, found.rounds, found.claimed_multiplier, found.delta) == (3, 600, CLAIMED, 1e-3)
    assert CLAIMED <= found.shown_multiplier < 1.2 * CLAIMED
    assert found.shown <= found.claimed
    assert found.weights == digest(run.load_weights())
    assert (steps[0], steps[-1], len(steps)) == ((1, 600), (600, 600), 600)
    written = run.read_audit("rounds")
    assert {name: value for name, value in written.items() if name != "checksum"} == found.to_json()


def test_too_little_noise_contradicts_the_claim(run, monkeypatch):
    play_with(monkeypatch, 0.5 * CLAIMED)
    found = audit_rounds(run.path, rounds=600)
    assert found.contradicted is True
    assert found.shown_multiplier < 0.6 * CLAIMED


def test_a_run_that_claims_nothing_is_not_audited(run, monkeypatch):
    play_with(monkeypatch, CLAIMED)
    run.recipe_file.write_text(Recipe.of(run).replace(privacy={"mode": "experiment"}).to_toml())
    with pytest.raises(SottoError, match="claims nothing"):
        audit_rounds(run.path)
    assert run.read_audit("rounds") is None


@pytest.mark.parametrize("wrong", [{"rounds": 3}, {"delta": 2.0}, {"confidence": 95.0}])
def test_numbers_that_give_no_bound_are_refused(run, monkeypatch, wrong):
    play_with(monkeypatch, CLAIMED)
    with pytest.raises(SottoError, match="must be"):
        audit_rounds(run.path, **wrong)


@pytest.mark.slow
def test_the_audited_round_is_the_one_with_the_least_noise(begun):
    run = begun(privacy={"noise_schedule": ((1, 2.0), (4, 1.0))})
    audit, accountant = command._prepare(run, Recipe.of(run))
    assert (audit.start.round + 1, accountant) == (4, "rdp")
    assert audit.multiplier == pytest.approx(1.2)
