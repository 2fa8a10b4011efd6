"""The best of several runs: paid for before their number is drawn, and nothing of the others is left."""

from __future__ import annotations

import errno
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands import release_folder, select
from sottovoce.commands.new_run import Context, begin
from sottovoce.commands.select import Choice, select_best
from sottovoce.commands.train import train
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence.accounting import BestOfRuns, SampledGaussian, epsilon
from sottovoce_evidence.errors import InUse, SottoError
from sottovoce_evidence.verify import verify_release


@pytest.fixture
def secret(recipe):
    return recipe.replace(privacy={"secrets": "entropy"}, run={"rounds": 2})


@pytest.fixture
def public(tmp_path):
    path = tmp_path / "public.txt"
    path.write_text("red green blue sky tree house\n" * 30)
    return [path]


def paid(store):
    return StoreLedger(store / "ledger.jsonl").spent()


def test_the_charge_is_on_disk_before_the_number_of_runs_is_drawn(secret, store, public, tmp_path, monkeypatch):
    seen = []

    def draw(expected_runs, distribution):
        seen.append(paid(store))
        raise KeyboardInterrupt

    monkeypatch.setattr(select, "draw_runs", draw)
    with pytest.raises(KeyboardInterrupt):
        select_best(secret, tmp_path / "out", public, choice=Choice(4.0, "geometric"))
    run = ((SampledGaussian(1.2, "poisson", 0.25), 2),)
    assert seen == [[(BestOfRuns(4.0, "geometric", run), 1)]]
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out-*"))


def test_the_best_is_kept_and_the_others_are_erased(secret, tmp_path, monkeypatch):
    scores, trained, stores = iter([5.0, math.nan, 3.0, 4.0, 3.0]), [], []

    def train(recipe, path, progress):
        (path / "secrets").mkdir(parents=True)
        (path / "recipe.toml").write_text("")
        (path / "secrets/key").write_text("")
        trained.append(path)
        stores.append(Path(recipe.data.store))

    def evaluate(path, users, extra):
        return SimpleNamespace(evaluation=SimpleNamespace(perplexity=next(scores)))

    monkeypatch.setattr(select, "train", train)
    monkeypatch.setattr(select, "evaluate_run", evaluate)
    best, score = select._best([secret], None, 5, tmp_path / "work", "name")
    assert (best.path, score) == (trained[2], 3.0)
    assert [path.exists() for path in trained] == [False, False, True, False, False]
    assert {path.name for path in trained} == {"name"}  # a number would tell how many there were
    assert list((tmp_path / "work").iterdir()) == [trained[2].parents[1]]  # and so would what a killed process left
    assert len({store.parents[1] for store in stores}) == 5  # one ledger would count them
    assert [store.exists() for store in stores] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"secrets": "seeded"}}, "privacy.secrets = 'entropy'"),
        ({"privacy": {"mode": "none"}}, "privacy.mode = 'private'"),
        ({"data": {"store": "demo:50"}}, "nothing to release"),
        ({"audit": {"users": 40}}, "canaries would be published"),
    ],
    ids=str,
)
def test_what_cannot_be_released_costs_nothing(secret, store, public, tmp_path, change, words):
    with pytest.raises(SottoError, match=words):
        select_best(secret.replace(**change), tmp_path / "out", public)
    assert not paid(store)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("privacy.secrets='seeded'", "privacy.secrets = 'entropy'"),
        ("privacy.mode='none'", "privacy.mode = 'private'"),
        ("audit.users=40", "canaries would be published"),
        ("data.store='{other}'", "changes data.store"),
    ],
)
def test_what_is_tried_may_be_released_and_is_of_the_same_people(secret, store, public, tmp_path, setting, words):
    other = shutil.copytree(store, tmp_path / "other")
    tried = ((setting.format(other=other),),)
    with pytest.raises(SottoError, match=words):
        select_best(secret, tmp_path / "out", public, choice=Choice(tried=tried))
    assert not paid(store)
    assert not paid(other)


def test_what_is_tried_measures_nothing_on_held_out_users(secret):
    (recipe,) = select._recipes(secret, Choice(tried=(("run.evaluate_every=1",),)))
    assert recipe.run.evaluate_every == 0


def test_what_is_tried_must_not_change_what_a_run_costs(secret, store, public, tmp_path):
    tried = (("local.learning_rate=0.5",), ("run.rounds=3",))
    with pytest.raises(SottoError, match="changes what a run is charged"):
        select_best(secret, tmp_path / "out", public, choice=Choice(tried=tried))
    with pytest.raises(SottoError, match="must be logarithmic or geometric"):
        Choice(3.0, "poisson")
    with pytest.raises(SottoError, match="must be above 1"):
        select_best(secret, tmp_path / "out", public, choice=Choice(1.0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(SottoError, match="not an empty folder"):
        select_best(secret, tmp_path / "full", public)
    assert not paid(store)


@pytest.mark.slow
def test_the_release_states_the_choice_and_is_verified(secret, store, public, tmp_path, monkeypatch):
    monkeypatch.setattr(release_folder, "find_spec", lambda name: None)
    monkeypatch.setattr(select, "draw_runs", lambda *of: 3)
    tried = (("local.learning_rate=1.0",), ("local.learning_rate=0.1", "server.learning_rate=0.5"))
    out = tmp_path / "out"
    found = select_best(secret, out, public, choice=Choice(4.0, tried=tried))
    ((event, count),) = paid(store)
    assert (event.expected_runs, event.distribution, count) == (4.0, "logarithmic", 1)
    statement = json.loads((out / "privacy.json").read_text())
    assert found.epsilon == epsilon([(event, 1)], 1e-3, "rdp")
    assert statement["epsilon"] == statement["epsilon_store"] == pytest.approx(found.epsilon, rel=1e-3)
    (charge,) = (json.loads(line) for line in (store / "ledger.jsonl").read_text().splitlines())
    assert statement["chosen"] == {"settings": 2, "score": "the perplexity of public text", "run": charge["run"]}
    record = [json.loads(line) for line in (out / "record.jsonl").read_text().splitlines()]
    assert [line["epsilon"] for line in record] == [found.epsilon] * 2
    verified = verify_release(out)
    assert verified.verified
    assert [one.epsilon for one in verified.epsilons] == [None, None, found.epsilon]
    assert not list(tmp_path.glob(".out-*"))
    for file in out.iterdir():
        assert b".out-" not in file.read_bytes()
    # Its people were charged for it, under the name of the choice: a run that starts from it has the ε of both.
    again = train(secret.replace(model={"initial": str(out)}), tmp_path / "again", progress=False).statement
    assert [run.run for run in again.start.runs] == [charge["run"]]
    assert again.start.charged == ((event, 1),)
    assert again.epsilon > found.epsilon
    # Without its ledger a store that was charged for the choice alone is refused, too.
    for name in ("ledger.jsonl", "ledger.head"):
        (store / name).unlink()
    with pytest.raises(SottoError, match="though its people were charged before"):
        train(secret, tmp_path / "unpaid", progress=False)


def test_the_name_is_taken_before_the_charge_and_an_error_after_it_says_what_was_charged(
    secret, store, public, tmp_path, monkeypatch
):
    def draw(expected_runs, distribution):
        with pytest.raises(InUse):
            begin(secret, tmp_path / "out", Context())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(select, "draw_runs", draw)
    with pytest.raises(SottoError, match=rf"No space left.*{store} was charged for the best of 5 runs"):
        select_best(secret, tmp_path / "out", public)
    assert sum(count for _, count in paid(store)) == 1
