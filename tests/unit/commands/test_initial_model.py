"""Starts that are allowed and refused, with models of runs that have done no round."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_run import WORDS, make_recipe, make_store

from examples import first_of
from family import FAMILY, of_family, read
from sottovoce.build.assembly import build_model, filled_model, load_model, model_settings, weights_of
from sottovoce.commands.initial_model import Start, find_start, with_base, with_contexts, with_sizes
from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import pretty, sealed
from sottovoce_evidence.hash_chain import Chain, chained
from sottovoce_evidence.ledger import first_line
from sottovoce_evidence.recipe import Recipe
from tiny_hugging_face import tensors_of, write_folder
from tokenizer_examples import byte_level

PLAIN = {"privacy": {"mode": "none"}}
SAID = {"initial_is_public": True}
ENTROPY = {"privacy": {"secrets": "entropy"}}


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A store of other people."""
    (tmp_path / "others").mkdir()
    return make_store(tmp_path / "others", seed=7, ids="v")


def start_of(folder: Path, initial: Path | None, given: bool = False, **changes: dict):
    """The start of a run on the store of a folder: private unless changed."""
    recipe = make_recipe(folder).replace(model={"initial": None if initial is None else str(initial)})
    recipe = recipe.replace(**changes)
    store = Store.open(folder)
    return find_start(recipe, store, build_model(recipe, store.vocabulary.size), given=given)


def test_without_a_start_the_model_is_the_one_of_the_seed(store):
    start = start_of(store, None)
    assert (start.facts, start.weights) == (None, "")


@pytest.mark.parametrize(("changes", "word"), [({}, "declared public by the owner"), (PLAIN, "of unknown origin")])
def test_a_model_given_from_python_is_named_by_its_weights(store, changes, word):
    start = start_of(store, None, given=True, **changes)
    weights = digest(weights_of(start.model))
    assert start.weights == weights
    assert start.facts["source"] == f"weights given from Python: {weights}, {word}"


def test_the_model_of_another_run_is_named_with_what_it_promises(run, begun, store, others):
    plain, kept = begun("plain", **PLAIN), begun("kept", **ENTROPY)
    weights = digest(run.load_weights())
    start = start_of(others, kept.path)
    assert digest(weights_of(start.model)) == start.weights == weights
    assert start.facts["run"] == first_line(kept.ledger_file)["run"]
    assert start.facts["source"].startswith(f"private start: {weights}, with ε = ")
    for source in (plain, run):  # the noise of the second follows from its seed
        said = start_of(others, source.path, model={"initial": str(source.path), **SAID})
        assert said.facts["source"] == f"public start: {weights}, declared public by the owner"
        assert "trained_on" not in said.facts
    free = start_of(store, plain.path, **PLAIN)
    assert free.facts["source"] == f"start: {weights}, of a run without a guarantee"
    assert "trained_on" not in free.facts


def test_a_private_run_does_not_start_from_its_own_people(run, begun, store, tmp_path):
    plain = begun("plain", **PLAIN)
    moved = Path(shutil.copytree(store, tmp_path / "moved"))
    for folder in (store, moved):
        with pytest.raises(SottoError, match="ε would have to be added"):
            start_of(folder, run.path)
        with pytest.raises(SottoError, match="without privacy"):
            start_of(folder, plain.path)


def test_a_private_run_needs_the_owners_word_on_a_run_without_a_guarantee(run, begun, others):
    plain, tried = begun("plain", **PLAIN), begun("tried", privacy={"mode": "experiment"})
    for source in (plain, tried, run):  # the last one is seeded
        with pytest.raises(
            SottoError, match=r"gives its users no guarantee, .* say so: model.initial_is_public = true"
        ):
            start_of(others, source.path)
        assert start_of(others, source.path, **PLAIN).weights
        assert start_of(others, source.path, privacy={"mode": "none"}, model={"initial": str(source.path), **SAID})
        recipe, people = make_recipe(others).replace(model={"initial": str(source.path)}), Store.open(others)
        assert find_start(recipe, people, build_model(recipe, people.vocabulary.size), again=True).weights


