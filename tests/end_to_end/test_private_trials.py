"""Private trials of a reproduction: real private runs, of which nothing is kept that is not public."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_world import Sotto

from sottovoce.data.store import Store
from sottovoce.papers import reproduce as running
from sottovoce.papers.engine.populations import Populations, Stores
from sottovoce.papers.engine.results import Outcome, ResultStore
from sottovoce.papers.engine.runner import Runner
from sottovoce.papers.engine.trial import Size
from sottovoce.papers.mcmahan2018.trials import EXPERIMENTS, SIZES
from sottovoce.papers.private_model import trials as private_model
from sottovoce.papers.registry import MCMAHAN2018
from sottovoce.planning.ledger_totals import judge_ledgers
from sottovoce_evidence.accounting import rounded_up

SMOKE = SIZES["smoke"]


def few(size: Size):
    """Pre-training, two private models of the same people, and the one without noise."""
    return private_model.trials(size)[:4]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("private") / "out"
    experiments = {"private-model": replace(EXPERIMENTS["private-model"], trials=few)}
    paper = replace(MCMAHAN2018, experiments=experiments)
    assert running.reproduce(running.Request(paper, ["private-model"], SMOKE), out)
    return out


def outcome_of(out: Path, trial) -> tuple[Path, Outcome]:
    path = ResultStore(out / "results").path(trial, 0)
    return path, Outcome.load(path)


@pytest.mark.slow
def test_a_private_trial_starts_from_public_text_by_the_rules_and_pays(done: Path):
    _, eight, four, _ = few(SMOKE)
    for trial, budget in ((eight, 8.0), (four, 4.0)):
        run = done / "runs" / f"{trial.name}-seed0"
        statement = json.loads((run / "privacy.json").read_text())
        assert statement["private"]
        assert statement["epsilon"] <= budget
        assert statement["privacy"]["secrets"] == "entropy"
        assert statement["start"]["trained_on"] == "public"
        _, kept = outcome_of(done, trial)
        assert kept.facts["epsilon"] == statement["epsilon"]
        assert kept.facts["declared"].items() <= statement["privacy"].items()
        assert kept.facts["start"] == statement["start"]
    # The second model is of the same people: the store's total is of both, as its ledger has it.
    store = Path(kept_store(done))
    (total,) = judge_ledgers([store / "ledger.jsonl"], [1e-5], "pld").to_json()["ledgers"]
    _, last = outcome_of(done, four)
    assert last.facts["epsilon_store"] == pytest.approx(total["epsilons"][0]["epsilon"], rel=1e-6)
    assert last.facts["epsilon_store"] > 8
    table = (done / "private-model.md").read_text()
    assert f"together: ε = {rounded_up(last.facts['epsilon_store'])}." in table


def kept_store(out: Path) -> str:
    return str(next(folder for folder in (out / "users").iterdir() if folder.name.endswith("seed2018")))


@pytest.mark.slow
def test_what_is_kept_of_a_private_trial_is_public(done: Path, monkeypatch: pytest.MonkeyPatch):
    """It comes out the same, to the byte, where the users and all that is for the owner only cannot be read."""
    opened, real = [], Store.open

    def held_out_only(folder, split="train"):
        opened.append(split)
        assert split == "test" or "private" not in current, "the protected users were read"
        return real(folder, split)

    current = ""
    runner = Runner(MCMAHAN2018, SMOKE, done, Populations(done / "users", Stores(), SMOKE))
    for trial in few(SMOKE)[1:]:
        path, kept = outcome_of(done, trial)
        runner.recipe(trial, 0)
        run = done / "runs" / f"{trial.name}-seed0"
        exact = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
        assert len(exact) == SMOKE.rounds
        hidden = run / "diagnostics.hidden"
        (run / "diagnostics.jsonl").rename(hidden)
        current = "private"
        with monkeypatch.context() as patched:
            patched.setattr(Store, "open", staticmethod(held_out_only))
            assert runner.outcome(trial, 0).to_bytes() == path.read_bytes()
        current = ""
        hidden.rename(run / "diagnostics.jsonl")
        assert kept.user_updates == trial.user_updates(SMOKE)
        assert (kept.clipped_share, kept.seconds, kept.series) == ([], None, {})
        assert kept.facts["users"] == SMOKE.synthetic_users  # declared, and not what the store holds
        assert kept.facts["users"] != real(kept_store(done)).users
        assert str(done) not in path.read_text()
        assert kept.recipe["privacy"]["users"] == SMOKE.synthetic_users
    assert opened


def test_a_private_model_of_a_store_declares_its_population(sotto: Sotto, world, tmp_path: Path):
    arguments = ("reproduce", "--experiment", "private-model", "--users", world.store, "--out", tmp_path / "out")
    assert "--public" in sotto(*arguments).err
    outcome = sotto(*arguments, "--public", world.store)
    assert outcome.status == 2
    assert "--declared-users" in outcome.err
