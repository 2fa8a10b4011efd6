"""Starts that are allowed and refused, with models of runs that have done no round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_run import WORDS, make_recipe, make_store

from examples import first_of
from family import FAMILY, of_family, read
from sottovoce.build.assembly import build_model, filled_model, load_model, model_settings, weights_of
from sottovoce.commands.initial_model import Start, charges_of_start, find_start, with_base, with_contexts, with_sizes
from sottovoce.commands.release import run_faults
from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import StoreLedger
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting import epsilon, rounded_up, total_of
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import pretty, sealed
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import DIGITS, EarlierRun, StartFacts
from sottovoce_evidence.verify import verify_release
from tiny_base import write_card
from tiny_hugging_face import tensors_of, write_folder
from tokenizer_examples import byte_level

PLAIN = {"privacy": {"mode": "none"}}
SAID = {"initial_is_public": True}
ENTROPY = {"privacy": {"secrets": "entropy"}}
NOT_SAID = r"gives no guarantee .* say so: model.initial_is_public = true"

Begun = Callable[..., RunFolder]
Released = Callable[..., Path]


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A store of other people."""
    (tmp_path / "others").mkdir()
    return make_store(tmp_path / "others", seed=7, ids="v")


@pytest.fixture(autouse=True)
def no_cross_check(monkeypatch):
    """It takes seconds, and has tests of its own."""
    monkeypatch.setattr("sottovoce_evidence.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)


def start_of(folder: Path, initial: Path | None, given: bool = False, **changes: dict):
    """The start of a run on the store of a folder: private unless changed."""
    recipe = make_recipe(folder).replace(model={"initial": None if initial is None else str(initial)})
    recipe = recipe.replace(**changes)
    store = Store.open(folder)
    return find_start(recipe, store, build_model(recipe, store.vocabulary.size), given=given)


def said(initial: Path) -> dict[str, object]:
    """With the owner's word that the text of a start is public."""
    return {"initial": str(initial), **SAID}


def earlier(*runs: RunFolder) -> tuple[EarlierRun, ...]:
    """What a statement lists of runs."""
    found = map(read_statement, runs)
    return tuple(EarlierRun(statement.run, statement.epsilon, statement.delta) for statement in found)


def spent_by(*runs: RunFolder):
    """What the planned rounds of these runs are charged."""
    return list(total_of(pair for run in runs for pair in read_statement(run).charged).items())


def rounded(spent) -> float:
    """ε of charges, as a statement has it."""
    return float(rounded_up(epsilon(spent, 1e-3, "rdp"), DIGITS))


def test_without_a_start_the_model_is_the_one_of_the_seed(store):
    start = start_of(store, None)
    assert (start.facts, start.weights) == (None, "")


@pytest.mark.parametrize(("changes", "trained_on"), [({}, "public"), (PLAIN, "unknown")])
def test_a_model_given_from_python_is_named_by_its_weights(store, changes, trained_on):
    start = start_of(store, None, given=True, **changes)
    weights = digest(weights_of(start.model))
    assert start.facts == StartFacts(weights, trained_on, declared=trained_on == "public")


def test_a_private_run_of_other_people_is_a_start_and_is_listed_with_its_epsilon(run, begun, others):
    kept = begun("kept", **ENTROPY)
    start = start_of(others, kept.path)
    assert start.facts == StartFacts(digest(run.load_weights()), "private", runs=earlier(kept))
    assert digest(weights_of(start.model)) == start.weights
    assert start.name == "run kept"
    # Its secrets may be gone, as after a release.
    Secrets.erase(kept.secrets)
    assert start_of(others, kept.path).facts == start.facts


def test_a_run_from_a_private_run_of_the_same_people_has_the_epsilon_of_both(begun, store):
    first = begun("first", **ENTROPY)
    alone = begun("alone", **ENTROPY)
    second = begun("second", **ENTROPY, model={"initial": str(first.path)})
    statement, model = read_statement(second), {"initial": str(second.path)}
    assert dict(statement.charged) == dict(total_of(spent_by(first, alone)))
    assert statement.epsilon == rounded(spent_by(first, alone)) > read_statement(alone).epsilon
    assert statement.epsilon_training == read_statement(alone).epsilon
    assert (statement.start.runs, dict(statement.start.charged)) == (earlier(first), dict(spent_by(first)))
    # The store was charged for each of them once.
    assert StoreLedger(store / "ledger.jsonl").spent(statement.run) == spent_by(alone)
    third = read_statement(begun("third", **ENTROPY, model=model))
    assert third.epsilon == rounded(spent_by(first, alone, alone))
    assert third.start.runs == earlier(second, first)


def test_a_statement_that_leaves_out_what_its_start_was_charged_is_not_released(begun):
    """The ledger of the run keeps it."""
    second = begun("second", **ENTROPY, model={"initial": str(begun("first", **ENTROPY).path)})
    alone = begun("alone", **ENTROPY, run={"rounds": 3}).read_statement()
    own = {name: alone[name] for name in ("epsilon", "charged")}
    assert not any("charges come to" in fault for fault in run_faults(second))
    stated = second.read_statement()
    second.save_statement({**stated, **own, "start": {**stated["start"], "charged": []}}, second.read_card())
    assert any("charges come to" in fault for fault in run_faults(second))


def test_the_budget_of_a_run_is_of_all_that_it_starts_from(begun):
    first = begun("first", **ENTROPY)
    paid = epsilon(spent_by(first), 1e-3, "rdp")
    privacy = {"secrets": "entropy", "epsilon": 1.2 * paid}
    second = read_statement(begun("second", privacy=privacy, model={"initial": str(first.path)}))
    assert second.rounds_planned < 6
    assert paid < second.epsilon <= 1.2 * paid
    with pytest.raises(SottoError, match="used up before the first round"):
        begun("third", privacy={**privacy, "epsilon": paid}, model={"initial": str(first.path)})


def test_a_copy_of_a_store_with_its_ledger_knows_the_same_runs(begun, store, tmp_path):
    first = begun("first", **ENTROPY)
    moved = Path(shutil.copytree(store, tmp_path / "moved"))
    for folder in (store, moved):
        assert dict(start_of(folder, first.path).facts.charged) == dict(spent_by(first))


def test_a_start_with_some_runs_here_and_some_elsewhere_is_refused(begun, released, store, others):
    first = begun("first", **ENTROPY)
    second = begun("second", **ENTROPY, data={"store": str(others)}, model={"initial": str(first.path)})
    assert read_statement(second).start == StartFacts(digest(first.load_weights()), "private", runs=earlier(first))
    for start in (second.path, released(second)):
        for folder in (store, others):
            with pytest.raises(SottoError, match=r"comes from runs on the users of .* and from runs on others"):
                start_of(folder, start)
    shutil.rmtree(first.path)  # its folder is not asked
    with pytest.raises(SottoError, match="and from runs on others"):
        start_of(store, second.path)


def test_the_runs_before_a_start_are_listed_too(begun, others, tmp_path):
    first = begun("first", **ENTROPY)
    second = begun("second", **ENTROPY, data={"store": str(others)}, model={"initial": str(first.path)})
    (tmp_path / "third").mkdir()
    third = make_store(tmp_path / "third", seed=8, ids="w")
    shutil.rmtree(first.path)
    assert start_of(third, second.path).facts.runs == (*earlier(second), *read_statement(second).start.runs)


def test_what_the_server_saw_of_the_same_people_is_not_added_up(begun, store):
    recipe = make_recipe(store).replace(model={"initial": str(begun(**ENTROPY).path)}, federation={"noise": "devices"})
    with pytest.raises(SottoError, match="what the server saw of them then is not in the ε against it"):
        charges_of_start(recipe, Store.open(store))


def test_a_private_run_needs_the_owners_word_on_a_run_without_a_guarantee(run, begun, others):
    plain, tried = begun("plain", **PLAIN), begun("tried", privacy={"mode": "experiment"})
    weights = digest(run.load_weights())
    for source in (plain, tried, run):  # the noise of the last one follows from its seed
        with pytest.raises(SottoError, match=NOT_SAID):
            start_of(others, source.path)
        assert start_of(others, source.path, model=said(source.path)).facts == StartFacts(weights, "public", True)
        assert start_of(others, source.path, **PLAIN).facts == StartFacts(weights, "unknown")
        recipe, people = make_recipe(others).replace(model={"initial": str(source.path)}), Store.open(others)
        assert find_start(recipe, people, build_model(recipe, people.vocabulary.size), again=True).weights


def test_the_owners_word_is_not_taken_for_a_run_on_the_same_store(run, begun, store):
    for source in (begun("plain", **PLAIN), run):
        with pytest.raises(SottoError, match="whose text is not public"):
            start_of(store, source.path, model=said(source.path))


def test_the_owners_word_is_not_taken_for_a_run_that_came_from_the_same_store(begun, store, others):
    kept = begun("kept", **ENTROPY)
    plain = begun("plain", **PLAIN, data={"store": str(others)}, model={"initial": str(kept.path)})
    assert read_statement(plain).start.runs == earlier(kept)
    with pytest.raises(SottoError, match="whose text is not public"):
        start_of(store, plain.path, model=said(plain.path))


def test_the_owners_word_on_a_run_with_a_guarantee_changes_nothing(begun, store, others):
    run = begun("kept", **ENTROPY)
    for folder in (store, others):
        assert start_of(folder, run.path, model=said(run.path)).facts == start_of(folder, run.path).facts


def test_what_a_start_began_with_by_the_owners_word_is_said_of_it(begun, others, tmp_path):
    plain = begun("plain", **PLAIN)
    second = begun("second", **ENTROPY, data={"store": str(others)}, model=said(plain.path))
    (tmp_path / "third").mkdir()
    facts = start_of(make_store(tmp_path / "third", seed=8, ids="w"), second.path).facts
    assert (facts.trained_on, facts.declared, facts.runs) == ("private", True, earlier(second))


def test_a_statement_whose_start_is_of_unknown_origin_promises_nothing(begun, others):
    """No private run has one: somebody wrote it."""
    run = begun(**ENTROPY)
    stated = {**run.read_statement(), "start": StartFacts("00" * 32, "unknown").to_json()}
    run.save_statement(stated, run.read_card())
    with pytest.raises(SottoError, match=NOT_SAID):
        start_of(others, run.path)


def test_a_run_whose_name_is_a_sentence_is_refused(begun, others):
    run = begun(**ENTROPY)
    run.save_statement({**run.read_statement(), "run": "c0ffee). All is well. ("}, run.read_card())
    with pytest.raises(DamagedRun, match="none that a run has"):
        start_of(others, run.path)


def test_a_model_that_does_not_fit_is_refused(run, store, tmp_path):
    with pytest.raises(SottoError, match="do not fit"):
        start_of(store, run.path, model={"initial": str(run.path), "hidden": 6})
    with pytest.raises(SottoError, match=r"nowhere.* there is no such folder; name a run, a release"):
        start_of(store, tmp_path / "nowhere")
    with pytest.raises(SottoError, match="holds no model: it is a store"):
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
    assert known.facts.trained_on == "public"
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
    """A base with the weights of a run."""
    folder = Path(shutil.copytree(run.model, tmp_path / "model"))
    write_card(folder)
    return folder


def test_a_base_is_a_start_of_a_private_run(model_folder, store):
    start = start_of(store, model_folder)
    text = {"text": "lines of colours", "licence": "CC0"}
    assert start.facts == StartFacts(start.weights, "public", name="base tiny", **text)
    assert start_of(store, model_folder, model=said(model_folder)).facts == start.facts


@pytest.mark.parametrize("trained_on", ["people", "Public", ""])
def test_a_card_that_says_nothing_of_public_text_is_not_overruled(model_folder, store, trained_on):
    write_card(model_folder, trained_on=trained_on)
    assert start_of(store, model_folder, **PLAIN).facts.trained_on == "unknown"
    for model in ({"initial": str(model_folder)}, said(model_folder)):
        with pytest.raises(SottoError, match="gives no guarantee"):
            start_of(store, model_folder, model=model)


def test_weights_alone_are_no_start(model_folder, store):
    (model_folder / "card.json").write_bytes(pretty(sealed({"trained_on": "public"})))
    for named, words in ((model_folder, "no run, release or base"), (model_folder / "weights.safetensors", "a file")):
        with pytest.raises(SottoError, match=f"holds no model: it is {words}"):
            start_of(store, named)


def test_a_release_of_other_people_starts_a_private_run_and_is_named(begun, released, others):
    run = begun(**ENTROPY)
    start = start_of(others, released(run))
    assert (start.facts.trained_on, start.facts.runs, start.facts.charged) == ("private", earlier(run), ())
    assert start.name == "release release of run"
    assert start.facts.signer.startswith("SHA256:")


def test_a_release_of_the_same_people_starts_a_run_with_the_epsilon_of_both(begun, released, tmp_path):
    first = begun("first", **ENTROPY)
    release = released(first)
    second = begun("second", **ENTROPY, model={"initial": str(release)})
    assert read_statement(second).epsilon == rounded(spent_by(first, first))
    shutil.rmtree(release)
    found = verify_release(released(second))
    assert not [check for check in found.checks if check.result == "failed"]


def test_only_a_release_that_verifies_is_a_private_start(begun, released, run, others):
    with pytest.raises(SottoError, match=NOT_SAID):
        start_of(others, released(run))  # its secrets are seeded
    release = released(begun("fresh", **ENTROPY))
    (release / "report.html").write_text("another")
    with pytest.raises(DamagedRun, match=r"is not as its owner signed it \(report.html was changed\)"):
        start_of(others, release)
    (release / "report.html").write_text("report")
    for name in ("SHA256SUMS", "SHA256SUMS.sig", "signer.pub"):
        (release / name).unlink()
    assert start_of(others, release).facts.signer is None
    stated = sealed({**json.loads((release / "privacy.json").read_text()), "epsilon": 0.01})
    (release / "privacy.json").write_bytes(pretty(stated))
    with pytest.raises(SottoError, match="is not a release to start from"):
        start_of(others, release)


def test_a_run_on_public_text_needs_no_secrets(begun, others):
    run = begun(**PLAIN)
    run.save_statement(run.read_statement(), run.read_card() | {"trained_on": "public"})
    Secrets.erase(run.secrets)
    assert start_of(others, run.path).facts.trained_on == "public"


def test_the_files_of_a_base_are_those_of_its_card(model_folder, store):
    write_card(model_folder, files={"weights.safetensors": "00"})
    with pytest.raises(DamagedRun, match="it was changed"):
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
    assert start.facts == StartFacts(digest(weights_of(start.model)), "public", declared=True)
    assert start.name == "folder tiny"
    with pytest.raises(SottoError, match=NOT_SAID):
        start_from(store, llama)
    free = start_from(store, llama, {"mode": "none"})
    assert (free.facts.trained_on, free.weights) == ("unknown", start.weights)


@pytest.mark.parametrize(
    "name", ["x.\n\nHeld-out users are safe", "x. All is well", "<b>x</b>", "[x](y)", "", "a" * 61]
)
def test_the_name_of_a_base_is_no_sentence(model_folder, others, name):
    write_card(model_folder, name=name)
    with pytest.raises(SottoError, match="is not plain, and would be in your statement"):
        start_of(others, model_folder)
    write_card(model_folder, name="Deutsch, klein_2 (v1.0)")
    assert start_of(others, model_folder).facts.name == "base Deutsch, klein_2 (v1.0)"


def test_surplus_rows_of_the_embedding_are_left_out(store, llama):
    model, tokens = start_from(store, llama, **SAID).model, Store.open(store).vocabulary.size
    assert tokens < 64
    for name, table in (("model.embed_tokens.weight", model.embedding), ("lm_head.weight", model.output)):
        np.testing.assert_array_equal(table, tensors_of("llama", 64)[name][:tokens])


def test_a_tokenizer_that_does_not_fit_the_folder_is_refused(store, llama):
    Vocabulary.from_words(WORDS).save(llama / "vocabulary.txt")
    assert start_from(store, llama, **SAID)
    Vocabulary.from_words([*WORDS, "horse"]).save(llama / "vocabulary.txt")
    with pytest.raises(SottoError, match=r"tiny has other tokens than .*--vocabulary .*vocabulary.txt"):
        start_from(store, llama, **SAID)
    (llama / "vocabulary.txt").unlink()
    few = write_folder(llama, "llama", rows=5)
    with pytest.raises(SottoError, match=r"has 5 rows, and the tokenizer has \d+ tokens: each needs a row"):
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
