"""The model as ONNX is the model: compared with JAX, kind by kind, and refused where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from typing_world import make_run

from family import FAMILY, of_family
from sottovoce.cli.main import main
from sottovoce.commands import convert
from sottovoce.commands.export import find_export
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.exported import BATCH, GRAPHS, read_manifest
from sottovoce_evidence.errors import SottoError

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", FAMILY)
def test_all_graphs_of_every_kind_are_the_model(name):
    model, sessions = of_family(name), {}
    for graph in (*GRAPHS, BATCH):
        contents = convert.convert(model, graph)
        assert convert.check_parity(model, graph, contents, 60) < 1e-5
        sessions[graph] = convert.open_session(contents)
    # Whatever the length, reading at once is reading one by one.
    start = [np.asarray(leaf) for leaf in convert.program_of(model)[1]]
    for length in (1, 2, 31):
        tokens, state, scores = np.arange(length), start, []
        for token in tokens:
            found, *state = convert.run_session(sessions["step"], token[None], state)
            scores += list(found)
        whole = convert.run_session(sessions["sequence"], tokens, start)
        for one, two in zip(whole, [np.stack(scores), *state], strict=True):
            np.testing.assert_allclose(one, two, atol=1e-5)
    # So is reading it among other texts, however many they are.
    for others in (0, 6):
        state, scores = [np.stack([leaf] * (1 + others)) for leaf in start], []
        for token in np.arange(5):
            found, *state = convert.run_session(sessions["batch"], token + 3 * np.arange(1 + others), state)
            scores.append(found[0])
        np.testing.assert_allclose(np.stack(scores), whole[0][:5], atol=1e-5)


def test_a_graph_of_another_model_is_refused():
    model = of_family("gru")
    slightly = jax.tree.map(lambda leaf: leaf * 1.001, model)
    with pytest.raises(SottoError, match=r"the step in ONNX differs from JAX by .*, more than 0.0001"):
        convert.check_parity(model, "step", convert.convert(slightly, "step"), 60)
    broken = jax.tree.map(lambda leaf: leaf * np.nan, model)
    with pytest.raises(SottoError, match="differs from JAX by inf"):
        convert.check_parity(broken, "step", convert.convert(broken, "step"), 60)


def test_an_export_says_what_it_is(runs, exports):
    manifest = read_manifest(exports[0])
    assert manifest["model"] == {
        "kind": "lstm",
        "parameters": 400 * 6 + 4 * 8 * (6 + 8 + 1) + 6 * (8 + 1),
        "weights": "float32",
    }
    told = {"private": True, "epsilon": 3.21, "delta": 1e-5, "unit": "user"}
    assert told.items() <= manifest["privacy"].items()
    assert [part["shape"] for part in manifest["state"]] == [[8], [8]]
    assert manifest["special_tokens"] == {"<bos>": 0, "<eos>": 1, "<unk>": 2}
    assert Vocabulary.load(exports[0] / "vocabulary.txt").fingerprint == manifest["vocabulary"]["fingerprint"]
    assert (exports[0] / "canaries.json").is_file()
    assert not (exports[1] / "canaries.json").exists()
    assert find_export(runs[0]) == find_export(exports[0]) == exports[0]


def test_eight_bits_are_smaller_and_say_what_they_cost(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"user": f"u{n}", "text": "the time of day " * 4}) + "\n" for n in range(20)))
    vocabulary = Vocabulary.public(400)
    prepare([corpus], tmp_path / "store", vocabulary, Grouping(tokens_per_user=20, test_users=0.3))
    run = make_run(tmp_path / "run", store=str(tmp_path / "store"))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--out", str(tmp_path / "small"), "--weights", "8bit", "--json"])
    assert ended.value.code == 0
    manifest = json.loads(capsys.readouterr().out)
    cost = manifest["eight_bits"]
    for graph in GRAPHS:
        assert manifest["graphs"][graph]["bytes"] < cost["bytes_float32"][graph] - 2 * 400 * 6
    assert 1e-4 < cost["largest_difference"] < 1.0
    assert cost["users"] > 0
    # What JAX says of the same people, to the digits that are told of them.
    from sottovoce.commands.model_folder import ModelFolder
    from sottovoce.data.store import Store
    from sottovoce.evaluation.prediction import evaluate

    exact = evaluate(ModelFolder.open(run).model, Store.open(tmp_path / "store", "test"))
    assert cost["top1_float32"] == pytest.approx(exact.top1, abs=1e-4)
    assert "targets" not in cost
    assert cost["top1"] is not None


def test_an_export_leaves_no_trace_for_the_makers_of_onnxruntime(runs, tmp_path):
    """In a process with few variables: their library is quiet by itself where some say that it runs in a CI."""
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "sottovoce", "export", str(runs[0]), "--out", str(tmp_path / "out")]
    subprocess.run(command, env={"PATH": os.environ["PATH"], "HOME": str(home)}, check=True)
    assert (tmp_path / "out").exists()
    assert not list(home.rglob("*onnxruntime*")), "an id and events wait there to be sent"
