"""A base made from a few lines of public text, and private runs that start from it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_run import WORDS, make_recipe

from sottovoce.build.assembly import build_model, weights_of
from sottovoce.cli.evaluate import Measures, evaluate
from sottovoce.commands.base import Text, train_base
from sottovoce.commands.bases import read_frequencies
from sottovoce.commands.evaluate import Extra, evaluate_run, evaluate_start, start_at_hand
from sottovoce.commands.initial_model import find_start, with_base
from sottovoce.commands.model_folder import base_weights
from sottovoce.commands.new_run import Context, begin
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import first_line
from sottovoce.runs.owner_key import owner_key
from sottovoce_evidence import bases, signature
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import pretty, sealed
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.verify import verify_release

RECIPE = Recipe.load("base").replace(
    model={"embedding": 4, "hidden": 5}, local={"batch": 2, "unroll": 5}, privacy={"cohort": 4}
)
NOT_PRIVATE = {"mode": "none", "noise_multiplier": 0.0}
ABOUT = Text("tiny", "lines of colours", "CC0")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A store of public text, in the words of the tiny store of people."""
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(3)
    lines = (" ".join(generator.choice(WORDS, size=12)) for _ in range(60))
    (folder / "text.txt").write_text("\n".join(lines))
    grouping = Grouping(tokens_per_user=16, test_users=0.2, plain_text=True)
    prepare([folder / "text.txt"], folder / "store", Vocabulary.from_words(WORDS), grouping)
    return folder / "store"


@pytest.fixture(scope="module")
def base(text, tmp_path_factory):
    """In a folder that is made for it."""
    return train_base(text, tmp_path_factory.mktemp("bases") / "new" / "tiny", ABOUT, passes=2, recipe=RECIPE)


def test_the_card_says_what_a_base_is_and_what_it_was_trained_on(base, text):
    card = bases.read_base(base.out)
    assert card == base.base
    assert (card.name, card.text, card.licence, card.trained_on) == ("tiny", "lines of colours", "CC0", "public")
    assert (card.kind, card.model) == ("lstm", {"embedding": 4, "hidden": 5})
    assert card.words == Store.open(text).vocabulary.fingerprint
    assert 0 <= card.top1 <= 1
    assert sorted(path.name for path in base.out.parent.iterdir()) == ["tiny"]  # the run that made it is gone


@pytest.mark.parametrize("name", ["", "two\nlines", "x. All is well", "<b>", "a" * 61, "ε = 0.1", "4 of 9 planned"])
def test_the_name_of_a_base_is_plain(text, tmp_path, name):
    with pytest.raises(SottoError, match=r"no name for a base; give one of up to 60 letters"):
        train_base(text, tmp_path / "out", Text(name))


def test_the_tokens_of_its_text_are_counted_without_what_is_held_out(base, text):
    train, counts = Store.open(text), read_frequencies(base.out)
    assert sum(counts.values()) == base.base.tokens == int(train.lengths(range(train.users)).sum())
    assert all(counts[word] > 0 for word in WORDS)


def test_weights_are_half_precision_on_disk_and_single_in_training(base):
    assert {array.dtype for array in base_weights(base.out).values()} == {np.dtype(np.float32)}


def test_a_private_run_starts_from_a_base_and_its_statement_says_so(base, store):
    recipe = make_recipe(store).replace(model={"initial": str(base.out)})
    opened = begin(recipe, store.parent / "run", Context())
    start = find_start(recipe, opened.store, opened.assembly.model)
    weights = base_weights(base.out)
    assert all(np.array_equal(array, weights[name]) for name, array in weights_of(start.model).items())
    assert (start.facts.trained_on, start.facts.name) == ("public", f"base {base.base.name}")
    assert Recipe.of(RunFolder.open(store.parent / "run")).model.initial == str(base.out)


@pytest.mark.slow
def test_an_evaluation_shows_what_the_run_started_from(base, begun, store, tmp_path, capsys, monkeypatch):
    held_out = Store.open(store, "test")
    started = Path(shutil.copytree(base.out, tmp_path / "tiny"))
    run = begun(model={"initial": str(started)}).path
    assert start_at_hand(run) == str(started)
    evaluate(run, measures=Measures(keystrokes=True))
    page = capsys.readouterr().out
    expected = evaluate_run(base.out, held_out, extra=Extra(suggestions=3))
    for name, value in (
        ("top-1", expected.evaluation.top1),
        ("top-1 over words", expected.evaluation.top1_words),
        ("keystroke saving", expected.keystrokes.keystroke_saving),
    ):
        assert re.search(rf"{name}.*{value:.2%}", page), (name, page)
    evaluate(run, json=True)
    answer = json.loads(capsys.readouterr().out)["baselines"]
    assert (answer["start"], answer["start_model"]) == (
        "base tiny",
        evaluate_run(base.out, held_out).evaluation.to_json(),
    )
    assert evaluate_start(base.out, held_out) is None  # a base started from nothing
    evaluate(run, other=base.out)
    assert "the start" not in capsys.readouterr().out  # where another model was asked for
    # A folder of that name that has other weights by now is not what the run started from.
    other = train_base(held_out_text(tmp_path), tmp_path / "other", ABOUT, passes=1, recipe=RECIPE)
    shutil.rmtree(started)
    assert start_at_hand(run) is None
    shutil.copytree(other.out, started)
    assert evaluate_start(run, held_out) is None


