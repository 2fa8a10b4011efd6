"""Language models trained on people's text with user-level differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.commands.audit_canaries import audit_canaries
    from sottovoce.commands.audit_membership import audit_membership
    from sottovoce.commands.audit_rounds import audit_rounds
    from sottovoce.commands.audit_tails import audit_tails
    from sottovoce.commands.evaluate import Personalise, evaluate_run, load_run
    from sottovoce.commands.load_model import load_model
    from sottovoce.commands.new_run import forecast
    from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately
    from sottovoce.commands.release import release_run
    from sottovoce.commands.report import report_run
    from sottovoce.commands.train import resume, train
    from sottovoce.commands.verify import verify_release
    from sottovoce.data.grouping import Grouping
    from sottovoce.data.prepare import prepare
    from sottovoce.data.store import Store
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.errors import SottoError
    from sottovoce.evaluation.prediction import Evaluation, evaluate
    from sottovoce.evaluation.suggestions import suggest
    from sottovoce.local.objective import Batch, plain
    from sottovoce.models.contract import LanguageModel
    from sottovoce.models.gated_cnn import GatedCNN
    from sottovoce.models.gru import GRU
    from sottovoce.models.lstm import LSTM
    from sottovoce.models.stacked_lstm import StackedLSTM
    from sottovoce.planning.plan import make_plan
    from sottovoce.recipe import Recipe

# Imported on first use: `sotto plan` must not wait for jax.
_HOMES = {
    "Batch": "local.objective",
    "Evaluation": "evaluation.prediction",
    "GRU": "models.gru",
    "GatedCNN": "models.gated_cnn",
    "Grouping": "data.grouping",
    "LSTM": "models.lstm",
    "LanguageModel": "models.contract",
    "Personalise": "commands.evaluate",
    "PrivateVocabulary": "commands.prepare",
    "Recipe": "recipe",
    "SottoError": "errors",
    "StackedLSTM": "models.stacked_lstm",
    "Store": "data.store",
    "Vocabulary": "data.vocabulary",
    "audit_canaries": "commands.audit_canaries",
    "audit_membership": "commands.audit_membership",
    "audit_rounds": "commands.audit_rounds",
    "audit_tails": "commands.audit_tails",
    "evaluate": "evaluation.prediction",
    "evaluate_run": "commands.evaluate",
    "load_model": "commands.load_model",
    "forecast": "commands.new_run",
    "load_run": "commands.evaluate",
    "make_plan": "planning.plan",
    "plain": "local.objective",
    "prepare": "data.prepare",
    "prepare_privately": "commands.prepare",
    "release_run": "commands.release",
    "report_run": "commands.report",
    "resume": "commands.train",
    "suggest": "evaluation.suggestions",
    "train": "commands.train",
    "verify_release": "commands.verify",
}

__all__ = [
    "GRU",
    "LSTM",
    "Batch",
    "Evaluation",
    "GatedCNN",
    "Grouping",
    "LanguageModel",
    "Personalise",
    "PrivateVocabulary",
    "Recipe",
    "SottoError",
    "StackedLSTM",
    "Store",
    "Vocabulary",
    "audit_canaries",
    "audit_membership",
    "audit_rounds",
    "audit_tails",
    "evaluate",
    "evaluate_run",
    "forecast",
    "load_model",
    "load_run",
    "make_plan",
    "plain",
    "prepare",
    "prepare_privately",
    "release_run",
    "report_run",
    "resume",
    "suggest",
    "train",
    "verify_release",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    return getattr(import_module(f"sottovoce.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
