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
from sottovoce.commands.evaluate import load_run
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models.lstm import LSTM
from sottovoce_evidence.statement import StartFacts
from sottovoce_evidence.statement_text import prose
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce_evidence.accounting import rounded_up
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.ledger import StoreLedger
from sottovoce_evidence.recipe import Recipe


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
    with pytest.raises(SottoError, match=r"on-first gives its users no guarantee.*model.initial_is_public = true"):
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
    start, _ = load_run(family.on_first)
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
        assert statement["start"]["source"] == f"public start: {weights}, declared public by the owner"
        assert f"weights {weights[:8]}, declared public by the owner" in statement["prose"]
        assert any("before this run began" in words for words in statement["not_covered"])
        assert str(tmp_path) not in json.dumps(statement)
    with pytest.raises(SottoError, match="ε would have to be added"):
        sottovoce.train(private(family.second, tmp_path / "run"), tmp_path / "another")
    # Private towards the second store's people; the first's are in what it started from.
    with pytest.raises(SottoError, match="without privacy"):
        sottovoce.train(private(family.first, tmp_path / "whole"), tmp_path / "another")
    further = sottovoce.train(central(family.first, tmp_path / "whole"), tmp_path / "another").statement
    assert "private start: " in further.start.source
    assert "at δ = 0.001 for its own users" in prose(further)


