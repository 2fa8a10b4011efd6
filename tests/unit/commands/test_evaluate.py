"""Evaluation of a run before its first round: whose text it is, and what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_run import WORDS

from sottovoce.commands.baselines import list_keystrokes, public_baselines
from sottovoce.commands.evaluate import (
    Extra,
    Personalise,
    evaluate_run,
    open_public,
    open_users,
    rounds_so_far,
)
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.subwords import Subwords
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe
from tiny_hugging_face import tensors_of, write_folder


@pytest.fixture
def other_words(tiny_store: Path, tmp_path: Path) -> Path:
    """The same users in other words."""
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "other", Vocabulary.from_words(WORDS[:4]), Grouping())
    return tmp_path / "other"


def plain_text(folder: Path, words: list[str], test_users: float) -> Path:
    (folder / "text.txt").write_text("the sky is blue\n" * 60)
    out = folder / f"plain-{len(words)}-{test_users}"
    grouping = Grouping(tokens_per_user=16, plain_text=True, test_users=test_users)
    prepare([folder / "text.txt"], out, Vocabulary.from_words(words), grouping)
    return out


def test_a_run_with_rounds_left_is_called_so(run):
    assert rounds_so_far(run.path) == ", after 0 of 6 rounds"
    run.save_statement({**run.read_statement(), "rounds_done": 6}, run.read_card())
    assert rounds_so_far(run.path) == rounds_so_far("english") == ""


def test_the_users_are_those_held_out_unless_others_are_given(run, store):
    held_out, train = Store.open(store, "test"), Store.open(store)
    found = evaluate_run(run.path)
    assert found.evaluation.users == held_out.users
    assert (found.keystrokes, found.personalised, found.other) == (None, None, None)
    assert set(found.spread) == {"top1_p5", "top1_p25", "top1_p50", "top1_p75", "top1_p95"}
    assert evaluate_run(run.path, train).evaluation.users == train.users


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    tokenizer = Subwords.of_bytes()
    folder = write_folder(tmp_path / "tiny", "llama", rows=tokenizer.size)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.mark.slow
def test_a_folder_of_hugging_face_is_a_model(hugging_face):
    loaded = ModelFolder.open(hugging_face)
    assert loaded.statement is None
    assert loaded.tokenizer.fingerprint == Subwords.of_bytes().fingerprint
    theirs = tensors_of("llama", loaded.tokenizer.size)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(loaded.model.embedding, theirs)
    assert loaded.kind == "hugging_face"
    with pytest.raises(SottoError, match=r"folder tiny has no users to measure on; give --corpus"):
        open_users(hugging_face)
    (hugging_face / "tokenizer.json").unlink()
    with pytest.raises(SottoError, match=r"has no tokenizer\.json: its tokens are not known"):
        ModelFolder.open(hugging_face).model  # noqa: B018


@pytest.mark.slow
def test_a_folder_of_hugging_face_is_measured_on_a_store(hugging_face):
    tokenizer = Subwords.of_bytes()
    users = Store.from_users([tokenizer.encode(text) for text in ("red green blue", "blue green")], tokenizer)
    found = evaluate_run(hugging_face, users, extra=Extra(suggestions=3, words=2))
    assert found.evaluation.users == 2
    assert found.evaluation.bits_per_byte > 0
    assert found.keystrokes is not None


def test_a_run_next_to_itself_loses_nothing(run):
    found = evaluate_run(run.path, extra=Extra(suggestions=2), other=run.path)
    assert found.other.evaluation == found.evaluation
    assert found.keystrokes.suggestions == 2
    rows = found.breakdown.to_json(found.other.breakdown)["by_band"]
    assert all(row["lost"] == 0 for row in rows if row["users"])


def test_personal_training_is_as_in_the_recipe_unless_it_is_given(run):
    recipe, vocabulary = Recipe.of(run), ModelFolder.open(run.path).tokenizer
    as_trained = Personalise().training(recipe, vocabulary)
    assert (as_trained.epochs, as_trained.learning_rate) == (recipe.local.epochs, recipe.local.learning_rate)
    assert (as_trained.batch, as_trained.unroll, as_trained.bos) == (2, 5, vocabulary.specials.begins)
    given = Personalise(epochs=3, learning_rate=0.25).training(recipe, vocabulary)
    assert (given.epochs, given.learning_rate, given.batch) == (3, 0.25, 2)
    with pytest.raises(SottoError, match="epochs=0"):
        Personalise(epochs=0).training(recipe, vocabulary)


def test_users_come_from_a_corpus_a_store_or_the_run(run, store, tmp_path):
    corpus = tmp_path / "few.jsonl"
    corpus.write_text("".join(json.dumps({"who": name, "said": "red sky"}) + "\n" for name in "abc"))
    assert open_users(run.path, [corpus], fields=Grouping("who", "said")).users == 3
    assert open_users(run.path).fingerprint == Store.open(store, "test").fingerprint
    assert open_users(run.path, split="train").fingerprint == Store.open(store).fingerprint
    assert open_users(run.path, store=store, split="train").users == Store.open(store).users


def test_another_vocabulary_is_refused(run, begun, other_words):
    with pytest.raises(SottoError, match=r"another vocabulary than the model; give --corpus"):
        evaluate_run(run.path, Store.open(other_words))
    other = begun("in-other-words", data={"store": str(other_words)})
    with pytest.raises(SottoError, match="different vocabularies"):
        evaluate_run(run.path, other=other.path)


def test_public_text_is_a_store_of_plain_text_or_files_of_one_kind(run, store, tmp_path):
    kept = plain_text(tmp_path, WORDS, 0.5)
    assert open_public(run.path, [kept]).fingerprint == Store.open(kept, "test").fingerprint
    assert not open_public(run.path, [tmp_path / "text.txt"]).people
    (tmp_path / "pages.jsonl").write_text('{"user": "a page", "text": "red sky"}\n')
    assert open_public(run.path, [tmp_path / "pages.jsonl"]).users == 1
    for texts, words in (
        ([store], "holds people's text"),
        ([plain_text(tmp_path, WORDS[:4], 0.5)], "another vocabulary"),
        ([plain_text(tmp_path, WORDS, 0)], "holds nothing out"),
        ([kept, tmp_path / "text.txt"], "measured alone"),
        ([tmp_path / "text.txt", tmp_path / "pages.jsonl"], "of one kind"),
    ):
        with pytest.raises(SottoError, match=words):
            open_public(run.path, texts)


@pytest.mark.slow
def test_a_base_is_measured_by_name_on_a_store_or_a_corpus(run, tmp_path, monkeypatch):
    corpus = tmp_path / "few.jsonl"
    corpus.write_text("".join(json.dumps({"user": name, "text": "how are you ?"}) + "\n" for name in "abc"))
    users = open_users("english", [corpus])
    found = evaluate_run("english", users).evaluation
    assert (found.users, found.top1) == (3, ModelFolder.open("english").evaluate(users).top1)
    assert found.top1 >= 0.2  # it knows the sentence
    assert public_baselines(users, "english").unigram is not None
    assert 0 < list_keystrokes(users, "english", 3).keystroke_saving < 1
    with pytest.raises(SottoError, match="base english has no users to measure on; give --corpus or --store"):
        evaluate_run("english")
    with pytest.raises(SottoError, match="different vocabularies"):
        evaluate_run(run.path, other="english")
    monkeypatch.chdir(tmp_path)
    run.path.rename("english")  # a run is not hidden by the base of its name
    assert ModelFolder.open("english").kind == "run"


@pytest.mark.slow
def test_a_model_of_pieces_has_figures_of_whole_words(begun, in_pieces):
    run = begun("pieces-run", data={"store": str(in_pieces)})
    extra = Extra(suggestions=2, words=6, personalise=Personalise())
    found = evaluate_run(run.path, extra=extra)
    assert found.evaluation.words == 6
    assert 0 <= found.evaluation.top1_words <= 1
    assert found.evaluation.bits_per_byte > 0
    assert found.evaluation.oov_rate is None
    text = [word for row in open_users(run.path).rows.chunks() for word in row]
    assert len(text) > found.evaluation.bytes > 0
    assert found.keystrokes.keystrokes <= found.keystrokes.characters == found.evaluation.bytes
    assert not any(name.startswith("keystroke") for name in found.spread)  # six words say nothing of single users
    assert set(found.personalised.gained) == {"top1", "perplexity"}
    assert found.breakdown.bands[0].name == "the 10 most frequent tokens"
    assert public_baselines(open_users(run.path), run.path).unigram is None
    assert list_keystrokes(open_users(run.path), run.path, 2) is None
    assert {"oov_rate"}.isdisjoint(found.evaluation.to_json())


def test_whole_words_need_not_be_searched(begun, in_pieces):
    run = begun("pieces-run", data={"store": str(in_pieces)})
    found = evaluate_run(run.path, extra=Extra(words=0)).evaluation
    assert (found.top1_words, found.words) == (None, None)
    with pytest.raises(SottoError, match="say at how many, with --words"):
        evaluate_run(run.path, extra=Extra(suggestions=3, words=0))
    with pytest.raises(SottoError, match="words=-1 must not be negative"):
        Extra(words=-1)
