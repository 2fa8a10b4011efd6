"""The calls at the end of a command's --help: those under `Examples:` in its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import cyclopts


def commands(parent: cyclopts.App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, cyclopts.App]]:
    """All commands that do something, by name, those of groups of commands too."""
    for name in parent:
        if name.startswith("-") or not parent[name].show:
            continue
        command = parent[name]
        if command.default_command is not None:
            yield " ".join((*path, name)), command
        yield from commands(command, (*path, name))


def add_examples(app: cyclopts.App) -> dict[str, tuple[str, ...]]:
    """Show the examples of every command at the end of its --help, and give them by command."""
    examples = {}
    for name, command in commands(app):
        _, _, calls = (inspect.getdoc(command.default_command) or "").partition("\nExamples:\n")
        examples[name] = tuple(line.strip() for line in calls.splitlines())
        command.help = inspect.cleandoc(command.help or "").partition("\nExamples:\n")[0]
        command.help_epilogue = "\n".join(["Examples:", "", "```", *examples[name], "```"])
    return examples