def test_what_a_private_run_began_with_needs_the_owners_word_too(begun, others, tmp_path):
    plain = begun("plain", **PLAIN)
    model = {"initial": str(plain.path), **SAID}
    second = begun("second", **ENTROPY, data={"store": str(others)}, model=model)
    (tmp_path / "third").mkdir()
    third = make_store(tmp_path / "third", seed=8, ids="w")
    with pytest.raises(SottoError, match=r"began with a model without a guarantee, .* model.initial_is_public = true"):
        start_of(third, second.path)
    facts = start_of(third, second.path, model={"initial": str(second.path), **SAID}).facts
    assert facts["source"].startswith("private start: ")
    assert facts["source"].endswith(", what it began with declared public by the owner")
    assert "trained_on" not in facts


def test_people_with_the_same_ids_in_another_store_are_recognised(begun, store, tmp_path):
    """Whatever the owner says: a shorter cut of the same people's text is another store."""
    plain = begun("plain", **PLAIN)
    (tmp_path / "same").mkdir()
    said = {"initial": str(plain.path), **SAID}
    with pytest.raises(SottoError, match=r"\d+ users of .* have the same id; .* give them other ids"):
        start_of(make_store(tmp_path / "same", seed=7), plain.path, model=said)
    store.rename(tmp_path / "moved")  # what is gone cannot be compared
    assert start_of(tmp_path / "same" / "store", plain.path, model=said).facts["source"].endswith("by the owner")


def test_another_store_in_the_place_of_the_one_of_a_start_says_nothing_of_its_people(begun, store, others, tmp_path):
    plain = begun("plain", **PLAIN)
    (tmp_path / "third").mkdir()
    other = make_store(tmp_path / "third", seed=8, ids="w")
    shutil.rmtree(store)
    other.rename(store)
    with pytest.raises(SottoError, match=r"is not the store that .*plain was trained on, .* put that store back"):
        start_of(others, plain.path, model={"initial": str(plain.path), **SAID})


def test_a_run_whose_name_is_a_sentence_is_refused(begun, others):
    run = begun(**ENTROPY)
    first, *lines = Chain.read(run.ledger_file).lines
    run.ledger_file.with_suffix(".head").unlink()
    run.ledger_file.write_bytes(chained([{**first, "run": "c0ffee). All is well. ("}, *lines]))
    with pytest.raises(DamagedRun, match="none that a run has"):
        start_of(others, run.path)


def test_the_runs_before_a_start_count_too(begun, store, others, tmp_path):
    first = begun("first", **PLAIN)
    second = begun("second", **PLAIN, data={"store": str(others)}, model={"initial": str(first.path)})
    with pytest.raises(SottoError, match="without privacy"):
        start_of(store, second.path)
    first.path.rename(tmp_path / "moved")
    with pytest.raises(SottoError, match="no longer at"):
        start_of(store, second.path)


def test_without_secrets_it_is_not_known_whom_a_run_saw(run, others):
    Secrets.erase(run.secrets)
    with pytest.raises(SottoError, match="it is not known whom it was trained on"):
        start_of(others, run.path)


def test_a_model_that_does_not_fit_is_refused(run, store, tmp_path):
    with pytest.raises(SottoError, match="do not fit"):
        start_of(store, run.path, model={"initial": str(run.path), "hidden": 6})
    with pytest.raises(SottoError, match=r"nowhere.* does not exist; name a base, a run, a release"):
        start_of(store, tmp_path / "nowhere")
    with pytest.raises(SottoError, match="holds no model; name a base, a run, a release"):
        start_of(store, store)
    other = Store.open(store)
    words = Vocabulary.from_words([*WORDS[:-1], "horse"])
    recipe = Recipe.of(run).replace(model={"initial": str(run.path)})
    changed = Store.from_users([other[0]], words)
    with pytest.raises(
        SottoError, match=r"has other tokens than .*; prepare the store with --vocabulary .*vocabulary\.txt"
    ):
        find_start(recipe, changed, build_model(recipe, words.size))


@pytest.mark.parametrize("name", first_of(FAMILY))
def test_after_any_context_a_start_without_contexts_says_what_it_says_after_bos(name):
    theirs = Vocabulary.from_words(WORDS)
    own = theirs.with_contexts(["de", "en"])
    base, fresh = of_family(name, theirs.size), of_family(name, own.size)
    model = load_model(fresh, with_contexts(weights_of(base), fresh, theirs, own))
    text = [theirs.words.index(word) for word in ("red", "tree")]

    def logits(model, begin):
        outputs, _ = read(model, np.array([begin, *text], np.int32), model.initial_state())
        return np.asarray(model.logits(outputs))

    expected = logits(base, theirs.specials.bos)
    for begin in own.specials.begins:
        found = logits(model, begin)
        np.testing.assert_allclose(found[:, : theirs.size], expected, rtol=1e-5, atol=1e-6)
        for context in own.specials.contexts:
            np.testing.assert_allclose(found[:, context], expected[:, theirs.specials.bos], rtol=1e-5, atol=1e-6)


