"""Comparison of runs before their first round: who is measured together, and what is refused."""

from __future__ import annotations

import stat

import pytest
from tiny_run import WORDS, make_store

from sottovoce.commands import compare
from sottovoce.commands.compare import compare_runs, write_comparison
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from tokenizer_examples import byte_level


def test_runs_on_one_store_are_measured_on_the_same_users(run, begun, store):
    other = begun("other", privacy={"mode": "none"})
    found = compare_runs([run.path, other.path])
    assert [one.name for one in found.runs] == ["run", "other"]
    assert [one.statement.private for one in found.runs] == [True, False]
    assert found.runs[0].evaluation == found.runs[1].evaluation
    assert not found.runs[0].evaluation.targets  # how much held-out people wrote is not published
    assert found.runs[0].spread is None


def test_how_single_users_fare_is_internal_and_users_are_limited(run, store):
    found = compare_runs([run.path], users=2, internal=True).runs[0]
    assert found.spread
    assert found.evaluation.users == 2
    assert compare_runs([run.path], users=0, internal=True).runs[0].evaluation.users == Store.open(store, "test").users


def test_an_internal_page_is_for_the_owner(run, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "render_comparison", lambda comparison: "a page")
    for internal, mode in ((False, 0o644), (True, 0o600)):
        write_comparison(compare_runs([run.path], users=2, internal=internal), page := tmp_path / "page.html")
        assert stat.S_IMODE(page.stat().st_mode) == mode


def test_a_run_on_another_store_is_not_measured_with_the_others(run, begun, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    other = begun("other", data={"store": str(make_store(tmp_path / "elsewhere", seed=4))})
    found = compare_runs([run.path, other.path])
    assert [one.evaluation is not None for one in found.runs] == [True, False]
    ((title, text),) = found.notes
    assert title == "Not the same users"
    assert text.startswith("Trained on another store than run: other.")


def test_a_release_is_measured_with_the_runs_of_its_store(run, release, begun, tmp_path):
    found = compare_runs([release, run.path])
    assert found.runs[0].evaluation == found.runs[1].evaluation is not None
    (tmp_path / "elsewhere").mkdir()
    other = begun("other", data={"store": str(make_store(tmp_path / "elsewhere", seed=4))})
    assert compare_runs([other.path, release]).runs[1].evaluation is None  # its users may be held out there
    assert compare_runs([release]).notes[0][0] == "Not measured"


def test_without_held_out_users_nothing_is_measured(run, store):
    store.rename(store.with_name("gone"))
    found = compare_runs([run.path])
    assert found.runs[0].evaluation is None
    assert found.notes[0][0] == "Not measured"


def test_an_internal_page_is_for_the_owner_alone(run, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "render_comparison", lambda comparison: "a page")
    for internal, mode in ((True, 0o600), (False, 0o644)):
        page = tmp_path / f"{internal}.html"
        found = compare.Comparison([], "", internal, [])
        write_comparison(found, page)
        assert page.read_text() == "a page"
        assert stat.S_IMODE(page.stat().st_mode) == mode


def test_what_cannot_be_compared_is_refused(run):
    with pytest.raises(SottoError, match="named twice"):
        compare_runs([run.path, run.path])
    with pytest.raises(SottoError, match="0 runs were named"):
        compare_runs([])
    with pytest.raises(SottoError, match="--users -1"):
        compare_runs([run.path], users=-1)


@pytest.mark.slow
def test_a_base_alone_is_refused_with_what_measures_it(run):
    with pytest.raises(SottoError, match=r"base english has no users: .* `sotto evaluate english --store STORE`"):
        compare_runs(["english"])
    with pytest.raises(SottoError, match="the base english has other words than the store"):
        compare_runs([run.path, "english"])


def test_a_base_is_measured_on_the_users_of_the_run_and_has_a_row(run, monkeypatch):
    itself = ModelFolder.open(run.path)  # as if the base were this very model
    monkeypatch.setattr(ModelFolder, "model", itself.model)
    monkeypatch.setattr(ModelFolder, "tokenizer", itself.tokenizer)
    found = compare_runs([run.path, "english"])
    measured = found.runs[0].evaluation
    assert measured is not None
    assert found.bases["base english"].top1 == measured.top1
    (row,) = [row for row in found.rows() if row["Run"] == "base english"]
    assert (row["ε"], row["Measured on"]) == ("public text", "the same users")
    assert found.to_json()["baselines"]["base english"]["perplexity"] == measured.perplexity


@pytest.mark.slow
def test_runs_of_different_tokens_are_measured_on_the_same_people(run, begun, in_pieces, tmp_path):
    other = begun("other", data={"store": str(in_pieces)})
    found = compare_runs([run.path, other.path], words=5)
    assert [one.evaluation is not None for one in found.runs] == [True, True]
    assert found.runs[1].evaluation.words == 5
    assert (found.same_tokens, found.same_words) == (False, False)
    assert {title for title, _ in found.notices()} >= {"Different tokens"}
    assert not any(title in ("Not the same users", "Less text") for title, _ in found.notices())
    first, second, *_ = found.rows()
    assert first.keys() == second.keys() >= {"Top-1 over words", "Bits per byte"}
    assert second["Top-1 over words"].endswith(", at 5 words")
    assert "bytes" not in str(found.to_json()["runs"][1]["evaluation"].keys())


@pytest.mark.slow
def test_shorter_texts_of_the_same_people_are_named(run, begun, tiny_store, tmp_path):
    grouping = Grouping(tokens_per_user=30, test_users=0.1)
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "short", byte_level(), grouping)
    other = begun("other", data={"store": str(tmp_path / "short")})
    notices = dict(compare_runs([run.path, other.path], words=0).notices())
    assert notices["Less text"].split(": ")[1].startswith("other (")


@pytest.mark.slow
def test_other_words_leave_top1_comparable(run, begun, tiny_store, tmp_path):
    grouping = Grouping(tokens_per_user=16, test_users=0.1)
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "few", Vocabulary.from_words(WORDS[:4]), grouping)
    found = compare_runs([run.path, begun("other", data={"store": str(tmp_path / "few")}).path])
    assert (found.same_tokens, found.same_words) == (False, True)
    assert "Different vocabularies" in dict(found.notices())
    assert [one.evaluation is not None for one in found.runs] == [True, True]
