"""What `import sottovoce` gives: a function for every command, with every parameter explained."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

import sottovoce
from sottovoce.cli.main import app

# A command that is added needs a function for those who call it from Python.
FUNCTIONS = {
    "audit": ("audit_canaries", "audit_membership", "audit_rounds", "audit_tails"),
    "base": ("train_base",),
    "bench": ("measure",),
    "compare": ("compare_runs", "write_comparison"),
    "demo": ("run_demo",),
    "doctor": ("examine",),
    "evaluate": ("evaluate_run", "evaluate_privately"),
    "export": ("export_run",),
    "federate": (
        "create_federation",
        "enrol",
        "make_device_key",
        "federation_members",
        "rekey",
        "renew",
        "serve_federation",
        "resume_federation",
        "run_device",
    ),
    "init": ("write_recipe",),
    "keyboard": ("keyboard_app", "serve"),
    "plan": ("make_plan", "plan_recipe", "plan_selection", "judge_ledgers"),
    "prepare": ("prepare", "prepare_privately"),
    "release": ("release_run",),
    "report": ("report_run",),
    "reproduce": ("reproduce",),
    "resume": ("resume",),
    "select": ("select_best",),
    "tokenizer": ("train_tokenizer",),
    "train": ("train",),
    "verify": ("verify_release",),
    "watch": ("watch_app", "serve"),
}
EXPORTED = [name for name in sottovoce.__all__ if inspect.isfunction(getattr(sottovoce, name))]


def test_every_command_has_a_function() -> None:
    verbs = {name for name in app if not name.startswith("-") and app[name].show}
    assert verbs == set(FUNCTIONS)
    assert {name for names in FUNCTIONS.values() for name in names} <= set(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_every_parameter_is_explained(name: str) -> None:
    function = getattr(sottovoce, name)
    about, _, explained = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    assert about.strip()
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^ +{parameter}: \S", explained, re.MULTILINE), f"{name} does not explain {parameter}"


def test_what_is_exported_is_listed() -> None:
    assert sorted(sottovoce.__all__) == sorted(sottovoce._HOMES)
    assert sottovoce.__version__ == version("sottovoce")
    assert {"train", "__version__"} <= set(dir(sottovoce))
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        sottovoce.tarin  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    code = "import sottovoce, sys; sottovoce.__version__; sys.exit(bool({'jax', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
