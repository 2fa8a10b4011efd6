"""Where the users of a run are, and which folders are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.commands import stores
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def draft(tmp_path: Path) -> RunFolder:
    (tmp_path / "draft").mkdir()
    return RunFolder(tmp_path / "draft")


@pytest.fixture
def plain_text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("the sky is blue\n" * 60)
    words = Vocabulary.from_words(["red", "green", "blue", "sky", "tree", "house"])
    prepare([tmp_path / "text.txt"], tmp_path / "plain", words, Grouping(tokens_per_user=16, plain_text=True))
    return tmp_path / "plain"


def test_paths_of_a_recipe_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = Recipe().replace(data={"store": "store"}, model={"initial": "start"}, local={"public": "text"})
    found = stores.with_absolute_paths(given)
    assert found.data.store == str(tmp_path / "store")
    assert (found.model.initial, found.local.public) == (str(tmp_path / "start"), str(tmp_path / "text"))
    demo = given.replace(data={"store": "demo:40"})
    assert stores.with_absolute_paths(demo).data.store == "demo:40"
    with pytest.raises(SottoError, match=r"data\.store is not set"):
        stores.with_absolute_paths(Recipe())


@pytest.mark.parametrize("users", ["", "many", "0", "-3", "1" * 10])
def test_a_synthetic_population_has_a_number_of_users(draft, users):
    with pytest.raises(SottoError, match="must be demo: and a number of users"):
        stores.make_own_store(Recipe().replace(data={"store": f"demo:{users}"}), draft)
    assert not draft.own_store.exists()


def test_a_synthetic_population_lies_in_the_folder_of_its_run(draft):
    recipe = Recipe().replace(data={"store": "demo:60"})
    stores.make_own_store(recipe, draft)
    assert stores.store_folder(recipe, draft) == draft.own_store
    train, test = stores.open_users(recipe, draft)
    assert 40 < train.users < 70
    assert 0 < test.users < 20
    assert not list(draft.path.glob("*.jsonl"))  # the text itself is not kept
    elsewhere = recipe.replace(data={"store": "/data/store"})
    assert stores.store_folder(elsewhere, draft) == Path("/data/store")


def test_users_are_those_to_train_on_and_those_held_out(recipe, store, draft):
    train, test = stores.open_users(recipe, draft)
    assert train.fingerprint == Store.open(store).fingerprint
    assert test.fingerprint == Store.open(store, "test").fingerprint
    assert stores.open_split(recipe, draft, "train").fingerprint == train.fingerprint
    assert stores.held_out_users(recipe, draft).fingerprint == test.fingerprint


def test_a_store_that_is_gone_is_asked_for_and_not_made_again(run, store, tmp_path):
    store.rename(tmp_path / "moved")
    recipe = Recipe.of(run)
    with pytest.raises(SottoError, match="is not there; put it back"):
        stores.open_users(recipe, run)
    assert stores.held_out_users(recipe, run) is None


def test_devices_need_a_federation(recipe, draft):
    with pytest.raises(SottoError, match="is no federation"):
        stores.open_users(recipe, draft, on_devices=True)


def test_no_private_run_trains_on_plain_text(recipe, draft, plain_text):
    recipe = recipe.replace(data={"store": str(plain_text)})
    with pytest.raises(SottoError, match="protects no person"):
        stores.open_users(recipe, draft)
    train, _ = stores.open_users(recipe.replace(privacy={"mode": "none"}), draft)
    assert not train.people


def test_public_text_goes_with_the_store_where_the_recipe_names_one(recipe, store, plain_text):
    users = Store.open(store)
    assert stores.with_public_text(recipe, users) is users
    found = stores.with_public_text(recipe.replace(local={"public": str(plain_text)}), users)
    assert found.public is not None
    assert found.fingerprint == users.fingerprint
