"""Which files a release may have, and how much work its charges may be."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from safetensors.numpy import save

from sottovoce.commands import verify_files
from sottovoce.data.tokenizer_files import FILES
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.exported import BATCH, CANARIES, GRAPHS, MANIFEST, PIECES
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.release import check_work, too_large, unknown

EVENT = {"kind": "sampled-examples", "noise_multiplier": 1.0, "example_rate": 0.01, "examples_per_user": 6000}


def test_every_file_that_is_written_is_known_and_no_other():
    exported = [f"onnx/{name}" for name in (*FILES, MANIFEST, CANARIES, PIECES)]
    exported += [f"onnx/{graph}.onnx" for graph in (*GRAPHS, BATCH)]
    top = ["weights.safetensors", *FILES, "card.json", "privacy.json", "ledger.jsonl", "training.toml", "README.md"]
    top += [
        "report.html",
        "record.jsonl",
        "baselines.json",
        "canaries.json",
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "signer.pub",
    ]
    assert unknown(dict.fromkeys([*top, *exported], 1)) == []
    for name in ("ledger.head", "onnx/users.csv", "secrets/noise.key", "onnx/onnx/step.onnx", "step.onnx", "\x1b[31m"):
        (fault,) = unknown({name: 1})
        assert fault.isprintable()
        assert "is no file of a release" in fault


def test_weights_are_hashed_and_looked_at_some_at_a_time(tmp_path, monkeypatch):
    arrays = {
        "a": np.arange(35, dtype=np.float32).reshape(7, 5), "b": np.ones((2, 3, 4), np.float16), "c": np.float64(3),
        "none": np.zeros((0, 3), np.float32),
    }  # fmt: skip
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    (tmp_path / "weights").write_bytes(save(arrays))
    for most in (1, 11, 10**6):
        monkeypatch.setattr(verify_files, "_AT_ONCE", most)
        assert verify_files._read_weights(tmp_path / "weights") == (60, digest(arrays), [])
    arrays["a"][6, 4] = np.inf
    (tmp_path / "weights").write_bytes(save(arrays, metadata={"about": "my own words"}))
    _, _, odd = verify_files._read_weights(tmp_path / "weights")
    assert odd == ["it has text beside its numbers", "a has numbers that are not finite"]


def test_words_in_the_header_of_weights_are_found(tmp_path):
    file, array = tmp_path / "weights", '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]'
    for header, odd in (
        (f"{{{array}}}}}", []),
        (f'{{{array},"by":"me"}}}}', ["it has text beside its numbers"]),
        (f'{{{array},"by":"me"}},{array}}}}}', None),
    ):
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
        with nullcontext() if odd is not None else pytest.raises(ValueError, match="twice"):
            assert verify_files._read_weights(file)[2] == odd


def test_whole_numbers_and_bfloat16_are_looked_at(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    file, arrays = tmp_path / "weights", {"counts": np.arange(3), "flags": np.ones(2, bool)}
    file.write_bytes(save(arrays))
    odd = ["counts has numbers that no model has (I64)", "flags has numbers that no model has (BOOL)"]
    assert verify_files._read_weights(file) == (5, digest(arrays), odd)
    assert verify_files._read_weights(file, own=True) == (5, digest(arrays), [])  # frozen
    halves = {"a": np.arange(3, dtype=ml_dtypes.bfloat16)}
    file.write_bytes(save(halves))
    assert verify_files._read_weights(file) == (3, digest(halves), [])
    halves["a"][1] = np.nan
    file.write_bytes(save(halves))
    assert verify_files._read_weights(file)[2] == ["a has numbers that are not finite"]
    file.write_bytes(save({"a": np.ones(3, ml_dtypes.float8_e4m3fn)}))
    assert verify_files._read_weights(file, own=True) == (3, None, ["a has numbers that no model has (F8_E4M3)"])


def test_a_file_that_is_read_whole_has_a_largest_size():
    assert too_large({"privacy.json": 10**7, "weights.safetensors": 10**11}) == []
    assert too_large({"privacy.json": 10**7 + 1}) == ["privacy.json has more than 10,000,000 bytes"]
    assert too_large({"weights.safetensors": 10**11 + 1, "report.html": 10**8 + 1}) == [
        "weights.safetensors has more than 100,000,000,000 bytes",
        "report.html has more than 100,000,000 bytes",
    ]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"kind": "covered"}] * 41, "kinds of rounds"),
        ([EVENT, EVENT], "12,000 examples of a user"),
        ([{**EVENT, "noise_multiplier": 0.4}], "nothing is protected"),
        ([{**EVENT, "examples_per_user": "many"}], "must be a whole number"),
        ([{"kind": "correlated-gaussian", "rounds": 10**8}], "must be a whole number"),
        ([{"kind": "correlated-gaussian", "coefficients": [1.0] * 10_001}], "numbers of one charge"),
        (["an event"], "is no object"),
        ([{"kind": "best-of-runs", "run": [{"event": {"kind": "covered"}, "count": 1}] * 41}], "kinds of rounds"),
    ],
)
def test_charges_that_take_too_long_are_refused(events, words):
    check_work([EVENT])
    with pytest.raises(SottoError, match=words):
        check_work(events)
