"""What the folder of a release holds. The runs have done no round, and what would load a model is replaced."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from scores import score
from sottovoce.commands import release_folder
from sottovoce.commands.release_folder import Publication, ReleaseFolder
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RECIPE, RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import sealed
from sottovoce_evidence.recipe import Recipe

NO_ONNX = "no ONNX: that needs `pip install 'sottovoce[export]'`"


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """No report and no ONNX, which need a model and a converter."""
    monkeypatch.setattr(release_folder, "report_run", lambda path, out, statement: out.write_text("report"))
    monkeypatch.setattr(release_folder, "find_spec", lambda name: None)


def write(run: RunFolder, tmp_path: Path, publication: Publication = release_folder.Publication()) -> ReleaseFolder:  # noqa: B008
    made = ReleaseFolder(run, tmp_path / "model", publication, "SHA256:abc")
    (tmp_path / "draft").mkdir()
    made.write(tmp_path / "draft", ())
    return made


def test_every_file_that_is_announced_is_written_and_no_other(run, tmp_path):
    made = write(run, tmp_path)
    signing = {"SHA256SUMS", "SHA256SUMS.sig", "signer.pub"}
    assert {path.name for path in (tmp_path / "draft").iterdir()} == set(made.files) - signing
    assert made.notes == (NO_ONNX,)


def test_a_line_that_a_crash_tore_is_not_released(run, tmp_path):
    whole = run.record.path.read_bytes()
    with run.record.path.open("ab") as file:
        file.write(b'{"round": 3, "eps')
    write(run, tmp_path)
    assert (tmp_path / "draft" / "record.jsonl").read_bytes() == whole


def test_a_model_that_is_no_better_than_its_start_is_noted(run, tmp_path):
    def measured(at: int, top1: float, **more: float) -> dict[str, object]:
        return {"round": at, "evaluation": score(40, top1, perplexity=80.0, **more).to_json()}

    baselines = Baselines("base english", score(40, 0.12, 0.2, 0.3, 90.0))
    run.write_json(run.baselines_file, sealed(baselines.to_json()))
    for at, top1 in ((0, 0.13), (1, 0.11)):
        run.record.append(measured(at, top1))

    def notes() -> tuple[str, ...]:
        return ReleaseFolder(run, tmp_path / "model", Publication(), "SHA256:abc").notes

    noted = notes()[0]
    assert noted.startswith("the model is no better than the start, base english: top-1 11.00% against 12.00%; what")
    run.record.append(measured(2, 0.13))
    assert notes() == (NO_ONNX,)
    words = replace(baselines, start_model=score(40, 0.12, 0.2, 0.3, 90.0, top1_words=0.07))
    run.write_json(run.baselines_file, sealed(words.to_json()))
    run.record.append(measured(2, 0.13, top1_words=0.06))
    assert notes()[0].startswith("over words alone the model is no better than the start, base english: top-1 6.00%")
    run.record.append(measured(2, 0.3, top1_words=0.0))
    run.write_json(run.baselines_file, sealed(Baselines("nothing").to_json()))
    assert notes()[0].startswith("no word that the model suggests first is right: top-1 over words 0.00%")


def test_the_card_has_the_architecture_and_the_recipe_no_path(run, tmp_path):
    write(run, tmp_path)
    card = json.loads((tmp_path / "draft/card.json").read_text())
    assert card["model"] == {"kind": "lstm", "embedding": 4, "hidden": 5}
    recipe = tomllib.loads((tmp_path / "draft" / RECIPE).read_text())
    assert recipe["data"]["store"] == "store"
    assert Recipe.load(tmp_path / "draft" / RECIPE).privacy == Recipe.of(run).privacy
    for path in (tmp_path / "draft").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()


def test_the_readme_asks_in_the_language_of_the_words(begun, tmp_path, tiny_store):
    known = "wie geht es das wetter ist wir sehen uns um viel hast du lust red"
    words = Vocabulary.from_words(known.split(), language="de")
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "de", words, Grouping(tokens_per_user=16, test_users=0.1))
    write(begun("german", data={"store": str(tmp_path / "de")}), tmp_path)
    text = (tmp_path / "draft/README.md").read_text()
    assert 'language: "de"' in text
    assert 'model.suggest("wie geht es")' in text


def test_onnx_is_written_where_it_can_be_and_a_failure_is_noted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(release_folder, "find_spec", lambda name: True)

    def export(path, out, statement):
        out.mkdir()
        assert statement.run == read_statement(run).run

    monkeypatch.setattr(release_folder, "export_run", export)
    made = write(run, tmp_path)
    assert "onnx/" in made.files
    assert (tmp_path / "draft/onnx").is_dir()

    def fail(path, out, statement):
        raise SottoError("it differs from JAX")

    monkeypatch.setattr(release_folder, "export_run", fail)
    (tmp_path / "again").mkdir()
    made.write(tmp_path / "again", ())
    assert "onnx/" not in made.files
    assert made.notes == ("no ONNX: it differs from JAX",)


def test_a_model_of_the_callers_own_has_no_report(run, tmp_path):
    card = run.read_card() | {"own_model": True, "code": "Mine of the caller"}
    run.save_statement(run.read_statement(), card)
    made = write(run, tmp_path)
    assert "report.html" not in made.files
    assert "the model is your own" in made.notes[0]
    assert json.loads((tmp_path / "draft/card.json").read_text())["model"] is None
