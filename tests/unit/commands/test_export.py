"""The folder of an exported model, without a converter: graphs are some bytes here."""

from __future__ import annotations

import json
import shutil
import stat

import jax
import numpy as np
import pytest
from builders import statement_json

from sottovoce.build.assembly import weights_of
from sottovoce.commands import convert
from sottovoce.commands.export import export_run, find_export
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.subwords import Subwords
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.pieces import pieces_of
from sottovoce.models import registry
from sottovoce.runs.exported import read_manifest
from sottovoce.runs.folder import RECIPE, RunFolder
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.recipe import Recipe
from tiny_hugging_face import write_folder

SIZES = {"embedding": 6, "hidden": 8}
WORDS = Vocabulary.from_words(["red", "green"])


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunFolder:
    monkeypatch.setattr(convert, "convert", lambda model, graph: f"the {graph}".encode())
    monkeypatch.setattr(convert, "check_parity", lambda model, graph, contents, words: 1e-6)
    (tmp_path / "run").mkdir()
    run = RunFolder(tmp_path / "run")
    recipe = Recipe.from_dict({"data": {"store": "none"}, "model": {"kind": "lstm", **SIZES}})
    run.recipe_file.write_text(recipe.to_toml(), encoding="utf-8")
    save(run, 1)
    return run


def save(run: RunFolder, seed: int, tokenizer: Tokenizer = WORDS) -> None:
    """A model as training leaves it."""
    model = registry.build("lstm", tokenizer.size, SIZES, jax.random.key(seed))
    files = run.save_model(weights_of(model), tokenizer)
    stated = {"private": True, "epsilon": 3.21, "delta": 1e-5, "files": files}
    statement = {**statement_json(), **stated}
    run.save_statement(statement, {"code": "of the recipe"})


def test_an_export_has_graphs_words_and_a_manifest(run, tmp_path):
    manifest = export_run(run.path, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "step.onnx", "sequence.onnx", "vocabulary.txt", "manifest.json",
    }  # fmt: skip
    assert (tmp_path / "out" / "step.onnx").read_bytes() == b"the step"
    assert manifest["vocabulary"]["fingerprint"] == WORDS.fingerprint
    told = {"private": True, "epsilon": 3.21, "delta": 1e-5, "unit": "user"}
    assert told.items() <= manifest["privacy"].items()
    assert manifest["state"] == [
        {"input": f"state_{n}", "output": f"next_state_{n}", "shape": [8], "start": 0.0} for n in range(2)
    ]
    assert manifest["eight_bits"] is None


@pytest.mark.parametrize(
    ("statement", "trained_on", "alone"),
    [
        ({"private": True, "secrets": "entropy"}, "people", False),
        ({"private": True, "secrets": "seeded"}, "people", True),
        ({"private": False}, "people", True),
        ({"private": False}, "public", False),
    ],
    ids=["private", "seeded", "no guarantee", "public text"],
)
def test_an_export_is_for_whom_the_model_is(run, tmp_path, statement, trained_on, alone):
    stated = run.read_statement()
    secrets = {"privacy": {**stated["privacy"], "secrets": statement.get("secrets", "entropy")}}
    facts = {**stated, "private": statement["private"], **secrets}
    run.save_statement(facts, {**run.read_card(), "trained_on": trained_on})
    assert export_run(run.path, tmp_path / "out")["for_owner_alone"] is alone
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    folder, file = (0o700, 0o600) if alone else (mode(tmp_path / "folder"), mode(tmp_path / "file"))
    assert mode(tmp_path / "out") == folder
    assert {mode(path) for path in (tmp_path / "out").iterdir()} == {file}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_manifest_names_the_tokens_of_contexts(run, tmp_path):
    assert export_run(run.path, tmp_path / "plain")["contexts"] == {}
    shutil.rmtree(run.model)
    save(run, 1, WORDS.with_contexts(["de", "en"]))
    manifest = export_run(run.path, tmp_path / "out")
    assert manifest["contexts"] == {"de": WORDS.size, "en": WORDS.size + 1}
    assert manifest["special_tokens"] == {"<bos>": 0, "<eos>": 1, "<unk>": 2}


