"""Logits of tiny models of every family, computed by `transformers`: the figures of tests/unit/models/hugging_face.

They are made once, in an environment of their own; neither torch nor transformers is needed by the project:

    python -m venv ../hf && ../hf/bin/pip install numpy torch transformers
    ../hf/bin/python tools/hugging_face_figures.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tiny_hugging_face import FIGURES, made_tensor

TOKENS = [3, 17, 0, 8, 8, 25, 30, 1, 12, 5, 9, 22, 14, 2, 7, 7, 19, 28, 6, 11, 31, 4, 16, 10]
LLAMA = {
    "vocab_size": 32, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def main() -> None:
    import torch
    import transformers as hf

    models = {
        "gpt2": hf.GPT2Config(vocab_size=32, n_embd=12, n_layer=2, n_head=3, n_positions=64),
        "llama": hf.LlamaConfig(**LLAMA, head_dim=4, rms_norm_eps=1e-5),
        "llama3": hf.LlamaConfig(**LLAMA, head_dim=8, attention_bias=True, rope_parameters=SCALED),
        "smollm2": hf.LlamaConfig(**LLAMA, head_dim=6, tie_word_embeddings=True, rope_theta=100_000.0),
        "qwen2": hf.Qwen2Config(**LLAMA, tie_word_embeddings=True, rope_theta=1_000_000.0, head_dim=4),
        "qwen3": hf.Qwen3Config(**LLAMA, head_dim=8, tie_word_embeddings=False),
    }
    FIGURES.mkdir(exist_ok=True)
    for family, config in models.items():
        model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(torch.from_numpy(made_tensor(name, list(value.shape))))
            logits = model(torch.tensor([TOKENS])).logits[0].numpy().astype(np.float64)
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            saved = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        found = {
            "made_with": f"transformers {hf.__version__}, torch {torch.__version__}",
            "config": saved,
            "shapes": {name: list(value.shape) for name, value in model.named_parameters()},
            "tokens": TOKENS,
            "logits": np.round(logits, 6).tolist(),
        }
        (FIGURES / f"{family}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(family, found["made_with"], np.abs(logits).max())


if __name__ == "__main__":
    main()
