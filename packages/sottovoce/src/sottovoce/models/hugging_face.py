"""Weights in the layout of Hugging Face: a folder with `config.json` and `*.safetensors`. Nothing is downloaded.

Families: GPT-2, Llama, SmolLM2 (of Llama's layout), Qwen2 and Qwen3: all are our `Transformer`. What a config asks for
and it does not have is refused by name, and so is each tensor that is missing or surplus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from sottovoce.data.tokenizer import Tokenizer
from sottovoce.models.contract import LanguageModel, layer_names
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import check_plain, parse_json, read_plain, unreadable

CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_LARGEST_JSON = 2**26  # bytes
Setting = int | float | str | bool | tuple[float, ...] | None


@dataclass(frozen=True)
class Described:
    """What `config.json` says of a model: a kind of ours and its settings, all but `context`."""

    family: str
    kind: str
    settings: dict[str, Setting]
    rows: int  # of the embedding: the tokens of its tokenizer, and often some more
    longest: int  # tokens of the longest text that it can tell the places of


# Our names of weights; theirs in Llama and in GPT-2. {} is the number of a block. A prefix `model.` or `transformer.`
# of their names is left out. A bias lies beside its weight.
_NAMES = (
    ("embedding", "embed_tokens.weight", "wte.weight"),
    ("positions", None, "wpe.weight"),
    ("blocks[{}].attention_norm.weight", "layers.{}.input_layernorm.weight", "h.{}.ln_1.weight"),
    ("blocks[{}].attention.query", "layers.{}.self_attn.q_proj.weight", "h.{}.attn.c_attn.weight"),
    ("blocks[{}].attention.key", "layers.{}.self_attn.k_proj.weight", "h.{}.attn.c_attn.weight"),
    ("blocks[{}].attention.value", "layers.{}.self_attn.v_proj.weight", "h.{}.attn.c_attn.weight"),
    ("blocks[{}].attention.output", "layers.{}.self_attn.o_proj.weight", "h.{}.attn.c_proj.weight"),
    ("blocks[{}].attention.query_norm.weight", "layers.{}.self_attn.q_norm.weight", None),
    ("blocks[{}].attention.key_norm.weight", "layers.{}.self_attn.k_norm.weight", None),
    ("blocks[{}].feed_forward_norm.weight", "layers.{}.post_attention_layernorm.weight", "h.{}.ln_2.weight"),
    ("blocks[{}].feed_forward.gate", "layers.{}.mlp.gate_proj.weight", None),
    ("blocks[{}].feed_forward.up", "layers.{}.mlp.up_proj.weight", "h.{}.mlp.c_fc.weight"),
    ("blocks[{}].feed_forward.down", "layers.{}.mlp.down_proj.weight", "h.{}.mlp.c_proj.weight"),
    ("norm.weight", "norm.weight", "ln_f.weight"),
    ("output", "lm_head.weight", None),
)
_FAMILIES = ("gpt2", "llama", "qwen2", "qwen3")
TABLES_OF_TOKENS = ("embedding", "output")  # weights with a row for each token
_HEAD = "lm_head.weight"  # also in files of tied models, as a copy of the embedding
# Masks and angles, which are not trained.
_BUFFERS = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.\w+|h\.\d+\.attn\.(bias|masked_bias)")
# Keys that would change what is computed, and the values that our models have. Not set is one of them.
_SUPPORTED: dict[str, dict[str, tuple[object, ...]]] = {
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "quantization_config": (),
    },
    "llama": {
        "hidden_act": ("silu", "swish"),
        "mlp_bias": (False,),
        "use_sliding_window": (False,),
        "rope_interleaved": (False,),
        "partial_rotary_factor": (1.0,),
        "pretraining_tp": (1,),
        "quantization_config": (),
    },
}


class Config:
    """The values of a `config.json`, by name and type."""

    def __init__(self, folder: Path):
        self.path = folder / CONFIG
        self.values = _read_json(self.path)

    def refuse(self, text: str) -> SottoError:
        return SottoError(f"{self.path}: {text}")

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A value of this type; the default where it is not set. Without one it must be set."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (kind is not bool and kind is not str and not 0 < value < 2**31):
            wanted = {int: "a whole number above 0", float: "a number above 0", bool: "true or false", str: "a text"}
            found = "is not set" if value is None else f"is {value!r}"
            raise self.refuse(f"{name} {found} and must be {wanted[kind]}")
        return value

    def check(self, supported: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse each value that our models do not have."""
        for name, allowed in supported.items():
            value = self.values.get(name)
            if value is not None and value not in allowed:
                usual = f"; {' or '.join(map(json.dumps, allowed))} is" if allowed else ""
                raise self.refuse(f"{name} = {json.dumps(value)} is not supported{usual}")


