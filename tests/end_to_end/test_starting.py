"""A run that starts from another's model: it does, it goes on so, and its statement does not hide it."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import call, results_of
from tiny_run import WORDS, StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models.lstm import LSTM
from sottovoce.runs.checkpoint import digest, newest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import StoreLedger
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce_evidence.accounting import epsilon, rounded_up
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import DIGITS, EarlierRun, StartFacts
from sottovoce_evidence.statement_text import prose


@dataclass(frozen=True)
class Family:
    """Two stores of different people with the same words, and central runs on them, the second from the first."""

    folder: Path

    @property
    def first(self) -> Path:
        return self.folder / "one" / "store"

    @property
    def second(self) -> Path:
        return self.folder / "two" / "store"

    @property
    def on_first(self) -> Path:
        return self.folder / "on-first"

    @property
    def on_both(self) -> Path:
        return self.folder / "on-both"


def central(store: Path, start: Path | None = None) -> Recipe:
    return make_recipe(store).replace(
        privacy={"mode": "none", "noise_multiplier": None}, run={"algorithm": "central", "rounds": 1},
        model={"initial": None if start is None else str(start)},
    )  # fmt: skip


def private(store: Path, start: Path, rounds: int = 3, **model: object) -> Recipe:
    return make_recipe(store).replace(run={"rounds": rounds}, model={"initial": str(start), **model})


SAID = {"initial_is_public": True}  # the owner's word


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    family = Family(tmp_path_factory.mktemp("family"))
    for seed, store in enumerate((family.first, family.second)):
        store.parent.mkdir()
        make_store(store.parent, seed, ids="uv"[seed])
    sottovoce.train(central(family.first), family.on_first)
    sottovoce.train(central(family.second, family.on_first), family.on_both)
    return family


def same(model, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda one, two: bool(np.array_equal(one, two)), model, other))


def test_a_private_run_starts_from_a_public_model_and_goes_on_without_it(family, tmp_path, monkeypatch):
    """The first round receives the other run's model; when that is gone, the run still ends where it would have."""
    source = Path(shutil.copytree(family.on_first, tmp_path / "source"))
    with pytest.raises(SottoError, match=r"on-first gives no guarantee.*model.initial_is_public = true"):
        sottovoce.train(private(family.second, family.on_first), tmp_path / "whole")
    sottovoce.train(private(family.second, family.on_first, **SAID), tmp_path / "whole")
    received, add_up = [], SumInBlocks.__call__

    def watched(self, algorithm, task, users):
        received.append(task.params)
        return add_up(self, algorithm, task, users)

    monkeypatch.setattr(SumInBlocks, "__call__", watched)
    arguments = ("train", tmp_path / "recipe.toml", "--out", tmp_path / "run", "--from", source)
    arguments += ("--set", "model.initial_is_public=true")
    (tmp_path / "recipe.toml").write_text(make_recipe(family.second).replace(run={"rounds": 3}).to_toml())
    with monkeypatch.context() as interrupted:
        interrupted.setattr("sottovoce.cli.train.gentle_stop", lambda: nullcontext(StopAfter(2)))
        assert call(*arguments) == 130  # it is asked before people are charged, and after the first round
    start = ModelFolder.open(family.on_first).model
    assert all(same(params, start) for params in received)
    assert len(received) == 3  # two are timed on made-up users, before the run begins
    shutil.rmtree(source)
    result = sottovoce.resume(tmp_path / "run")
    assert result.round == 3
    whole, again = results_of(tmp_path / "whole"), results_of(tmp_path / "run")
    for name in ("model/weights.safetensors", "record.jsonl"):  # not the recipe: it names another folder
        assert whole[name] == again[name]
    weights = digest(RunFolder(family.on_first).load_weights())
    for run in ("whole", "run"):
        statement = json.loads((tmp_path / run / "privacy.json").read_text())
        assert statement["private"]
        assert statement["start"] == {"weights": weights, "trained_on": "public", "declared": True}
        assert "start" in statement["not_covered"]
        assert str(tmp_path) not in json.dumps(statement)
    with pytest.raises(SottoError, match="gives no guarantee"):  # the noise of the run follows from its seed
        sottovoce.train(private(family.second, tmp_path / "run"), tmp_path / "another")
    with pytest.raises(SottoError, match="whose text is not public"):
        sottovoce.train(private(family.second, tmp_path / "run", **SAID), tmp_path / "another")


def test_a_run_from_a_run_of_the_same_people_goes_on_with_the_epsilon_of_both(tmp_path):
    """Its ledger keeps what the first one was charged: a run that goes on asks no other folder."""
    recipe = make_recipe(make_store(tmp_path)).replace(run={"rounds": 2}, privacy={"secrets": "entropy"})
    first = sottovoce.train(recipe, tmp_path / "first").statement
    following = recipe.replace(model={"initial": str(tmp_path / "first")})
    sottovoce.train(following, tmp_path / "second", stop=StopAfter(1))
    shutil.rmtree(tmp_path / "first")
    second = sottovoce.resume(tmp_path / "second").statement
    ((event, rounds),) = first.charged
    assert second.charged == ((event, 2 * rounds),)
    assert second.epsilon == epsilon(second.charged, 1e-3, "rdp") == second.epsilon_store > first.epsilon
    assert [run.run for run in second.start.runs] == [first.run]
    line = json.loads((tmp_path / "second" / "record.jsonl").read_text().splitlines()[-1])
    assert line["epsilon"] == pytest.approx(second.epsilon)


def test_without_a_promise_any_start_will_do_and_is_named(family):
    statement = json.loads((family.on_both / "privacy.json").read_text())
    weights = digest(RunFolder(family.on_first).load_weights())
    assert statement["start"] == {"weights": weights, "trained_on": "unknown"}
    assert "start" not in json.loads((family.on_first / "privacy.json").read_text())