def held_out_text(folder: Path) -> Path:
    """A store of other public text, in the same words."""
    (folder / "text.txt").write_text("\n".join([" ".join(WORDS)] * 30))
    grouping = Grouping(tokens_per_user=16, test_users=0.2, plain_text=True)
    prepare([folder / "text.txt"], folder / "plain", Vocabulary.from_words(WORDS), grouping)
    return folder / "plain"


def test_a_start_that_is_no_base_is_named_with_the_command_that_measures_it(begun, tmp_path, capsys):
    first = begun("first", privacy=NOT_PRIVATE)
    run = begun("second", privacy=NOT_PRIVATE, model={"initial": str(first.path)}).path
    evaluate(run)
    assert f"on the same users: sotto evaluate {run} --beside {first.path}\n" in capsys.readouterr().out
    evaluate(first.path)
    assert "--beside" not in capsys.readouterr().out


def test_peoples_text_is_refused(store, tmp_path):
    with pytest.raises(SottoError, match="holds people's text"):
        train_base(store, tmp_path / "base", ABOUT, recipe=RECIPE)
    assert not (tmp_path / "base").exists()


def test_a_base_that_is_stopped_is_not_written(text, tmp_path):
    with pytest.raises(SottoError, match="no base was written"):
        train_base(text, tmp_path / "base", ABOUT, passes=9, recipe=RECIPE, stop=lambda: True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SottoError, match="no base was written"):  # nor are folders made for it left
        train_base(text, tmp_path / "new" / "base", ABOUT, passes=9, recipe=RECIPE, stop=lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_cards_is_refused(base, store, tmp_path):
    folder = tmp_path / "changed"
    folder.mkdir()
    for path in base.out.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / bases.VOCABULARY).write_text("other words\n")
    recipe = make_recipe(store).replace(model={"initial": str(folder)})
    with pytest.raises(DamagedRun, match="is not the file that"):
        begin(recipe, tmp_path / "run", Context())


def test_a_recipe_that_does_not_say_takes_the_base_that_fits(base, store, monkeypatch):
    monkeypatch.setattr(bases, "_room", lambda: base.out.parent)
    recipe, users = make_recipe(store), Store.open(store)
    assert with_base(recipe, users).model.initial == "tiny"
    assert with_base(recipe.replace(model={"adapter_rank": 2}), users).model.initial == "tiny"
    for changes in ({"privacy": {"mode": "none"}}, {"model": {"initial": "none"}}, {"model": {"hidden": 6}}):
        changed = recipe.replace(**changes)
        assert with_base(changed, users) == changed


def test_a_run_whose_recipe_does_not_say_starts_from_the_base_that_fits(base, store, monkeypatch):
    monkeypatch.setattr(bases, "_room", lambda: base.out.parent)
    run = RunFolder(store.parent / "unsaid")
    begin(make_recipe(store), run.path, Context())
    assert Recipe.of(run).model.initial == "tiny"
    assert first_line(run.ledger_file)["start"]["name"] == "base tiny"


@pytest.mark.slow
def test_a_base_trained_by_adapters_is_merged(base, text, tmp_path):
    recipe = RECIPE.replace(model={"initial": str(base.out), "adapter_rank": 2})
    made = train_base(text, tmp_path / "next", ABOUT, passes=1, recipe=recipe)
    assert made.base.model == base.base.model
    first, second = (base_weights(each.out) for each in (base, made))
    assert first.keys() == second.keys()
    assert {name for name in first if not np.array_equal(first[name], second[name])} == {"projection"}


def test_no_base_that_fits_leaves_fresh_weights(store):
    recipe = make_recipe(store)
    assert with_base(recipe, Store.open(store)) == recipe


def test_a_base_is_signed_and_a_start_from_it_names_the_signer(base, store, tmp_path):
    owner = signature.fingerprint(owner_key().public_key())
    found = verify_release(base.out, signer=owner)
    assert found.verified
    assert [check.found for check in found.checks][-1] == "trained on lines of colours by its card"
    recipe = make_recipe(store).replace(model={"initial": str(base.out)})
    fresh = build_model(recipe, Store.open(store).vocabulary.size)
    assert find_start(recipe, Store.open(store), fresh).facts.signer == owner
    changed = Path(shutil.copytree(base.out, tmp_path / "changed"))
    card = json.loads((changed / bases.CARD).read_text())
    (changed / bases.CARD).write_bytes(pretty(sealed(card | {"text": "all of it"})))
    assert not verify_release(changed).verified
    with pytest.raises(DamagedRun, match=r"not as its owner signed it \(card.json was changed\)"):
        find_start(recipe.replace(model={"initial": str(changed)}), Store.open(store), fresh)


@pytest.mark.slow
def test_a_text_file_in_any_language_is_enough(tmp_path):
    """Its own words are the vocabulary, cut as its language does; a store that is prepared with them fits the base."""
    generator = np.random.default_rng(4)
    words = ["ภาษา", "über", "größe", "київ", "été", "ναι"]
    lines = (" ".join(generator.choice(words, size=12)) for _ in range(6000))
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    about = Text("tiny", language="th")  # wordfreq has no list of it
    made = train_base(tmp_path / "text.txt", tmp_path / "base", about, passes=0.1, recipe=RECIPE)
    assert made.base.language == bases.read_base(made.out).language == "th"
    vocabulary = Vocabulary.from_file(made.out / bases.VOCABULARY)
    assert vocabulary.fingerprint == made.base.words
    assert vocabulary.language == "th"
    assert read_frequencies(made.out).keys() == set(vocabulary.words)
    assert set(vocabulary.words[vocabulary.frame_size :]) == set(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "text.txt"]
