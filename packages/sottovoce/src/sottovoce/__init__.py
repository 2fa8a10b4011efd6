"""Language models trained on people's text with user-level differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.commands.audit_canaries import audit_canaries
    from sottovoce.commands.audit_membership import audit_membership
    from sottovoce.commands.audit_rounds import audit_rounds
    from sottovoce.commands.audit_tails import audit_tails
    from sottovoce.commands.base import Text, train_base
    from sottovoce.commands.bench import measure
    from sottovoce.commands.compare import compare_runs, write_comparison
    from sottovoce.commands.demo import run_demo
    from sottovoce.commands.doctor import examine
    from sottovoce.commands.evaluate import Extra, Personalise, evaluate_run
    from sottovoce.commands.export import export_run
    from sottovoce.commands.federate import (
        create_federation,
        enrol,
        federation_members,
        make_device_key,
        rekey,
        renew,
        resume_federation,
        run_device,
        serve_federation,
    )
    from sottovoce.commands.federate_demo import run_federation_demo
    from sottovoce.commands.init import write_recipe
    from sottovoce.commands.live_line import Progress
    from sottovoce.commands.model_folder import ModelFolder
    from sottovoce.commands.new_run import forecast
    from sottovoce.commands.prepare import PrivateVocabulary, prepare, prepare_privately
    from sottovoce.commands.private_evaluation import evaluate_privately
    from sottovoce.commands.release import release_run
    from sottovoce.commands.release_folder import Publication
    from sottovoce.commands.report import report_run
    from sottovoce.commands.select import Choice, select_best
    from sottovoce.commands.tokenizer import train_tokenizer
    from sottovoce.commands.train import RunResult, resume, train
    from sottovoce.commands.watch import watch_app
    from sottovoce.data.grouping import Grouping
    from sottovoce.data.reddit import Reddit
    from sottovoce.data.stackoverflow import StackOverflow
    from sottovoce.data.store import Store
    from sottovoce.data.subwords import Subwords
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.evaluation.figures import Evaluation
    from sottovoce.evaluation.prediction import evaluate
    from sottovoce.evaluation.suggestions import suggest
    from sottovoce.federation.roster import FederationSettings
    from sottovoce.federation.transport import Serving
    from sottovoce.local.objective import Batch, plain
    from sottovoce.models.contract import LanguageModel
    from sottovoce.models.gated_cnn import GatedCNN
    from sottovoce.models.gru import GRU
    from sottovoce.models.lstm import LSTM
    from sottovoce.models.stacked_lstm import StackedLSTM
    from sottovoce.models.transformer import Transformer
    from sottovoce.papers.reproduce import Request, reproduce
    from sottovoce.planning.compare_noise import compare_noise
    from sottovoce.planning.grid import plan_recipe
    from sottovoce.planning.ledger_totals import judge_ledgers
    from sottovoce.planning.levels import compare_levels
    from sottovoce.planning.plan import make_plan
    from sottovoce.planning.selection import plan_selection
    from sottovoce.web.keyboard.app import keyboard_app
    from sottovoce.web.server import serve
    from sottovoce_evidence.errors import SottoError
    from sottovoce_evidence.recipe import Recipe
    from sottovoce_evidence.verify import verify_release

    __version__: str

# Imported on first use: `sotto plan` must not wait for jax.
_HOMES = {
    "Batch": "local.objective",
    "Choice": "commands.select",
    "Evaluation": "evaluation.prediction",
    "Extra": "commands.evaluate",
    "FederationSettings": "federation.roster",
    "GRU": "models.gru",
    "GatedCNN": "models.gated_cnn",
    "Grouping": "data.grouping",
    "LSTM": "models.lstm",
    "LanguageModel": "models.contract",
    "ModelFolder": "commands.model_folder",
    "Personalise": "commands.evaluate",
    "PrivateVocabulary": "commands.prepare",
    "Progress": "commands.live_line",
    "Publication": "commands.release_folder",
    "Recipe": "sottovoce_evidence.recipe",
    "Reddit": "data.reddit",
    "Request": "papers.reproduce",
    "RunResult": "commands.train",
    "Serving": "federation.transport",
    "SottoError": "sottovoce_evidence.errors",
    "StackedLSTM": "models.stacked_lstm",
    "StackOverflow": "data.stackoverflow",
    "Store": "data.store",
    "Subwords": "data.subwords",
    "Text": "commands.base",
    "Transformer": "models.transformer",
    "Vocabulary": "data.vocabulary",
    "audit_canaries": "commands.audit_canaries",
    "audit_membership": "commands.audit_membership",
    "audit_rounds": "commands.audit_rounds",
    "audit_tails": "commands.audit_tails",
    "compare_levels": "planning.levels",
    "compare_noise": "planning.compare_noise",
    "compare_runs": "commands.compare",
    "create_federation": "commands.federate",
    "enrol": "commands.federate",
    "evaluate": "evaluation.prediction",
    "evaluate_privately": "commands.private_evaluation",
    "evaluate_run": "commands.evaluate",
    "examine": "commands.doctor",
    "export_run": "commands.export",
    "federation_members": "commands.federate",
    "forecast": "commands.new_run",
    "judge_ledgers": "planning.ledger_totals",
    "keyboard_app": "web.keyboard.app",
    "make_device_key": "commands.federate",
    "make_plan": "planning.plan",
    "measure": "commands.bench",
    "plain": "local.objective",
    "plan_recipe": "planning.grid",
    "plan_selection": "planning.selection",
    "prepare": "commands.prepare",
    "prepare_privately": "commands.prepare",
    "rekey": "commands.federate",
    "release_run": "commands.release",
    "renew": "commands.federate",
    "report_run": "commands.report",
    "reproduce": "papers.reproduce",
    "resume": "commands.train",
    "resume_federation": "commands.federate",
    "run_demo": "commands.demo",
    "run_device": "commands.federate",
    "run_federation_demo": "commands.federate_demo",
    "select_best": "commands.select",
    "serve": "web.server",
    "serve_federation": "commands.federate",
    "suggest": "evaluation.suggestions",
    "train": "commands.train",
    "train_base": "commands.base",
    "train_tokenizer": "commands.tokenizer",
    "verify_release": "sottovoce_evidence.verify",
    "watch_app": "commands.watch",
    "write_comparison": "commands.compare",
    "write_recipe": "commands.init",
}

__all__ = [
    "GRU",
    "LSTM",
    "Batch",
    "Choice",
    "Evaluation",
    "Extra",
    "FederationSettings",
    "GatedCNN",
    "Grouping",
    "LanguageModel",
    "ModelFolder",
    "Personalise",
    "PrivateVocabulary",
    "Progress",
    "Publication",
    "Recipe",
    "Reddit",
    "Request",
    "RunResult",
    "Serving",
    "SottoError",
    "StackOverflow",
    "StackedLSTM",
    "Store",
    "Subwords",
    "Text",
    "Transformer",
    "Vocabulary",
    "audit_canaries",
    "audit_membership",
    "audit_rounds",
    "audit_tails",
    "compare_levels",
    "compare_noise",
    "compare_runs",
    "create_federation",
    "enrol",
    "evaluate",
    "evaluate_privately",
    "evaluate_run",
    "examine",
    "export_run",
    "federation_members",
    "forecast",
    "judge_ledgers",
    "keyboard_app",
    "make_device_key",
    "make_plan",
    "measure",
    "plain",
    "plan_recipe",
    "plan_selection",
    "prepare",
    "prepare_privately",
    "rekey",
    "release_run",
    "renew",
    "report_run",
    "reproduce",
    "resume",
    "resume_federation",
    "run_demo",
    "run_device",
    "run_federation_demo",
    "select_best",
    "serve",
    "serve_federation",
    "suggest",
    "train",
    "train_base",
    "train_tokenizer",
    "verify_release",
    "watch_app",
    "write_comparison",
    "write_recipe",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sottovoce")
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(home if home.startswith("sottovoce_") else f"sottovoce.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
