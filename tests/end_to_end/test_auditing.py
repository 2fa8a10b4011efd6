"""`sotto audit tails`: what it answers, what it leaves behind, and what it refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import Sotto, World, call, files_of, parse_json

from sottovoce.audit.retrain import Retraining, train_without
from sottovoce.audit.tails import fit_tail
from sottovoce.build.assembly import assemble
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS
from sottovoce.models.generate import log_ratios
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.recipe import Recipe

FEW = ("--texts", 1000)


@pytest.fixture(scope="module")
def without(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same recipe on a store that lacks one person of those it is trained on."""
    folder = tmp_path_factory.mktemp("without")
    lines = world.corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(line for line in lines if '"person 1"' not in line), encoding="utf-8")
    smaller = ("prepare", folder / "corpus.jsonl", "--out", folder / "store", "--vocabulary", world.words)
    assert call(*smaller, "--tokens-per-user", 40, "--test-users", 0.2, "--json") == 0
    recipe = world.recipe.read_text(encoding="utf-8").replace(str(world.store), str(folder / "store"))
    (folder / "tea.toml").write_text(recipe, encoding="utf-8")
    assert call("train", folder / "tea.toml", "--out", folder / "run", "--json") == 0
    return folder / "run"


def without_checksum(path: Path) -> dict:
    facts = parse_json(path.read_text())
    del facts["checksum"]
    return facts


@pytest.mark.slow
def test_leaving_users_out_gives_an_estimate_for_the_owner_and_touches_nothing_else(
    sotto: Sotto, world: World, run: Path
) -> None:
    before = files_of(run), files_of(world.store)
    found = sotto("audit", "tails", run, "--leave-out", 2, *FEW, "--json").json()
    pairs = found["pairs"]
    assert [(pair["pair"], pair["texts_of"]) for pair in pairs] == [
        ("one user out, 1", "with"), ("one user out, 1", "without"),
        ("one user out, 2", "with"), ("one user out, 2", "without"),
    ]  # fmt: skip
    assert {pair["k"] for pair in pairs} == {62}
    assert found["epsilon"] == max(pair["epsilon"] for pair in pairs) > 0
    assert found["delta"] == 0.01  # the run's
    assert found["note"] == "an estimate from sampled texts, not a guarantee"
    assert found["proved"] == {
        name: parse_json((run / "privacy.json").read_text())[name] for name in ("private", "epsilon", "delta")
    }
    for pair in pairs:  # ε is (1/α) log(C/δ)
        epsilon = np.log(pair["constant"] / 0.01) / pair["alpha"]
        assert pair["epsilon"] == pytest.approx(max(epsilon, 0))

    after = files_of(run)
    made = {name for name in after if name not in before[0]}
    assert made == {"audit", "audit/tails.json", "audit/tails.png"}
    assert {name: after[name] for name in before[0]} == before[0]
    assert files_of(world.store) == before[1]  # nobody was charged: nothing of the twins is left
    assert stat.S_IMODE((run / "audit").stat().st_mode) == 0o700
    assert {stat.S_IMODE((run / "audit" / name).stat().st_mode) for name in ("tails.json", "tails.png")} == {0o600}
    assert without_checksum(run / "audit/tails.json") == found
    assert (run / "audit/tails.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_two_runs_are_compared_and_the_report_tells_it_to_the_owner_alone(
    sotto: Sotto, run: Path, without: Path
) -> None:
    first = sotto("audit", "tails", run, without, *FEW, "--delta", 1e-9)
    assert first.status == 0
    assert "(estimate): ε ≈ " in first.out
    assert "an estimate from sampled texts, not a guarantee" in first.out
    assert "Proved (upper bound): ε ≤ " in first.out
    assert "drew their own cohorts and their own noise" in first.out
    kept = without_checksum(run / "audit/tails.json")
    again = sotto("audit", "tails", run, without, *FEW, "--delta", 1e-9, "--json").json()
    assert kept == again  # the same texts every time
    other = sotto("audit", "tails", run, without, *FEW, "--delta", 1e-9, "--seed", 1, "--json").json()
    assert other["epsilon"] != again["epsilon"]

    assert sotto("report", run).status == sotto("report", run, "--internal").status == 0
    estimate = f"ε ≈ {other['epsilon']:.3g}"
    assert estimate not in (run / "report.html").read_text()
    assert estimate in (run / "report-internal.html").read_text()


@pytest.mark.slow
def test_somebody_who_writes_unlike_all_others_shows_without_a_clip_and_hardly_with_one() -> None:
    vocabulary = Vocabulary.from_words(f"word{chr(97 + n)}" for n in range(20))
    words = range(vocabulary.size - 20, vocabulary.size)
    generator = np.random.default_rng(0)
    others = [[BOS, *generator.choice(words[:10], size=18), EOS] for _ in range(11)]
    store = Store.from_users([[BOS, *[words[19], words[18]] * 9, EOS], *others], vocabulary, tokens_per_user=20)
    common = {
        "data": {"store": "in memory"}, "model": {"embedding": 8, "hidden": 8},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 3.0}, "run": {"rounds": 4, "block": 4, "devices": 1},
    }  # fmt: skip
    declared = {"users": 12, "cohort": 12}
    plain = {**declared, "mode": "none", "clipping": "none", "estimator": "true_average"}
    clipped = {**declared, "clip_norm": 0.1, "noise_multiplier": 1.0, "delta": 1e-3}
    estimates = []
    for privacy in (plain, clipped):
        assembly = assemble(Recipe.from_dict({**common, "privacy": privacy}), store)
        training = Retraining(assembly, assembly.model, store, 4)
        everybody, fewer = train_without(training, np.array([0]), Secrets.seeded(0, "a test"))
        keys = jax.random.split(jax.random.key(0))
        tails = [fit_tail(log_ratios(*pair, vocabulary.specials, 1000, key)) for pair, key in
                 zip(((everybody, fewer), (fewer, everybody)), keys, strict=True)]  # fmt: skip
        estimates.append(max(tail.epsilon(1e-3) for tail in tails))
    assert estimates[0] > 5 * estimates[1] > 0, json.dumps(estimates)