def read_config(folder: Path) -> Described:
    """The model that `config.json` describes; refused where our models cannot compute it."""
    config = Config(folder)
    family = config.get("model_type", str)
    if family not in _FAMILIES:
        raise config.refuse(f"model_type {family!r} is not supported; {', '.join(_FAMILIES)} are (SmolLM2 is a llama)")
    return _describe_gpt2(config) if family == "gpt2" else _describe_llama(config, family)


def _describe_gpt2(config: Config) -> Described:
    config.check(_SUPPORTED["gpt2"])
    embedding, positions = config.get("n_embd", int), config.get("n_positions", int)
    settings: dict[str, Setting] = {
        "embedding": embedding,
        "hidden": config.get("n_inner", int, 4 * embedding),
        "layers": config.get("n_layer", int),
        "heads": config.get("n_head", int),
        "positions": positions,
        "norm_eps": config.get("layer_norm_epsilon", float, 1e-5),
    }
    return Described("gpt2", "gpt2", settings, config.get("vocab_size", int), positions)


def _describe_llama(config: Config, family: str) -> Described:
    config.check(_SUPPORTED["llama"])
    layers = config.values.get("layer_types") or []
    if others := sorted({str(each) for each in layers} - {"full_attention"}):
        raise config.refuse(f"layers of {', '.join(others)} are not supported; full_attention is")
    embedding, heads = config.get("hidden_size", int), config.get("num_attention_heads", int)
    biases = "attention" if config.get("attention_bias", bool, False) else "none"
    settings: dict[str, Setting] = {
        "embedding": embedding,
        "hidden": config.get("intermediate_size", int),
        "layers": config.get("num_hidden_layers", int),
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", int, heads),
        "head_size": config.get("head_dim", int, 128 if family == "qwen3" else embedding // heads),
        "tied": config.get("tie_word_embeddings", bool, False),
        "biases": "qkv" if family == "qwen2" else biases,
        "qk_norm": family == "qwen3",
        "norm_eps": config.get("rms_norm_eps", float, 1e-6),
        **_read_rope(config),
    }
    rows, longest = config.get("vocab_size", int), config.get("max_position_embeddings", int, 2**20)
    return Described(family, "transformer", settings, rows, longest)


def _read_rope(config: Config) -> dict[str, Setting]:
    """The rotary positions. Newer files have all of them under `rope_parameters`."""
    rope = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise config.refuse(f"rope_scaling {rope!r} must be an object")
    base = rope.get("rope_theta") or config.get("rope_theta", float, 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "llama3"):
        raise config.refuse(f"rope_type {kind!r} is not supported; default and llama3 are")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    numbers: dict[str, Any] = {"rope_theta": base, **{key: rope.get(key) for key in keys if kind == "llama3"}}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53:
            raise config.refuse(f"{name} of the rotary positions is {value!r} and must be a number above 0")
    scaling = tuple(float(numbers[key]) for key in keys) if kind == "llama3" else None
    return {"rope_base": float(base), "rope_scaling": scaling}


def load_weights(folder: Path, like: LanguageModel) -> dict[str, np.ndarray]:
    """The weights of a model of the sizes that `config.json` gives, by our names, in float32.

    The tables of tokens have as many rows as the file has, whatever `like` has. A tensor that is missing or surplus, or
    of another shape, is refused by its name.
    """
    described = read_config(folder)
    places = {name: _name_of(name, described.family) for name in layer_names(like)}
    wanted = set(places.values())
    given = dict(_read_tensors(folder))
    surplus = sorted(name for name in given.keys() - wanted if not _BUFFERS.fullmatch(name))
    if surplus == [_HEAD] and np.array_equal(given[_HEAD], given.get(places["embedding"], ())):
        surplus = []
    missing = sorted(wanted - given.keys())
    if missing or surplus:
        parts = [f"{word} {', '.join(names)}" for word, names in (("lacks", missing), ("has also", surplus)) if names]
        raise SottoError(f"{folder} {' and '.join(parts)}: its tensors are not those of its {CONFIG}; get it again")
    shapes = dict(zip(places, (leaf.shape for leaf in jax.tree.leaves(like)), strict=True))
    weights = {}
    for name, place in places.items():
        found = _part(given[place], name, place)
        right = (described.rows, *shapes[name][1:]) if name in TABLES_OF_TOKENS else shapes[name]
        if found.shape != right:
            raise SottoError(
                f"{place} of {folder} has the shape {list(given[place].shape)}, which does not fit its "
                f"{CONFIG}; get it again"
            )
        weights[name] = np.ascontiguousarray(found)
    return weights


def load_rows(folder: Path, like: LanguageModel, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The weights of a folder, with a row for each token of this tokenizer."""
    rows, wanted = read_config(folder).rows, tokens_of_file(tokenizer)
    if rows < wanted:
        raise SottoError(
            f"the embedding of {folder} has {rows:,} rows, and the tokenizer has {wanted:,} tokens: each needs a row; "
            f"take the tokenizer of that model"
        )
    weights = load_weights(folder, like)
    return weights | {name: fit_rows(weights[name], tokenizer) for name in TABLES_OF_TOKENS if name in weights}


def fit_rows(table: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The rows of the tokens of a tokenizer: surplus rows are left out, and can be neither read nor predicted.

    A `bos` or `eos` that the tokenizer has added after the ids of its file has no row that was trained. `bos` gets the
    row of `eos`: a text begins where another has ended, as models without a `bos` were trained. Without that either,
    both get the mean row.
    """
    of_file, (bos, eos) = tokens_of_file(tokenizer), (tokenizer.specials.bos, tokenizer.specials.eos)
    rows = np.zeros((tokenizer.size, table.shape[1]), table.dtype)
    rows[:of_file] = table[:of_file]
    mean = table[:of_file].mean(axis=0)
    if eos >= of_file:
        rows[eos] = mean
    if bos >= of_file:
        rows[bos] = rows[eos]
    return rows


def tokens_of_file(tokenizer: Tokenizer) -> int:
    """The tokens for which a model must have rows: all but those that were added after the ids of a file."""
    return getattr(tokenizer, "file_size", tokenizer.size)


def _name_of(name: str, family: str) -> str:
    """The name of the tensor with a weight of ours."""
    matrix = re.sub(r"(\.|_)bias$", lambda found: ".weight" if found[1] == "." else "", name)
    column = 2 if family == "gpt2" else 1
    theirs = next(row[column] for row in _NAMES if row[0] == re.sub(r"\[\d+\]", "[{}]", matrix)) or ""
    theirs = theirs.format(*re.findall(r"\[(\d+)\]", name))
    return theirs if name == matrix else theirs.removesuffix("weight") + "bias"


def _part(tensor: np.ndarray, name: str, theirs: str) -> np.ndarray:
    """A weight of ours. GPT-2 keeps matrices as [in, out], and those of query, key and value side by side."""
    rows = tensor.T if ".c_" in theirs else tensor
    third = next((place for place, each in enumerate(("query", "key", "value")) if f"attention.{each}" in name), 0)
    return np.split(rows, 3)[third] if ".c_attn." in theirs and len(rows) % 3 == 0 else rows


def _read_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor of the folder, by its name without a prefix."""
    for file in _files(folder):
        try:
            with safe_open(check_plain(file), framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    kind = tensors.get_slice(name).get_dtype()
                    if kind not in ("F32", "F16", "BF16", "F64"):
                        if _BUFFERS.fullmatch(_plain_name(name)):
                            continue
                        raise SottoError(f"{name} of {file} is of {kind}; float32, float16 and bfloat16 are supported")
                    yield _plain_name(name), tensors.get_tensor(name).astype(np.float32)
        except (SafetensorError, OSError) as error:
            raise SottoError(f"cannot read {file} ({error}); get it again") from None


def _plain_name(name: str) -> str:
    return re.sub(r"^(model|transformer)\.", "", name)


def _files(folder: Path) -> list[Path]:
    """The files with the tensors: one, or those that the index names."""
    if (folder / INDEX).is_file():
        named = _read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise SottoError(f"{folder / INDEX} does not say which file holds which tensor; get it again")
        if gone := [name for name in names if not (folder / name).is_file()]:
            raise SottoError(f"{folder} has no {', '.join(gone)}, which its {INDEX} names; get it again")
        return [folder / name for name in names]
    if (folder / TENSORS).is_file():
        return [folder / TENSORS]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise SottoError(f"{folder} has {len(found)} files *.safetensors and no {INDEX}; get it too")
    raise SottoError(f"{folder} has no *.safetensors, and pickles (*.bin, *.pt) are never read; get the safetensors")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_plain(path, _LARGEST_JSON))
    except (OSError, ValueError) as error:
        raise SottoError(f"{unreadable(path, error)}; get it again") from None
    if not isinstance(found, dict):
        raise SottoError(f"{path} is not a JSON object; get it again")
    return found
