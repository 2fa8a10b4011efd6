"""Tiny models in the layout of Hugging Face: their weights come from their names, their logits from `transformers`.

`tools/hugging_face_figures.py` wrote the figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

FIGURES = Path(__file__).parent / "unit" / "models" / "hugging_face"


def made_tensor(name: str, shape: list[int]) -> np.ndarray:
    """The same numbers everywhere: the streams of RandomState are frozen."""
    drawn = np.random.RandomState(crc32(name.encode())).standard_normal(shape)
    is_norm = name.endswith("weight") and ("norm" in name or "ln_" in name)
    return (1 + 0.2 * drawn if is_norm else 0.2 * drawn).astype(np.float32)


def figures(family: str) -> dict[str, Any]:
    """Config, shapes of tensors, tokens and logits."""
    return json.loads((FIGURES / f"{family}.json").read_text(encoding="utf-8"))


def tensors_of(family: str, rows: int = 32) -> dict[str, np.ndarray]:
    """Tensors by name; those of tokens with this many rows."""
    tables = ("embed_tokens.weight", "lm_head.weight", "wte.weight")
    shapes = {name: [rows, shape[1]] if name.endswith(tables) else shape for name, shape in shapes_of(family).items()}
    return {name: made_tensor(name, shape) for name, shape in shapes.items()}


def shapes_of(family: str) -> dict[str, list[int]]:
    return figures(family)["shapes"]


def write_folder(folder: Path, family: str, rows: int = 32) -> Path:
    """The folder that `save_pretrained` would write, for as many tokens."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**figures(family)["config"], "vocab_size": rows}))
    save_file(tensors_of(family, rows), folder / "model.safetensors")
    return folder