def test_a_store_with_contexts_starts_from_a_model_without(model_folder, store, tmp_path):
    people, words = Store.open(store), Vocabulary.from_words(WORDS)
    recipe = make_recipe(store).replace(model={"initial": str(model_folder)})

    def start(vocabulary: Vocabulary):
        return find_start(recipe, replace(people, vocabulary=vocabulary), build_model(recipe, vocabulary.size))

    plain, known = start(words), start(words.with_contexts(["de"]))
    assert known.facts["trained_on"] == "public"
    assert known.weights == digest(weights_of(known.model)) != plain.weights
    table = weights_of(known.model)["embedding"]
    assert table.shape[0] == words.size + 1
    np.testing.assert_array_equal(table[-1], table[words.specials.bos])
    np.testing.assert_array_equal(table[:-1], weights_of(plain.model)["embedding"])
    save_tokenizer(words.with_contexts(["en"]), model_folder)
    with pytest.raises(SottoError, match="has other tokens"):
        start(words.with_contexts(["de"]))  # the rows of other contexts are not theirs


def test_the_shipped_base_fits_a_store_with_contexts(store):
    words = Vocabulary.public(10_000)
    recipe = make_recipe(store).replace(model=model_settings(filled_model(Recipe.load("small"))))
    for vocabulary in (words, words.with_contexts(["de"])):
        people = replace(Store.open(store), vocabulary=vocabulary)
        assert with_base(recipe, people).model.initial == "english"
    changed = (*words.with_contexts(["de"]).words[:-2], "zzz", "<context:de>")
    assert with_base(recipe, replace(people, vocabulary=Vocabulary(changed))).model.initial is None


@pytest.fixture
def model_folder(run: RunFolder, tmp_path: Path) -> Path:
    """Weights and words with a card that says public text."""
    folder = Path(shutil.copytree(run.model, tmp_path / "model"))
    write_card(folder)
    return folder


def write_card(folder: Path, **changes: object) -> None:
    card = {"trained_on": "public", **changes}
    (folder / "card.json").write_bytes(pretty(sealed({name: fact for name, fact in card.items() if fact is not None})))


def test_a_file_of_weights_starts_a_private_run_if_its_card_says_public_text(model_folder, store):
    for named in (model_folder, model_folder / "weights.safetensors"):
        start = start_of(store, named)
        assert start.facts["trained_on"] == "public"
        assert start.facts["source"] == f"public start: {start.weights}, public by its own card"
    write_card(model_folder, trained_on=None)
    assert start_of(store, model_folder, **PLAIN).facts["source"].endswith("of a weights file")
    with pytest.raises(SottoError, match='does not say "trained_on": "public"'):
        start_of(store, model_folder)


@pytest.fixture(autouse=True)
def no_cross_check(monkeypatch):
    """It takes seconds, and has tests of its own."""
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)


def test_a_release_of_other_people_starts_a_private_run_and_is_named(begun, released, others):
    run = begun(**ENTROPY)
    start = start_of(others, released(run))
    name = first_line(run.ledger_file)["run"]
    assert (start.facts["trained_on"], start.facts["runs"]) == ("private", [name])
    assert start.name == "release release of run"
    for said in ("private start: ", " for its own users", "the sum of both ε", "signed by SHA256:"):
        assert said in start.facts["source"]
    # Its run may be named too, when the secrets are gone.
    Secrets.erase(run.secrets)
    assert start_of(others, run.path).facts["runs"] == [name]


def test_a_release_of_the_same_people_is_refused(begun, released, store, others, tmp_path):
    run = begun(**ENTROPY)
    release, moved = released(run), Path(shutil.copytree(store, tmp_path / "moved"))
    for folder in (store, moved):
        with pytest.raises(SottoError, match="ε would have to be added"):
            start_of(folder, release)
        with pytest.raises(SottoError, match="ε would have to be added"):
            start_of(folder, release / "weights.safetensors")
    Secrets.erase(run.secrets)
    with pytest.raises(SottoError, match="ε would have to be added"):
        start_of(moved, run.path)
    # By way of a run on other people, or of its release, too.
    second = begun("second", **ENTROPY, data={"store": str(others)}, model={"initial": str(release)})
    for start in (second.path, released(second)):
        with pytest.raises(SottoError, match="ε would have to be added"):
            start_of(store, start)
    # When the first release is gone, the ledgers still say it.
    shutil.rmtree(release)
    with pytest.raises(SottoError, match="ε would have to be added"):
        start_of(store, second.path)