def test_where_words_have_several_tokens_it_says_what_each_token_is(run, tmp_path):
    tokenizer = Subwords.of_characters("abé")
    shutil.rmtree(run.model)
    save(run, 1, tokenizer)
    manifest = export_run(run.path, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest
    graphs, others = {"step.onnx", "sequence.onnx", "batch.onnx"}, {"tokenizer.json", "pieces.json", "manifest.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == graphs | others
    assert manifest["vocabulary"]["kind"] == "characters"
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer.contents
    facts, pieces = json.loads((tmp_path / "out" / "pieces.json").read_text(encoding="utf-8")), pieces_of(tokenizer)
    assert [each.encode("latin-1") for each in facts["bytes"]] == list(map(tokenizer.bytes_of, range(tokenizer.size)))
    for name in ("starts", "joins", "opens"):
        assert [digit == "1" for digit in facts[name]] == getattr(pieces, name).tolist()
    assert (facts["width"], facts["most"], facts["small"]) == (8, 32, False)
    (tmp_path / "out" / "pieces.json").write_text("{}")
    with pytest.raises(DamagedRun, match=r"pieces\.json is not the file that was exported"):
        read_manifest(tmp_path / "out")


def test_planted_canaries_go_with_it(run, tmp_path):
    run.registry_file.write_text("{}")
    export_run(run.path, tmp_path / "out")
    assert (tmp_path / "out" / "canaries.json").read_text() == "{}"
    (tmp_path / "out" / "canaries.json").write_text("{ }")
    with pytest.raises(DamagedRun, match=r"canaries\.json is not the file that was exported"):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize("name", ["step.onnx", "vocabulary.txt", "manifest.json"])
def test_a_file_that_was_changed_is_refused(run, tmp_path, name):
    export_run(run.path, tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes().replace(b"e", b"i"))
    with pytest.raises(DamagedRun, match="export it again"):
        read_manifest(tmp_path / "out")


def test_a_link_that_a_release_has_for_an_export_is_not_followed(run, tmp_path):
    release = tmp_path / "release"
    shutil.copytree(run.model, release)
    shutil.copy(run.recipe_file, release / RECIPE)
    shutil.copy(run.statement_file, release / "privacy.json")
    export_run(release, tmp_path / "elsewhere")
    (release / "onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedRun, match="onnx is a link"):
        find_export(release)


def test_an_export_is_made_once_and_anew_when_the_run_was_trained_further(run, tmp_path):
    lines = []
    folder = find_export(run.path, lines.append)
    assert find_export(run.path, lines.append) == folder == find_export(folder)
    assert lines == [f"exporting {run.path}; it can take half a minute"]
    before = read_manifest(folder)["of"]
    save(run, 2)
    assert read_manifest(find_export(run.path, lines.append))["of"] != before
    assert len(lines) == 2


def test_a_taken_folder_and_unknown_weights_are_refused(run, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SottoError, match="exists and is not an empty folder"):
        export_run(run.path, tmp_path / "taken")
    with pytest.raises(SottoError, match="must be float32 or 8bit"):
        export_run(run.path, tmp_path / "out", weights="4bit")


def test_the_cost_of_8_bits_is_unknown_without_the_store(run, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "to_eight_bits", lambda contents: contents[:4])
    monkeypatch.setattr(convert, "open_session", lambda contents: contents)
    monkeypatch.setattr(convert, "largest_difference", lambda model, graph, session, words: 0.25)
    cost = export_run(run.path, tmp_path / "out", weights="8bit")["eight_bits"]
    assert cost == {
        "bytes_float32": {"step": 8, "sequence": 12}, "largest_difference": 0.25,
        "users": 0, "top1": None, "top1_float32": None,
    }  # fmt: skip
    assert (tmp_path / "out" / "step.onnx").read_bytes() == b"the "


def test_accuracy_counts_words_and_not_the_unknown_one(run, tmp_path, monkeypatch):
    """Of four targets one is unknown: a graph that always expects `red` is right in two. A context is no target."""
    from sottovoce.commands import export

    words = WORDS.with_contexts(["de"])

    class Users:
        users, vocabulary = 1, words

        def __getitem__(self, row):
            bos, _, unk, _ = words.specials
            return np.array([bos, red, red, red + 1, unk, words.size - 1])

    shutil.rmtree(run.model)
    save(run, 1, words)
    red = WORDS.size - 2
    assert WORDS.text_of(red) == "red"
    monkeypatch.setattr(export, "held_out_users", lambda recipe, run: Users())
    monkeypatch.setattr(convert, "open_session", lambda contents: contents)
    monkeypatch.setattr(
        convert, "run_session", lambda graph, tokens, state: [np.eye(words.size)[[graph] * len(tokens)]]
    )
    found = export._accuracy(ModelFolder.open(run.path), {"always red": red, "always unknown": WORDS.specials[2]})
    assert (found["always red"], found["always unknown"]) == (0.5, 0.0)


def test_a_release_is_exported_elsewhere(run, tmp_path, monkeypatch):
    """It is signed: an export inside would be an added file. One that was signed with it is used."""
    release = tmp_path / "release"
    shutil.copytree(run.model, release)
    shutil.copy(run.recipe_file, release / RECIPE)
    shutil.copy(run.statement_file, release / "privacy.json")
    before = sorted(path.name for path in release.iterdir())
    found = find_export(release)
    assert read_manifest(found)["name"] == "release"
    assert release not in found.parents
    assert sorted(path.name for path in release.iterdir()) == before
    export_run(release, release / "onnx")
    assert find_export(release) == release / "onnx"
    save(run, 2)
    for path in run.model.iterdir():
        shutil.copy(path, release)
    shutil.copy(run.statement_file, release / "privacy.json")
    with pytest.raises(DamagedRun, match="of other weights than the release"):
        find_export(release)


def test_a_folder_of_hugging_face_is_exported_elsewhere(run, tmp_path):
    tokenizer = Subwords.of_bytes()
    folder = write_folder(tmp_path / "tiny", "llama", rows=tokenizer.size)
    save_tokenizer(tokenizer, folder)
    before = sorted(folder.iterdir())
    manifest = read_manifest(find_export(folder))
    assert (manifest["name"], manifest["model"]["kind"]) == ("tiny", "transformer")
    assert manifest["privacy"]["private"] is False
    assert "trained_on" not in manifest["privacy"], "nobody said that its text is public"
    assert sorted(folder.iterdir()) == before


def test_a_base_is_exported_elsewhere_and_says_that_its_text_is_public(run):
    from sottovoce_evidence import bases

    before = sorted(path.name for path in bases.find("english").iterdir())
    found = find_export("english")
    manifest = read_manifest(found)
    assert (manifest["name"], manifest["model"]["kind"], manifest["vocabulary"]["size"]) == ("english", "lstm", 10_000)
    assert manifest["privacy"]["trained_on"] == "public"
    assert not manifest["privacy"]["private"]
    assert sorted(path.name for path in bases.find("english").iterdir()) == before
