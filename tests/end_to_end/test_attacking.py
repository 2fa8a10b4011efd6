"""`sotto audit membership`, and `sotto audit` without an attack: who is found out, and who is told."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from small_world import Sotto, World, call, files_of, parse_json, write_corpus

pytestmark = pytest.mark.slow  # a model is trained by heart

OVERFIT = """
[data]
store = "{store}"
[model]
embedding = 16
hidden = 32
[local]
batch = 1
unroll = 40
learning_rate = 0.1
[server]
optimiser = "adam"
learning_rate = 0.05
[privacy]
mode = "none"
clipping = "none"
estimator = "true_average"
users = 25
cohort = 25
delta = 0.01
secrets = "seeded"
[run]
rounds = 40
evaluate_every = 0
checkpoint_every = 40
block = 25
"""


@pytest.fixture(scope="module")
def overfit(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows its few users by heart."""
    folder = tmp_path_factory.mktemp("overfit")
    (folder / "overfit.toml").write_text(OVERFIT.format(store=world.store), encoding="utf-8")
    assert call("train", folder / "overfit.toml", "--out", folder / "run", "--json") == 0
    return folder / "run"


def test_a_model_that_knows_its_users_by_heart_is_found_out(sotto: Sotto, overfit: Path) -> None:
    found = sotto("audit", "membership", overfit, "--json").json()
    (attack,) = found["attacks"]
    assert attack["attack"] == "loss threshold"
    assert attack["auc"] > 0.99
    assert [rate["too_few"] for rate in attack["rates"]] == [True, True]
    assert attack["roc"][0] == [0, 0]
    assert attack["roc"][-1] == [1, 1]


def test_a_model_that_never_saw_them_is_a_coin(sotto: Sotto, overfit: Path, world: World, tmp_path: Path) -> None:
    """The same model, and other people: users of a store that it was not trained on.

    Many of them, and an interval that few coins leave: how a model that was trained so far scores strangers is up to
    the last bits of the training.
    """
    corpus = write_corpus(tmp_path / "others.jsonl", people=120, seed=6)
    prepared = ("prepare", corpus, "--out", tmp_path / "others", "--vocabulary", world.words)
    assert call(*prepared, "--tokens-per-user", 40, "--test-users", 0.5, "--json") == 0
    stranger = Path(shutil.copytree(overfit, tmp_path / "stranger"))
    recipe = stranger / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(world.store), str(tmp_path / "others")))
    (attack,) = sotto("audit", "membership", stranger, "--confidence", 0.999, "--json").json()["attacks"]
    assert attack["high"] - attack["low"] < 0.4
    assert attack["low"] < 0.5 < attack["high"]


def test_references_are_trained_and_nothing_but_the_audit_is_written(sotto: Sotto, world: World, run: Path) -> None:
    before = files_of(run), files_of(world.store)
    found = sotto("audit", "membership", run, "--references", 4, "--json").json()
    names = ["loss threshold", "references, offline", "references, online"]
    assert [attack["attack"] for attack in found["attacks"]] == names
    assert (found["in_users"], found["out_users"]) == (25, 5)
    assert all(0 <= attack["low"] <= attack["auc"] <= attack["high"] <= 1 for attack in found["attacks"])
    after = files_of(run)
    assert {name for name in after if name not in before[0]} == {
        "audit", "audit/membership.json", "audit/membership.png",
    }  # fmt: skip
    assert {name: after[name] for name in before[0]} == before[0]
    assert files_of(world.store) == before[1]  # nobody was charged
    assert stat.S_IMODE((run / "audit/membership.json").stat().st_mode) == 0o600
    kept = parse_json((run / "audit/membership.json").read_text())
    assert kept.pop("checksum")
    assert kept == found
    assert sotto("audit", "membership", run, "--references", 4, "--json").json() == found


def test_all_that_was_found_is_told_to_the_owner_and_a_public_page_keeps_it_to_itself(sotto: Sotto, run: Path) -> None:
    empty = sotto("audit", run, "--json").json()["findings"]
    assert [row["result"] for row in empty[1:]] == ["not run"] * 5
    told = sotto("audit", "membership", run)
    assert told.status == 0
    assert "out users are too few for false alarms of 0.1% and 1.0%" in told.out
    assert "for the owner only" in told.out
    *_, row = sotto("audit", run, "--json").json()["findings"]
    assert row["found"]["attacks"][0]["attack"] == "loss threshold"
    listed = sotto("audit", run)
    assert listed.status == 0
    assert row["result"] in listed.out
    assert f"sotto audit rounds {run} --rounds 2000" in listed.out
    assert sotto("report", run).status == sotto("report", run, "--internal").status == 0
    assert row["result"] not in (run / "report.html").read_text()
    assert row["result"] in (run / "report-internal.html").read_text()
