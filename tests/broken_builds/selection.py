"""Which faults to try: all of them, or those that a change could have hidden.

A fault counts as touched by a change of a room that it patches, of the test that must catch it, or of its own lines.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import faults
from faults import EVIDENCE, FAULTS

ROOT = Path(__file__).parents[2]
HERE = "tests/broken_builds/faults.py"
# Quick to try, one or two for each of the rooms that a guarantee rests on: tried after every change, and alone where
# a clone has no history to compare with.
ALWAYS = (
    "a_device_that_is_believed",
    "rounding_that_is_not_paid_for",
    "short_noise_keys",
    "coins_that_know_the_population",
    "fixed_size_charged_as_poisson",
    "no_room_for_rounding",
    "denominator_of_the_cohort",
    "free_bits",
    "noise_key_reused_after_resume",
    "a_newline_makes_a_charge",
    "ledger_not_flushed",
    "secrets_from_the_seed",
    "threshold_for_free",
    "unknown_events_skipped",
    "a_page_that_tells",
)
MOST = 24  # of those that a change touches: it may touch every room
_FOLDER = re.compile(rf"(?:tests/unit|{EVIDENCE})/(\w+)/")  # of unit tests of a room
HISTORY = 5  # commits that count as the change where a branch is its own main branch


def selected() -> list[str]:
    """The names of the faults to try, by SOTTOVOCE_FAULTS: "all", "changed", or what they guard, such as "noise"."""
    which = os.environ.get("SOTTOVOCE_FAULTS", "all")
    if which != "changed":
        return [name for name, fault in FAULTS.items() if which in ("all", fault.guards)]
    base = _base()
    files = _git("diff", "--name-only", base, "--", "packages", "tests") if base else None
    found = touched(files.split(), _git("show", f"{base}:{HERE}") or "") if files is not None else set()
    # Others at the next commit: each is tried sooner or later, and at once by `make test-all`.
    head = _git("rev-parse", "HEAD") or ""
    in_time = sorted(found - set(ALWAYS), key=lambda name: sha256(f"{head} {name}".encode()).digest())[:MOST]
    return [name for name in FAULTS if name in ALWAYS or name in in_time]


def rooms_of(name: str) -> set[str]:
    """The rooms that a fault patches (`privacy`, `runs`, a module at the top), by what it imports of the package.

    The room of the unit test that catches it is one of them: a fault may patch a library that a room calls.
    """
    source, folder = inspect.getsource(FAULTS[name].apply), _FOLDER.match(FAULTS[name].test)
    rooms = {
        room
        for pair in re.findall(r"from sottovoce(?:_evidence)?(?:\.(\w+)| import (\w+))", source)
        for room in pair
        if room
    }
    return rooms | (set(folder.groups()) if folder else set())


def touched(files: list[str], before: str) -> set[str]:
    """The faults that a change of these files touches; `before` is the table of faults as it was."""
    rooms = {Path(file).with_suffix("").parts[4] for file in files if re.match(r"packages/\w+/src/", file)}
    old, new = _functions(before), _functions(inspect.getsource(faults))
    return {
        name
        for name, fault in FAULTS.items()
        if rooms_of(name) & rooms or fault.test.partition("::")[0] in files or old.get(name) != new[name]
    }


def _functions(source: str) -> dict[str, str]:
    return {node.name: ast.dump(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _base() -> str | None:
    """What to compare with: where this branch left the main one, or some commits ago."""
    head = _git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        left = _git("merge-base", "HEAD", main)
        if left and left != head:
            return left
    return _git("rev-parse", "--verify", "--quiet", f"HEAD~{HISTORY}")


def _git(*arguments: str) -> str | None:
    """What git answers, or None where it cannot."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
