"""Language models trained on people's text with user-level differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.data.grouping import Grouping
    from sottovoce.data.prepare import prepare
    from sottovoce.data.store import Store
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.errors import SottoError
    from sottovoce.evaluation.prediction import Evaluation, evaluate
    from sottovoce.evaluation.suggestions import suggest
    from sottovoce.jobs import evaluate_run, load_run, report_run, resume, train
    from sottovoce.jobs.attacking import audit_membership
    from sottovoce.jobs.auditing import audit_rounds, audit_tails
    from sottovoce.jobs.canaries import audit_canaries
    from sottovoce.jobs.preparing import PrivateVocabulary, prepare_privately
    from sottovoce.jobs.releasing import release_run
    from sottovoce.local.objective import Batch, plain
    from sottovoce.models.gated_cnn import GatedCNN
    from sottovoce.models.gru import GRU
    from sottovoce.models.language_model import LanguageModel
    from sottovoce.models.lstm import LSTM
    from sottovoce.models.stacked_lstm import StackedLSTM
    from sottovoce.planning.plan import make_plan
    from sottovoce.recipe import Recipe

# Imported on first use: `sotto plan` must not wait for jax.
_HOMES = {
    "Grouping": "data.grouping", "PrivateVocabulary": "jobs.preparing", "prepare_privately": "jobs.preparing",
    "prepare": "data.prepare", "Store": "data.store", "Vocabulary": "data.vocabulary", "SottoError": "errors",
    "Evaluation": "evaluation.prediction", "evaluate": "evaluation.prediction", "suggest": "evaluation.suggestions",
    "audit_canaries": "jobs.canaries", "audit_membership": "jobs.attacking", "audit_rounds": "jobs.auditing",
    "audit_tails": "jobs.auditing", "release_run": "jobs.releasing", "evaluate_run": "jobs", "load_run": "jobs",
    "report_run": "jobs", "resume": "jobs", "train": "jobs",
    "Batch": "local.objective", "plain": "local.objective", "LanguageModel": "models.language_model",
    "GatedCNN": "models.gated_cnn", "GRU": "models.gru", "LSTM": "models.lstm", "StackedLSTM": "models.stacked_lstm",
    "make_plan": "planning.plan", "Recipe": "recipe",
}  # fmt: skip

__all__ = [
    "GRU", "LSTM", "Batch", "Evaluation", "GatedCNN", "Grouping", "LanguageModel", "PrivateVocabulary", "Recipe",
    "SottoError", "StackedLSTM", "Store", "Vocabulary", "audit_canaries", "audit_membership", "audit_rounds",
    "audit_tails", "evaluate", "evaluate_run", "load_run", "make_plan", "plain", "prepare", "prepare_privately",
    "release_run", "report_run",
    "resume", "suggest", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    return getattr(import_module(f"sottovoce.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