def test_a_start_that_saw_the_same_people_without_privacy_is_refused(family, tmp_path):
    moved = Path(shutil.copytree(family.first, tmp_path / "moved"))
    for store, start in (
        (family.first, family.on_first),
        (moved, family.on_first),  # the same people elsewhere
        (family.second, family.on_both),
        (family.first, family.on_both),  # by way of what that one started from
    ):
        with pytest.raises(SottoError, match="without privacy"):
            sottovoce.train(private(store, start), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    lost = Path(shutil.copytree(family.on_both, tmp_path / "lost"))
    recipe = Recipe.load(lost / "recipe.toml").replace(model={"initial": str(tmp_path / "nowhere")})
    (lost / "recipe.toml").write_text(recipe.to_toml())
    with pytest.raises(SottoError, match="no longer at"):
        sottovoce.train(private(moved, lost), tmp_path / "run")


def test_without_a_promise_any_start_will_do_and_is_named(family):
    statement = json.loads((family.on_both / "privacy.json").read_text())
    weights = digest(RunFolder(family.on_first).load_weights())
    assert statement["start"]["source"] == f"start: {weights}, of a run without a guarantee"
    assert f"weights {weights[:8]}, " in statement["prose"]
    assert "start" not in json.loads((family.on_first / "privacy.json").read_text())


def test_a_start_that_does_not_fit_is_refused(family, tmp_path):
    words = Vocabulary.from_words(["red", "green", "blue", "sky", "tree", "horse"])
    prepare([family.second.parent / "corpus.jsonl"], tmp_path / "other", words, Grouping(tokens_per_user=16))
    with pytest.raises(SottoError, match="has other tokens than"):
        sottovoce.train(private(tmp_path / "other", family.on_first), tmp_path / "run")
    wider = private(family.second, family.on_first).replace(model={"hidden": 6})
    with pytest.raises(SottoError, match="do not fit"):
        sottovoce.train(wider, tmp_path / "run")
    with pytest.raises(SottoError, match="does not exist; name a base"):
        sottovoce.train(private(family.second, tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of a run on public text."""
    folder = tmp_path_factory.mktemp("public")
    (folder / "public.txt").write_text("the sky is blue\nred tree , green house\n" * 20)
    words = Vocabulary.from_words(WORDS)
    prepare([folder / "public.txt"], folder / "store", words, Grouping(tokens_per_user=16, plain_text=True))
    sottovoce.train(central(folder / "store"), folder / "run")
    return folder / "run" / "model"


def test_a_private_run_starts_from_weights_whose_card_says_public_text(family, public, tmp_path):
    weights = digest(RunFolder(public.parent).load_weights())
    for number, start in enumerate((public, public / "weights.safetensors")):
        result = sottovoce.train(private(family.second, start), tmp_path / f"run{number}")
        source = f"public start: {weights}, public by its own card"
        assert result.statement.start == StartFacts(source, weights=weights, trained_on="public")
        assert f"weights {weights[:8]}, public by its own card" in prose(result.statement)
    assert (
        results_of(tmp_path / "run0")["model/weights.safetensors"]
        == (results_of(tmp_path / "run1")["model/weights.safetensors"])
    )
    # By way of a run that promised nothing and started there, others may go on.
    sottovoce.train(central(family.first, public), tmp_path / "further")
    assert json.loads((tmp_path / "further" / "model" / "card.json").read_text())["trained_on"] == "people"
    assert sottovoce.train(private(family.second, tmp_path / "further", **SAID), tmp_path / "last").statement.private


def card_of(folder: Path, **changes: object) -> None:
    """A card that somebody wrote by hand."""
    kept = {"name": "a model", "trained_on": "public", **changes}
    (folder / "card.json").write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))


def test_weights_of_unknown_origin_are_refused_to_a_private_run_and_named_in_others(family, public, tmp_path):
    start = Path(shutil.copytree(public, tmp_path / "start"))

    def refused(match: str, recipe: Recipe | None = None) -> None:
        with pytest.raises(SottoError, match=match):
            sottovoce.train(recipe or private(family.second, start), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    for trained_on in ("people", None, "Public"):
        card_of(start, trained_on=trained_on)
        refused('does not say "trained_on": "public"')
    found = sottovoce.train(central(family.first, start), tmp_path / "unknown").statement.start
    assert found.source.endswith("of a weights file")
    refused("not of public text by their card", private(family.second, tmp_path / "unknown"))
    # A model folder of a run on people is no way around the rule for its run.
    refused('does not say "trained_on"', private(family.first, family.on_first / "model"))
    card_of(start)
    sottovoce.train(private(family.second, start), tmp_path / "allowed")
    card_of(start, kind="gru")
    refused("says kind 'gru'")
    card_of(start)
    refused("do not fit", private(family.second, start).replace(model={"hidden": 6}))
    (start / "vocabulary.txt").write_bytes((start / "vocabulary.txt").read_bytes().replace(b"house", b"horse"))
    refused("has other tokens than")
    (start / "vocabulary.txt").unlink()
    refused("no vocabulary.txt")
    (start / "card.json").unlink()
    refused("no card.json")


def test_the_card_of_a_run_is_of_its_own_files(family, public, tmp_path):
    start = Path(shutil.copytree(public, tmp_path / "start"))
    shutil.copy(family.on_first / "model" / "weights.safetensors", start / "weights.safetensors")
    with pytest.raises(SottoError, match="it was changed"):
        sottovoce.train(private(family.second, start), tmp_path / "run")
    shutil.copy(public / "weights.safetensors", start / "weights.safetensors")
    shutil.copy(public / "weights.safetensors", start / "other.safetensors")
    with pytest.raises(SottoError, match=r"not of other\.safetensors"):
        sottovoce.train(private(family.second, start / "other.safetensors"), tmp_path / "run")
    card = (start / "card.json").read_text()
    (start / "card.json").write_text(card.replace('"rounds": 1', '"rounds": 2'))
    with pytest.raises(SottoError, match="checksum"):
        sottovoce.train(private(family.second, start), tmp_path / "run")


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
    assert (second.start.trained_on, second.start.runs) == ("private", (first.run,))
    assert f"with ε = {rounded_up(first.epsilon)} at δ = 0.001 for its own users" in prose(second)
    assert f"signed by {release.signer}" in second.start.source
    header = json.loads((tmp_path / "run/ledger.jsonl").read_text().splitlines()[0])
    assert header["start"]["runs"] == [first.run]
    assert not any(str(tmp_path) in text for text in (prose(second), json.dumps(header)))
    # The same people would have to pay the sum.
    with pytest.raises(SottoError, match="ε would have to be added"):
        sottovoce.train(private(family.first, tmp_path / "released"), tmp_path / "again")
    further = sottovoce.train(central(family.second, tmp_path / "released"), tmp_path / "further").statement
    assert "private start: " in further.start.source


def test_seeded_runs_from_two_models_share_no_noise(tmp_path):
    """Or the noise would cancel in the difference of what they release."""
    recipe = make_recipe(make_store(tmp_path)).replace(run={"rounds": 1})
    noise = []
    for number, seed in enumerate((1, 1, 2)):
        model = LSTM(Vocabulary.from_words(WORDS).size, embedding=4, hidden=5, key=jax.random.key(seed))
        run = RunFolder.open(sottovoce.train(recipe, tmp_path / f"run{number}", model=model).path)
        noise.append(Secrets.load_any(run.secrets).noise_key(2, "any", b"the same sum"))
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
