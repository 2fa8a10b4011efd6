"""One or two calls of every command, for its --help."""

from __future__ import annotations

from collections.abc import Iterator

import cyclopts

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("sotto demo --out demo",),
    "doctor": ("sotto doctor", "sotto doctor --no-bench --json"),
    "prepare": (
        "sotto prepare messages.csv --tokens-per-user 480 --out store",
        "sotto prepare messages.csv --user-field author --text-field body --out store",
        "sotto prepare public.txt --plain-text --out public",
    ),
    "tokenizer train": ("sotto tokenizer train public.txt --public --size 8000 --out tokenizer.json",),
    "init": ("sotto init store --out mine.toml", "sotto init store --noisy-count"),
    "plan": (
        "sotto plan mine.toml",
        "sotto plan --users 20000 --cohort 400 --rounds 500 --delta 1e-6 --epsilon 4",
        "sotto plan --ledger store --delta 1e-6",
    ),
    "train": (
        "sotto train mine.toml --out run",
        "sotto train mine.toml --set privacy.epsilon=4 --dry-run",
        "sotto train mine.toml --practice --out trial",
    ),
    "resume": ("sotto resume run",),
    "base train": ("sotto base train public --out base --passes 5",),
    "base list": ("sotto base list",),
    "federate init": ("sotto federate init federation --device hospital=300 --device clinic=120",),
    "federate key": ("sotto federate key ward",),
    "federate enrol": (
        "sotto federate enrol federation ward=80",
        "sotto federate enrol federation ward=80 --public-key node.pub",
    ),
    "federate rekey": ("sotto federate rekey federation ward --public-key node.pub",),
    "federate members": ("sotto federate members federation",),
    "federate renew": ("sotto federate renew federation",),
    "federate server": ("sotto federate server mine.toml --federation federation --out run",),
    "federate resume": ("sotto federate resume run",),
    "federate device": ("sotto federate device hospital --data store",),
    "federate demo": ("sotto federate demo --out federation-demo",),
    "evaluate": ("sotto evaluate run", "sotto evaluate run --keystrokes"),
    "report": ("sotto report run",),
    "compare": ("sotto compare run other-run --out compare.html",),
    "watch": ("sotto watch run",),
    "keyboard": ("sotto keyboard run",),
    "audit": ("sotto audit run",),
    "audit rounds": ("sotto audit rounds run",),
    "audit canaries": ("sotto audit canaries run",),
    "audit tails": ("sotto audit tails run",),
    "audit membership": ("sotto audit membership run",),
    "release": ("sotto release run --out released",),
    "select": ("sotto select mine.toml --runs 5 --public public.txt --out released",),
    "verify": ("sotto verify released",),
    "export": ("sotto export run --out onnx",),
    "reproduce": ("sotto reproduce --list", "sotto reproduce mcmahan2018 --figure 3 --out results"),
    "bench": ("sotto bench mine.toml", "sotto bench mine.toml --cohort 50 100 200"),
}


def commands(parent: cyclopts.App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, cyclopts.App]]:
    """All commands that do something, by name, those of groups of commands too."""
    for name in parent:
        if name.startswith("-") or not parent[name].show:
            continue
        command = parent[name]
        if command.default_command is not None:
            yield " ".join((*path, name)), command
        yield from commands(command, (*path, name))


def add_examples(app: cyclopts.App) -> None:
    """Show the examples of every command at the end of its --help."""
    for name, command in commands(app):
        lines = EXAMPLES.get(name, ())
        command.help_epilogue = "\n".join(["Examples:", "", "```", *lines, "```"]) if lines else None