def test_a_start_that_does_not_fit_is_refused(family, tmp_path):
    words = Vocabulary.from_words(["red", "green", "blue", "sky", "tree", "horse"])
    prepare([family.second.parent / "corpus.jsonl"], tmp_path / "other", words, Grouping(tokens_per_user=16))
    with pytest.raises(SottoError, match="has other tokens than"):
        sottovoce.train(private(tmp_path / "other", family.on_first), tmp_path / "run")
    wider = private(family.second, family.on_first).replace(model={"hidden": 6})
    with pytest.raises(SottoError, match="do not fit"):
        sottovoce.train(wider, tmp_path / "run")
    with pytest.raises(SottoError, match="there is no such folder; name a run"):
        sottovoce.train(private(family.second, tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_private_run_starts_from_a_run_on_public_text(family, tmp_path):
    (tmp_path / "public.txt").write_text("the sky is blue\nred tree , green house\n" * 20)
    words = Vocabulary.from_words(WORDS)
    prepare([tmp_path / "public.txt"], tmp_path / "store", words, Grouping(tokens_per_user=16, plain_text=True))
    sottovoce.train(central(tmp_path / "store"), tmp_path / "public")
    weights = digest(RunFolder(tmp_path / "public").load_weights())
    result = sottovoce.train(private(family.second, tmp_path / "public"), tmp_path / "run")
    assert result.statement.start == StartFacts(weights, "public")
    assert f"weights {weights[:8]}, public by its own card" in prose(result.statement)
    # By way of a run on people that promised nothing, others need the owner's word.
    sottovoce.train(central(family.first, tmp_path / "public"), tmp_path / "further")
    assert json.loads((tmp_path / "further" / "model" / "card.json").read_text())["trained_on"] == "people"
    with pytest.raises(SottoError, match="gives no guarantee"):
        sottovoce.train(private(family.second, tmp_path / "further"), tmp_path / "last")
    assert sottovoce.train(private(family.second, tmp_path / "further", **SAID), tmp_path / "last").statement.private


@pytest.mark.slow
def test_a_private_run_starts_from_the_release_of_other_people(family, tmp_path):
    """Each store pays for its own run; the statement, the ledger and the next release say where it began."""
    recipe = make_recipe(family.first).replace(run={"rounds": 1}, privacy={"secrets": "entropy"})
    first = sottovoce.train(recipe, tmp_path / "private").statement
    release = sottovoce.release_run(tmp_path / "private", tmp_path / "released")
    assert release.released
    paid = (family.first / "ledger.jsonl").read_bytes()
    second = sottovoce.train(private(family.second, tmp_path / "released", rounds=1), tmp_path / "run").statement
    assert (family.first / "ledger.jsonl").read_bytes() == paid
    assert StoreLedger(family.second / "ledger.jsonl").spent(second.run)
    assert not StoreLedger(family.second / "ledger.jsonl").spent(first.run)
    assert second.start.runs == (EarlierRun(first.run, float(rounded_up(first.epsilon, DIGITS)), 1e-3),)
    assert (second.start.trained_on, second.start.signer) == ("private", release.signer)
    header = json.loads((tmp_path / "run/ledger.jsonl").read_text().splitlines()[0])
    assert [run["run"] for run in header["start"]["runs"]] == [first.run]
    assert not any(str(tmp_path) in text for text in (prose(second), json.dumps(header)))
    # The same people pay the sum.
    again = sottovoce.train(private(family.first, tmp_path / "released", rounds=1), tmp_path / "again").statement
    ((event, rounds),) = first.charged
    assert again.charged == ((event, 2 * rounds),)
    further = sottovoce.train(central(family.second, tmp_path / "released"), tmp_path / "further").statement
    assert further.start.runs == second.start.runs


def test_seeded_runs_from_two_models_share_no_noise(tmp_path):
    """Or the noise would cancel in the difference of what they release."""
    recipe = make_recipe(make_store(tmp_path)).replace(run={"rounds": 1})
    noise = []
    for number, seed in enumerate((1, 1, 2)):
        model = LSTM(Vocabulary.from_words(WORDS).size, embedding=4, hidden=5, key=jax.random.key(seed))
        run = RunFolder.open(sottovoce.train(recipe, tmp_path / f"run{number}", model=model).path)
        noise.append(Secrets.of(run.secrets, newest(run.checkpoints).facts, is_seeded=True).noise_key(2))
    assert noise[0] == noise[1] != noise[2]


def test_plain_text_is_pre_trained_on_and_never_privately(family, tmp_path):
    """Its users are pieces of text, which nobody is: a run on people may start there, and no promise is made to it."""
    (tmp_path / "public.txt").write_text("the sky is blue\nred tree , green house\n" * 20)
    (tmp_path / "words").write_text("\n".join(WORDS))
    arguments = ("prepare", tmp_path / "public.txt", "--plain-text", "--out")
    vocabulary = ("--tokens-per-user", 16, "--vocabulary", tmp_path / "words")
    assert call(*arguments, tmp_path / "public", *vocabulary) == 0
    assert json.loads((tmp_path / "public" / "store.json").read_text())["splits"]["train"]["users"] > 10
    sottovoce.train(central(tmp_path / "public"), tmp_path / "start")
    result = sottovoce.train(private(family.second, tmp_path / "start"), tmp_path / "run")
    assert result.statement.private
    with pytest.raises(SottoError, match="protects no person"):
        sottovoce.train(make_recipe(tmp_path / "public"), tmp_path / "never")
    assert not (tmp_path / "never").exists()
    assert call(*arguments, tmp_path / "x", "--private-vocabulary", "--epsilon", 1, "--delta", 1e-7) == 2
