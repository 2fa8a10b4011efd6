"""`sotto audit rounds`: what an attack on single rounds shows, next to what is claimed for them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from small_world import Refused, Sotto, World, files_of, parse_json

from sottovoce.privacy.mechanism import Mechanism
from sottovoce_evidence.accounting import SampledGaussian, epsilon

SOME = ("--rounds", 160)


@pytest.mark.slow
def test_a_sound_run_is_not_contradicted_and_nothing_but_the_audit_is_written(
    sotto: Sotto, world: World, run: Path
) -> None:
    before = files_of(run), files_of(world.store)
    found = sotto("audit", "rounds", run, *SOME, "--json").json()
    assert found["claimed"] == pytest.approx(epsilon([(SampledGaussian(1.0, "poisson", 1.0), 1)], 0.01, "rdp"))
    assert 0 <= found["shown"] < found["claimed"]
    assert found["contradicted"] is False
    assert found["confidence"] == 0.999
    assert found["claimed_multiplier"] == 1 < found["shown_multiplier"] < 1.5
    assert found["would_notice"] == pytest.approx(0.719, abs=0.001)  # of χ² with 159 degrees of freedom
    assert found["judged"] == 120
    after = files_of(run)
    assert {name for name in after if name not in before[0]} == {"audit", "audit/rounds.json"}
    assert {name: after[name] for name in before[0]} == before[0]
    assert files_of(world.store) == before[1]
    assert stat.S_IMODE((run / "audit/rounds.json").stat().st_mode) == 0o600
    kept = parse_json((run / "audit/rounds.json").read_text())
    assert kept.pop("checksum")
    assert kept == found


@pytest.mark.slow
def test_a_leaky_build_is_contradicted_with_status_1(sotto: Sotto, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise at a tenth."""
    real = Mechanism.noise_std
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (real(*args)[0] / 10, None))
    told = sotto("audit", "rounds", run, *SOME)
    assert told.status == 1
    assert "CONTRADICTED" in told.out
    assert "claimed: ε ≤ 2.76" in told.out
    assert parse_json((run / "audit/rounds.json").read_text())["contradicted"] is True


@pytest.mark.slow
def test_half_the_noise_is_contradicted(sotto: Sotto, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses alone do not find it: the ε that they show stays below the claim."""
    real = Mechanism.noise_std
    monkeypatch.setattr(Mechanism, "noise_std", lambda *args: (real(*args)[0] / 2, None))
    told = sotto("audit", "rounds", run, *SOME)
    assert told.status == 1
    assert "CONTRADICTED" in told.out
    assert "would have seen" not in told.out
    found = parse_json((run / "audit/rounds.json").read_text())
    assert found["shown"] < found["claimed"]
    assert found["shown_multiplier"] < 0.7
    assert found["claimed_multiplier"] == 1


def test_what_cannot_be_audited_is_refused(refused: Refused, run: Path, tmp_path: Path) -> None:
    assert "--leave-out" in refused("audit", "rounds", run, *SOME, "--leave-out", 2)
    assert "--rounds 0 must be at least 40" in refused("audit", "rounds", run, "--rounds", 0)
    assert "--delta 2 must be" in refused("audit", "rounds", run, *SOME, "--delta", 2)
    assert "--confidence 95 must be" in refused("audit", "rounds", run, *SOME, "--confidence", 95)
    assert "holds no run" in refused("audit", "rounds", tmp_path / "nothing", *SOME)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('mode = "private"', 'mode = "none"'))
    assert "claims nothing" in refused("audit", "rounds", run, *SOME)
