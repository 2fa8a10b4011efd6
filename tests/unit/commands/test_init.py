"""A first recipe for a store: it parses, it declares a rounded number, and it says what to expect."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands.init import rounded_down, write_recipe
from sottovoce.commands.noisy_count import NoisyUsers
from sottovoce.commands.stores import with_absolute_paths
from sottovoce.data.store import Store
from sottovoce_evidence import bases
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


def test_the_recipe_of_a_store_names_it_and_declares_its_people_rounded_down(store):
    made = write_recipe(store)
    recipe = Recipe.parse(made.text)
    assert recipe.data.store == str(store)
    assert recipe.privacy.users == made.users == rounded_down(Store.open(store).users)
    assert recipe.privacy.delta < 1 / recipe.privacy.users
    assert recipe.privacy.cohort <= recipe.privacy.users


def without_comment(text: str) -> list[str]:
    """Settings right after another line than a comment; a store has its own name, which the first line has."""
    rows = text.splitlines()
    return [row for before, row in pairwise(rows) if " = " in row and "#" not in row[:1] + before[:1]]


def test_every_setting_has_a_comment(store):
    text = write_recipe(store).text
    assert [row.partition(" ")[0] for row in without_comment(text)] == ["store"]
    assert "docs/reference/recipe.md" in text


@pytest.mark.parametrize(
    ("count", "declared"), [(3958, 3900), (27_400, 27_000), (100, 100), (99, 90), (24, 20), (7, 1)]
)
def test_a_count_is_rounded_down_to_two_digits_and_small_ones_to_tens(count, declared):
    assert rounded_down(count) == declared


def test_the_owners_number_is_taken_as_it_is(store):
    made = write_recipe(store, users=5000)
    recipe = Recipe.parse(made.text)
    assert (recipe.privacy.users, recipe.privacy.cohort, recipe.privacy.delta) == (5000, 500, 1e-5)
    assert "the number you gave" in made.text


def test_delta_stays_below_one_in_ten_users(store):
    assert Recipe.parse(write_recipe(store, users=2_000_000).text).privacy.delta == pytest.approx(1e-8)


def test_a_store_of_other_words_starts_from_nothing_and_is_told_so(store):
    made = write_recipe(store)
    assert Recipe.parse(made.text).model.initial == "none"
    assert any("from nothing" in note and "`sotto base train`" in note for note in made.notes)
    assert any("expect little" in note for note in made.notes)


def test_a_store_of_the_words_of_a_base_starts_from_it(store, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.init.fitting", lambda kind, settings, words: "english")
    made = write_recipe(store, users=4000)
    assert Recipe.parse(made.text).model.initial == "english"
    assert made.notes == ()


def test_a_base_of_ones_own_is_named_with_its_sizes(store, tmp_path, monkeypatch):
    sizes = {"embedding": 16, "hidden": 24, "layers": 2, "heads": 2, "qk_norm": True, "norm_eps": 1e-06}
    card = SimpleNamespace(words=Store.open(store).vocabulary.fingerprint, kind="transformer", model=sizes)
    monkeypatch.setattr(bases, "is_base", lambda folder: True)
    monkeypatch.setattr(bases, "read_base", lambda folder: card)
    made = write_recipe(store, users=4000, base=tmp_path / "mine")
    recipe = Recipe.parse(made.text)
    model, local, server = recipe.model, recipe.local, recipe.server
    assert (local.learning_rate, local.unroll, server.optimiser, server.learning_rate) == (0.3, 32, "adam", 0.003)
    assert recipe.privacy.clip_norm == 1.0
    assert without_comment(made.text.partition("[local]")[2]) == []
    assert (model.initial, model.kind) == (str(tmp_path / "mine"), "transformer")
    assert {name: getattr(model, name) for name in sizes} == sizes
    (note,) = made.notes
    assert "chosen for a transformer of 4.4 million parameters" in note
    monkeypatch.setattr(card, "kind", "gru")
    monkeypatch.setattr(card, "model", {"embedding": 16, "hidden": 24})
    other = write_recipe(store, users=4000, base=tmp_path / "mine")
    assert Recipe.parse(other.text).local.learning_rate == Recipe.load("small").local.learning_rate
    assert "for the LSTM of `small`, not for this gru" in other.notes[0]


@pytest.mark.parametrize(
    ("name", "written"), [("mine", "../mine"), ("recipes/mine", "mine"), ("recipes/none", "./none")]
)
def test_a_recipe_with_its_store_and_its_base_can_be_moved(store, monkeypatch, name, written):
    """The store, the base and the folder of the recipe lie in one folder."""
    card = SimpleNamespace(words=Store.open(store).vocabulary.fingerprint, kind="gru", model={})
    monkeypatch.setattr(bases, "is_base", lambda folder: True)
    monkeypatch.setattr(bases, "read_base", lambda folder: card)
    monkeypatch.chdir(store.parent)
    (store.parent / "recipes").mkdir()
    made = write_recipe(Path(store.name), users=4000, base=Path(name), out=Path("recipes/mine.toml"))
    recipe = Recipe.parse(made.text)
    assert (recipe.data.store, recipe.model.initial) == (f"../{store.name}", written)
    (store.parent / "work").mkdir()
    for each in (store.name, "recipes"):
        (store.parent / each).rename(store.parent / "work" / each)
    found = with_absolute_paths(Recipe.load("work/recipes/mine.toml"))
    work = store.parent.resolve() / "work"
    assert (found.data.store, found.model.initial) == (str(work / store.name), str(work / name))


def test_a_base_with_other_tokens_and_a_folder_that_is_none_are_refused(store, tmp_path):
    with pytest.raises(SottoError, match=r"the base english has other tokens than .*--vocabulary .*vocabulary\.txt"):
        write_recipe(store, base="english")
    with pytest.raises(SottoError, match="is no base; make one with `sotto base train`"):
        write_recipe(store, base=tmp_path)


def test_a_folder_of_any_name_is_quoted(store, tmp_path):
    odd = store.rename(tmp_path / 'my "store" \\ of\ntext')
    assert Recipe.parse(write_recipe(odd).text).data.store == str(odd)


def test_a_file_is_written_once(store, tmp_path):
    made = write_recipe(store, out=tmp_path / "mine.toml")
    assert (tmp_path / "mine.toml").read_text() == made.text
    with pytest.raises(SottoError, match="exists"):
        write_recipe(store, out=tmp_path / "mine.toml")


def test_bad_numbers_and_public_text_are_refused(store, tmp_path):
    with pytest.raises(SottoError, match="at least 1"):
        write_recipe(store, users=0)


def test_a_noisy_count_is_rounded_and_its_cost_is_said(store, monkeypatch):
    drawn = NoisyUsers(users=4127, epsilon=0.1, delta=1e-6, noise_std=37.3)
    monkeypatch.setattr("sottovoce.commands.init.count_users", lambda people, epsilon: drawn)
    made = write_recipe(store, noisy_count=0.1)
    assert Recipe.parse(made.text).privacy.users == made.users == 4100
    assert "the count with noise, rounded down" in made.text
    assert "standard deviation 37.3 (ε = 0.1 at δ = 1e-6, charged to the store once)" in made.notes[0]


def test_what_is_refused_is_refused_before_the_store_is_charged(store, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.init.count_users", lambda people, epsilon: pytest.fail("it was charged"))
    taken = tmp_path / "mine.toml"
    taken.touch()
    for refused in ({"users": 5}, {"out": taken}, {"out": tmp_path / "none" / "mine.toml"}):
        with pytest.raises(SottoError):
            write_recipe(store, noisy_count=0.1, **refused)


def test_settings_are_those_of_the_recipe_small(store):
    made, small = Recipe.parse(write_recipe(store, users=4000).text), Recipe.load("small")
    assert (made.local, made.server, made.privacy.clip_norm) == (small.local, small.server, small.privacy.clip_norm)