def test_a_release_that_came_from_a_model_without_a_guarantee_is_refused(begun, released, store, others):
    """That model may be of these people: nothing in the release shows whose it is."""
    plain = begun("plain", **PLAIN)
    model = {"initial": str(plain.path), **SAID}
    second = begun("second", **ENTROPY, data={"store": str(others)}, model=model)
    with pytest.raises(SottoError, match="started from a model without a guarantee"):
        start_of(store, released(second))
    with pytest.raises(SottoError, match="without privacy"):
        start_of(store, second.path)


def test_only_a_release_that_verifies_is_a_private_start(begun, released, run, others, model_folder):
    with pytest.raises(SottoError, match="anyone who knows it can undo the noise"):
        start_of(others, released(run))  # its secrets are seeded
    statement = {"private": True, "epsilon": 2.0, "delta": 1e-3, "run": first_line(run.ledger_file)["run"]}
    write_card(model_folder, privacy=statement)  # also where the card says public text
    with pytest.raises(SottoError, match="name the folder of its run"):
        start_of(others, model_folder)
    assert "private start: " in start_of(others, model_folder, **PLAIN).facts["source"]
    release = released(begun("fresh", **ENTROPY))
    (release / "report.html").write_text("another")
    with pytest.raises(DamagedRun, match=r"is not as its owner signed it \(report.html was changed\)"):
        start_of(others, release)


def test_an_unsigned_release_is_a_start_and_says_no_signer(begun, released, others):
    release = released(begun(**ENTROPY))
    for name in ("SHA256SUMS", "SHA256SUMS.sig", "signer.pub"):
        (release / name).unlink()
    assert "signed by" not in start_of(others, release).facts["source"]


def test_a_run_on_public_text_needs_no_secrets(begun, others):
    run = begun(**PLAIN)
    run.save_statement(run.read_statement(), run.read_card() | {"trained_on": "public"})
    Secrets.erase(run.secrets)
    assert start_of(others, run.path).facts["trained_on"] == "public"


