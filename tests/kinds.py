"""Every kind of model that a recipe can name, tiny; twice where a setting makes another program of it."""

from __future__ import annotations

FAMILY = {
    "lstm": {"embedding": 6, "hidden": 8},
    "gru": {"embedding": 6, "hidden": 8},
    "stacked_lstm": {"embedding": 6, "hidden": 8, "dropout": 0.3},
    "stacked_lstm, variational and tied": {"embedding": 7, "dropout": 0.3, "variational": True, "tied": True},
    "gated_cnn": {"embedding": 6, "hidden": 8, "layers": 2, "kernel": 3, "bottleneck": 4},
    "gated_cnn, tied": {"embedding": 7, "layers": 2, "kernel": 3, "bottleneck": 4, "tied": True},
    "transformer": {"embedding": 8, "hidden": 12, "layers": 2, "heads": 2, "kv_heads": 1, "context": 5},
    "transformer, as Qwen3": {
        "embedding": 6,
        "hidden": 9,
        "layers": 2,
        "heads": 3,
        "kv_heads": 3,
        "head_size": 4,
        "context": 20,
        "biases": "attention",
        "qk_norm": True,
        "tied": False,
    },
    "gpt2, in pieces": {"embedding": 8, "layers": 2, "heads": 2, "context": 4, "positions": 7},
}
