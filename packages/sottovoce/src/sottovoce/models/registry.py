"""The models a recipe can name. The settings of a kind, and their defaults, are the arguments of its constructor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import PRNGKeyArray

from sottovoce.models.contract import LanguageModel
from sottovoce.models.gated_cnn import GatedCNN
from sottovoce.models.gru import GRU
from sottovoce.models.lstm import LSTM
from sottovoce.models.stacked_lstm import StackedLSTM
from sottovoce.models.transformer import Transformer, gpt2
from sottovoce_evidence.errors import SottoError

KINDS: dict[str, Callable[..., LanguageModel]] = {
    "lstm": LSTM,
    "gru": GRU,
    "stacked_lstm": StackedLSTM,
    "gated_cnn": GatedCNN,
    "transformer": Transformer,
    "gpt2": gpt2,
}


def defaults(kind: str) -> dict[str, Any]:
    """The settings of a kind, with their defaults."""
    given = inspect.signature(KINDS[kind]).parameters
    return {name: part.default for name, part in given.items() if name not in ("vocabulary", "key")}


def check_settings(kind: str, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the kind does not have."""
    known = defaults(kind)
    for name, value in settings.items():
        if name not in known:
            others = [other for other in KINDS if name in defaults(other)]
            raise SottoError(
                f"model.{name}={value!r} has no meaning for model.kind={kind!r}, which has {', '.join(known)}; "
                f"remove it, or choose {' or '.join(others)}"
            )


def build(kind: str, vocabulary: int, settings: Mapping[str, Any], key: PRNGKeyArray) -> LanguageModel:
    """A model with fresh weights."""
    check_settings(kind, settings)
    return KINDS[kind](vocabulary, **settings, key=key)