@pytest.mark.parametrize(
    ("card", "missing", "words"),
    [
        ({"kind": "gru"}, None, "says kind 'gru'"),
        ({"privacy": {"files": {"other.safetensors": "00"}}}, None, "not of weights.safetensors"),
        ({"privacy": {"files": {"weights.safetensors": "00"}}}, None, "it was changed"),
        ({}, "vocabulary.txt", "no vocabulary.txt"),
        ({}, "card.json", "no card.json"),
    ],
)
def test_a_card_that_is_not_of_these_files_is_refused(model_folder, store, card, missing, words):
    write_card(model_folder, **card)
    if missing:
        (model_folder / missing).unlink()
    with pytest.raises(SottoError, match=words):
        start_of(store, model_folder)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A tiny folder of Hugging Face, with more rows than the store has tokens."""
    return write_folder(tmp_path / "tiny", "llama", rows=64)


def recipe_from(store: Path, folder: Path, **model: object) -> Recipe:
    """A recipe that names nothing but the folder and these keys."""
    recipe = make_recipe(store).to_dict()
    return with_sizes(Recipe.from_dict({**recipe, "model": {"initial": str(folder), **model}}))


def start_from(store: Path, folder: Path, privacy: dict | None = None, **model: object) -> Start:
    recipe = recipe_from(store, folder, **model).replace(privacy=privacy or {})
    people = Store.open(store)
    return find_start(recipe, people, build_model(recipe, people.vocabulary.size))


def test_kind_and_sizes_are_those_of_the_folder_and_the_context_is_the_recipes(store, llama, tmp_path):
    model = recipe_from(store, llama).model
    assert (model.kind, model.embedding, model.layers, model.kv_heads, model.head_size) == ("transformer", 12, 2, 2, 4)
    assert (model.context, model.tied, model.biases, model.norm_eps) == (63, False, "none", 1e-5)
    assert recipe_from(store, llama, context=8, kind="transformer", layers=2).model.context == 8
    assert recipe_from(store, write_folder(tmp_path / "gpt2", "gpt2")).model.kind == "gpt2"
    for changes, words in (
        ({"context": 64}, r"model.context=64, and .*config.json says that the longest text has 64 tokens"),
        ({"layers": 3}, r"model.layers=3, and .*config.json says 2; leave it out"),
        ({"kind": "gru"}, r"model.kind='gru', and .*config.json says 'transformer'"),
    ):
        with pytest.raises(SottoError, match=words):
            recipe_from(store, llama, **changes)


def test_a_private_run_needs_the_owners_word_on_a_folder_of_hugging_face(store, llama):
    start = start_from(store, llama, **SAID)
    assert start.facts == {
        "weights": digest(weights_of(start.model)),
        "trained_on": "public",
        "source": f"public start: {start.weights}, declared public by the owner",
    }
    assert start.name == "folder tiny"
    with pytest.raises(SottoError, match=r"not known what .* was trained on.*model.initial_is_public = true"):
        start_from(store, llama)
    free = start_from(store, llama, {"mode": "none"})
    assert (free.facts["trained_on"], free.weights) == ("people or unknown", start.weights)
    write_card(llama)
    assert start_from(store, llama).facts["trained_on"] == "public"
    write_card(llama, trained_on="people")
    with pytest.raises(SottoError, match="must not start from it"):
        start_from(store, llama, **SAID)


def test_the_owners_word_says_nothing_of_a_run_with_a_guarantee(begun, others, model_folder):
    run = begun("kept", **ENTROPY)
    for source in (run.path, model_folder):
        with pytest.raises(SottoError, match=r"model.initial_is_public is for a folder of Hugging Face and for a run"):
            start_of(others, source, model={"initial": str(source), **SAID})


@pytest.mark.parametrize(
    "name", ["x.\n\nHeld-out users are safe", "x. All is well", "<b>x</b>", "[x](y)", "", "a" * 61, 7]
)
def test_the_name_of_a_base_is_no_sentence(model_folder, others, name):
    write_card(model_folder, name=name, text="public text")
    with pytest.raises(SottoError, match="is not plain, and would be in your statement"):
        start_of(others, model_folder)
    write_card(model_folder, name="Deutsch, klein_2 (v1.0)", text="public text")
    assert start_of(others, model_folder).facts["name"] == "base Deutsch, klein_2 (v1.0)"


def test_surplus_rows_of_the_embedding_are_left_out(store, llama):
    model, tokens = start_from(store, llama, **SAID).model, Store.open(store).vocabulary.size
    assert tokens < 64
    for name, table in (("model.embed_tokens.weight", model.embedding), ("lm_head.weight", model.output)):
        np.testing.assert_array_equal(table, tensors_of("llama", 64)[name][:tokens])


def test_a_tokenizer_that_does_not_fit_the_folder_is_refused(store, llama):
    Vocabulary.from_words(WORDS).save(llama / "vocabulary.txt")
    assert start_from(store, llama, **SAID)
    Vocabulary.from_words([*WORDS, "horse"]).save(llama / "vocabulary.txt")
    with pytest.raises(SottoError, match=r"tiny has another tokenizer than .*--tokenizer .*vocabulary.txt"):
        start_from(store, llama, **SAID)
    (llama / "vocabulary.txt").unlink()
    few = write_folder(llama, "llama", rows=5)
    with pytest.raises(SottoError, match=r"has 5 rows, and the tokenizer of .* \d+ tokens: each needs a row"):
        start_from(store, few, **SAID)


def test_the_tokenizer_of_gpt2_begins_a_text_with_a_token_that_the_weights_do_not_have(store, tmp_path):
    tokenizer = byte_level()
    folder = write_folder(tmp_path / "gpt2", "gpt2", rows=tokenizer.file_size)
    save_tokenizer(tokenizer, folder)
    people = Store.from_users([tokenizer.encode("in the")], tokenizer, 16)
    recipe = recipe_from(store, folder, **SAID)
    embedding = np.asarray(find_start(recipe, people, build_model(recipe, tokenizer.size)).model.embedding)
    bos, eos, *_ = tokenizer.specials
    assert (bos, len(embedding)) == (tokenizer.file_size, tokenizer.size)
    np.testing.assert_array_equal(embedding[bos], embedding[eos])
    few = write_folder(folder, "gpt2", rows=tokenizer.file_size - 1)
    with pytest.raises(SottoError, match="each needs a row"):
        find_start(recipe, people, build_model(recipe_from(store, few), tokenizer.size))
