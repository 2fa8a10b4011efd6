"""Held-out users who were declared private: nothing but a private evaluation opens their text."""

from __future__ import annotations

import json

import pytest
from tiny_run import declare

import sottovoce
from scores import score
from sottovoce.commands import export
from sottovoce.commands.audit_membership import audit_membership
from sottovoce.commands.compare import compare_runs
from sottovoce.commands.evaluate import evaluate_run, open_users
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce.data.store import Store
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.owner_key import owner_key
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import sealed
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.signature import RELEASE, sign_folder
from sottovoce_evidence.verify import FAILED, PASSED, verify_release


@pytest.fixture
def recipe(recipe: Recipe) -> Recipe:
    """Every round is evaluated, where that may be."""
    return recipe.replace(run={"evaluate_every": 1, "rounds": 1})


@pytest.fixture
def opened(monkeypatch):
    """Which splits were opened, and how."""
    found, real = [], Store.open.__func__

    def spy(cls, folder, split="train", **how):
        found.append((split, how.get("privately", False)))
        return real(cls, folder, split, **how)

    monkeypatch.setattr(Store, "open", classmethod(spy))
    return found


@pytest.mark.parametrize("held_out", ["exact", "private"])
def test_private_users_are_opened_by_no_verb_and_are_in_none_of_its_files(
    store, recipe, tmp_path, opened, released, held_out
):
    """The same verbs do measure users who are declared exact: a test that sees nothing would prove nothing."""
    declare(store, held_out)
    exact = held_out == "exact"
    done = sottovoce.train(recipe, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    baselines = Baselines.of(run)
    assert (done.evaluation is not None) == exact
    assert any("evaluation" in line for line in run.record.read()) == exact
    assert bool(baselines.scores) == exact
    assert ("%" in report_run(run.path, out=tmp_path / "page.html").read_text().split("Top-1")[1][:200]) == exact
    (compared,) = compare_runs([run.path]).runs
    assert (compared.evaluation is not None) == exact
    release = released(run)
    assert any(b'"top1"' in file.read_bytes() for file in release.iterdir()) == exact
    assert any(split == "test" for split, _ in opened) == exact
    statement = read_statement(RunFolder.of_release(release))
    assert (statement.held_out, "held_out" in statement.not_covered) == (held_out, exact)


def test_an_exact_figure_of_private_users_is_asked_for_in_vain(store, begun):
    run = begun()
    evaluate_run(run.path)
    declare(store, "private")
    for ask in (
        lambda: evaluate_run(run.path),
        lambda: open_users(run.path, store=store),
        lambda: ModelFolder.open(run.path).evaluate(store),
        lambda: audit_membership(run.path, references=0),
    ):
        with pytest.raises(SottoError, match="declared private"):
            ask()
    assert export._accuracy(ModelFolder.open(run.path), {"top1": b""}) == {"users": 0, "top1": None}
    assert evaluate_run(run.path, Store.open(store)).evaluation.users  # those trained on, for the owner


def test_an_exact_figure_of_private_users_in_a_release_is_found(store, begun, released):
    """Written by hand: no verb does."""
    declare(store, "private")
    release = RunFolder.of_release(released(begun()))

    def check():
        return next(check for check in verify_release(release.path).checks if check.name == "held-out users")

    assert check().result == PASSED
    release.write_json(release.baselines_file, sealed(Baselines(constant=score(40, 0.1, 0.2, 0.3, None)).to_json()))
    release.record.append({"round": 1, "evaluation": score(40, 0.1234).to_json()})
    (release.path / "onnx").mkdir()
    (release.path / "onnx/manifest.json").write_text(json.dumps({"eight_bits": {"users": 50, "top1": 0.1234}}))
    sign_folder(release.path, owner_key(), RELEASE)
    assert check().result == FAILED
    for file in ("baselines.json", "record.jsonl", "onnx/manifest.json"):
        assert f"{file} has exact figures" in check().found


def test_the_word_goes_with_a_copy_of_the_store_and_another_one_is_damage(store):
    declare(store, "private")
    assert Store.open(store).held_out == "private"
    assert Store.open(store, "test", privately=True).users
    declare(store, "neither")
    with pytest.raises(SottoError, match="'held_out' is 'neither'"):
        Store.open(store)
