"""Folders in the layout of Hugging Face: logits of every family, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family import read
from sottovoce.build.assembly import load_model
from sottovoce.models import registry
from sottovoce.models.hugging_face import INDEX, fit_rows, load_weights, read_config
from sottovoce_evidence.errors import SottoError
from tiny_hugging_face import FIGURES, figures, tensors_of, write_folder

FAMILIES = sorted(path.stem for path in FIGURES.glob("*.json"))


@cache
def shaped_like(folder: Path):
    """A model of the config's sizes, without numbers."""
    described = read_config(folder)
    settings = {**described.settings, "context": 30}
    return jax.eval_shape(lambda key: registry.build(described.kind, described.rows, settings, key), jax.random.key(0))


def loaded(folder: Path):
    like = shaped_like(folder)
    return load_model(like, load_weights(folder, like))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "llama", "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, family):
    model, found = loaded(write_folder(tmp_path, family)), figures(family)
    outputs, _ = read(model, np.array(found["tokens"]), model.initial_state())
    np.testing.assert_allclose(model.logits(outputs), found["logits"], atol=1e-4)
    assert np.std(found["logits"]) > 0.3  # else the bound would say little


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_short_floats_are_read_as_float32(llama, kind):
    short = {name: array.astype(np.dtype(kind)) for name, array in tensors_of("llama").items()}
    if kind == "bfloat16":
        _save_bfloat16(llama / "model.safetensors", short)
    else:
        save_file(short, llama / "model.safetensors")
    weights = load_weights(llama, shaped_like(llama))
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    right = short["model.embed_tokens.weight"].astype(np.float32)
    np.testing.assert_array_equal(weights["embedding"], right)


def _save_bfloat16(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """numpy has no such type, so safetensors does not write it."""
    header, contents = {}, b""
    for name, array in arrays.items():
        data = array.tobytes()
        offsets = [len(contents), len(contents) + len(data)]
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": offsets}
        contents += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + contents)


def split_in_two(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def test_weights_in_several_files_are_the_same(llama):
    whole = load_weights(llama, shaped_like(llama))
    split_in_two(llama)
    parts = load_weights(llama, shaped_like(llama))
    assert whole.keys() == parts.keys()
    assert all(map(np.array_equal, whole.values(), parts.values()))


def test_buffers_and_names_without_a_prefix_are_known(tmp_path):
    """Files of base models have no prefix; old ones hold masks and angles, and the head of a tied model."""
    for family, buffers in (
        ("gpt2", {"h.0.attn.bias": np.ones((1, 1, 4, 4), bool), "h.1.attn.masked_bias": np.ones((), np.float32)}),
        ("smollm2", {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}),
    ):
        folder = write_folder(tmp_path / family, family)
        whole = load_weights(folder, shaped_like(folder))
        tensors = {name.partition(".")[2]: array for name, array in tensors_of(family).items()}
        head = tensors.get("wte.weight", tensors.get("embed_tokens.weight"))
        save_file({**tensors, **buffers, "lm_head.weight": head.copy()}, folder / "model.safetensors")
        again = load_weights(folder, shaped_like(folder))
        assert all(np.array_equal(again[name], whole[name]) for name in whole)
        save_file({**tensors, "lm_head.weight": head + 1}, folder / "model.safetensors")
        with pytest.raises(SottoError, match=r"has also lm_head\.weight"):
            load_weights(folder, shaped_like(folder))


def test_each_missing_and_each_surplus_tensor_is_named(llama):
    tensors = tensors_of("llama")
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["lm_head.weight"]
    tensors |= {"model.layers.0.self_attn.q_proj.bias": np.zeros(16, np.float32), "extra": np.zeros(1, np.float32)}
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(SottoError) as error:
        load_weights(llama, shaped_like(llama))
    words = "lacks layers.1.mlp.up_proj.weight, lm_head.weight and has also extra, layers.0.self_attn.q_proj.bias: its"
    assert words in str(error.value)


@pytest.mark.parametrize("length", [0, 5, 300, -7])
def test_a_truncated_file_is_refused_in_one_line(llama, length):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(SottoError, match=r"cannot read .*model\.safetensors \(.*\); get it again") as error:
        load_weights(llama, shaped_like(llama))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"model_type": "mamba"}, "model_type 'mamba' is not supported; gpt2, llama, qwen2, qwen3 are"),
        ("llama", {"model_type": None}, "model_type is not set and must be a text"),
        ("llama", {"hidden_size": "12"}, "hidden_size is '12' and must be a whole number above 0"),
        ("llama", {"num_hidden_layers": None}, "num_hidden_layers is not set"),
        ("llama", {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ("llama", {"hidden_act": "relu"}, 'hidden_act = "relu" is not supported; "silu" or "swish" is'),
        ("llama", {"mlp_bias": True}, "mlp_bias = true is not supported; false is"),
        ("llama", {"quantization_config": {"bits": 4}}, r'quantization_config = {"bits": 4} is not supported'),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn' is not supported; default and llama3"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type 'linear'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor of the rotary positions is None"),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, "rope_theta of the rotary positions is -1"),
        ("llama", {"rope_parameters": 3}, "must be an object"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window = true is not supported; false is"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layers of sliding_attention are not"),
        ("gpt2", {"activation_function": "relu"}, 'activation_function = "relu" is not supported; "gelu_new" or'),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true is not"),
        ("gpt2", {"n_embd": 0}, "n_embd is 0"),
    ],
)
def test_a_config_that_is_not_supported_is_refused_by_name(tmp_path, family, changes, words):
    (tmp_path / "config.json").write_text(json.dumps({**figures(family)["config"], **changes}))
    with pytest.raises(SottoError) as error:
        read_config(tmp_path)
    assert words in str(error.value)
    assert str(tmp_path / "config.json") in str(error.value)


class Tokens:
    """A tokenizer with 5 tokens of its file; `bos` and perhaps `eos` come after them."""

    def __init__(self, bos: int, eos: int, size: int):
        self.specials, self.size, self.file_size = type("", (), {"bos": bos, "eos": eos})(), size, 5


def test_rows_beyond_the_tokens_are_left_out_and_specials_that_were_added_have_one():
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_array_equal(fit_rows(table, Tokens(0, 1, 5)), table[:5])
    # GPT-2 has one token for both: a text begins as one begins after the end of another.
    added = fit_rows(table[:5], Tokens(5, 4, 6))
    np.testing.assert_array_equal(added, [*table[:5], table[4]])
    np.testing.assert_array_equal(fit_rows(table, Tokens(5, 4, 6)), added)  # whatever a padded row holds
    both = fit_rows(table, Tokens(5, 6, 7))
    np.testing.assert_array_equal(both[5:], [table[:5].mean(axis=0)] * 2)
