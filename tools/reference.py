"""The reference pages that follow from the code: recipe keys, command line, Python API.

    python tools/reference.py            writes docs/reference/recipe.md, cli.md and python.md
    python tools/reference.py --check    exit status 1 where a page is not what the code gives; names it

`make reference` runs the first, `make lint` the second.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import cyclopts

import sottovoce
from sottovoce.cli.examples import commands
from sottovoce.cli.main import EXAMPLES, app
from sottovoce.cli.recipe_keys import describe
from sottovoce.privacy.clipping import CLIPS
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce_evidence.recipe import SECTIONS, shipped_recipes

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by tools/reference.py (`make reference`). Change the code, not this page. -->\n"


# Recipe keys

# A recipe does not know the blocks that it names.
REGISTERED = {registry.setting: tuple(registry) for registry in (SAMPLERS, CLIPS, ESTIMATORS)}


class Key(NamedTuple):
    """One key of a recipe, as the page shows it."""

    name: str
    kind: str
    default: str
    allowed: str
    meaning: str


def recipe_page() -> str:
    names = ", ".join(f"`{name}`" for name in shipped_recipes())
    parts = [
        "# Recipe keys\n",
        NOTE,
        "A recipe is a TOML file with these sections. Every key has a default. `sotto train` takes a file or the name\n"
        f"of a shipped recipe ({names}). `--set section.key=value` changes one\n"
        "value; `none` unsets an optional one. Relative paths (`data.store`, `model.initial`, `local.public`) start\n"
        "at the folder of the file, and those of `--set` at the current one. [Write a recipe](../how-to/recipes.md)\n"
        "explains keys that work together; [models](models.md) has the defaults of each `model.kind`.\n",
    ]
    for section in SECTIONS:
        parts.append(f"## [{section}]\n")
        rows = [[f"`{key.name}`", key.kind, key.default, key.allowed, key.meaning] for key in keys_of(section)]
        parts.append(_table(["key", "type", "default", "allowed", "meaning"], rows))
    return "\n".join(parts)


def keys_of(section: str) -> Iterator[Key]:
    for row in describe():
        if row.section == section:
            default = "not set" if row.default is None else f"`{_toml(row.default)}`"
            choices = row.choices or REGISTERED.get(f"{row.section}.{row.name}", ())
            allowed = ", ".join(f"`{choice}`" for choice in choices) or row.range
            yield Key(row.name, row.kind, default, allowed, row.meaning)


def _without_none(hint: Any) -> Any:
    """`float` for `float | None`."""
    members = get_args(hint)
    return next(member for member in members if member is not type(None)) if type(None) in members else hint


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


# Command line


def cli_page() -> str:
    parts = [
        "# Command line\n",
        NOTE,
        "`sotto COMMAND --help` prints the same. A command that answers with figures has `--json`. Bad input ends\n"
        "with exit status 2 and one line on standard error; nothing is left half-written.\n",
        "| exit status | |\n"
        "| --- | --- |\n"
        "| 0 | done; also a run that ended because its budget was spent |\n"
        "| 1 | the answer to a question was no, a check failed, an audit contradicts the claim, a process was lost |\n"
        "| 2 | bad input |\n"
        "| 130, 143, 129 | stopped by Ctrl-C, SIGTERM or a closed terminal; training can be resumed |\n"
        "| 141 | nobody reads on, as with `\\| head`; training can be resumed |\n",
    ]
    top = [(tuple(name.split()), command) for name, command in commands(app)]
    parts.append("\n".join(f"- [`{_title(path)}`](#{_anchor(path)}): {_first(command.help)}" for path, command in top))
    parts.append("")
    for path, command in top:
        parts.extend(_command(path, command))
    return "\n".join(parts)


def _command(path: tuple[str, ...], command: cyclopts.App) -> Iterator[str]:
    arguments = [one for one in command.assemble_argument_collection(parse_docstring=True) if one.show]
    places = [one for one in arguments if one.field_info.kind is not one.field_info.KEYWORD_ONLY]
    usage = [_title(path), *(_place(one) for one in places)]
    usage += [f"{one.names[0]} {_value(one)}".strip() for one in arguments if one not in places and one.required]
    yield f"## {_title(path)}\n"
    yield f"```\n{' '.join(usage)} [OPTIONS]\n```\n"
    yield _reflow(command.help) + "\n"
    rows = []
    for one in arguments:
        name = f"`{_place(one)}`" if one in places else f"`{' '.join(filter(None, [one.names[0], _value(one)]))}`"
        rows.append([name, _default(one), " ".join((one.parameter.help or "").split())])
    yield _table(["argument", "default", "meaning"], rows) if rows else ""
    yield "```\n" + "\n".join(EXAMPLES[" ".join(path)]) + "\n```\n"


def _place(argument: Any) -> str:
    name = argument.names[0].lstrip("-").upper().replace("-", "_")
    many = argument.field_info.kind is argument.field_info.VAR_POSITIONAL
    return f"[{name} ...]" if many else name if argument.required else f"[{name}]"


def _value(argument: Any) -> str:
    """How the value of an option is written: nothing for a flag."""
    hint, more = _without_none(argument.hint), ""
    if get_origin(hint) in (list, tuple):
        hint, more = get_args(hint)[0], " ..."
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint))) + more
    return {bool: "", int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}[hint] + more


def _default(argument: Any) -> str:
    default = argument.field_info.default
    if argument.required:
        return "required"
    shown = " ".join(default) if isinstance(default, tuple) else default
    return "" if default in (None, False, (), argument.field_info.empty) else f"`{shown}`"


def _title(path: tuple[str, ...]) -> str:
    return " ".join(("sotto", *path))


def _anchor(path: tuple[str, ...]) -> str:
    return "-".join(("sotto", *path))


def _first(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split()).rstrip(".")


def _reflow(text: str | None) -> str:
    """The paragraphs of a docstring before its parameters."""
    about = inspect.cleandoc(text or "").split("\nParameters\n")[0]
    return "\n\n".join(" ".join(part.split()) for part in about.strip().split("\n\n"))


# Python API


def python_page() -> str:
    parts = [
        "# Python API\n",
        NOTE,
        "`import sottovoce as sv` gives these names. A name is imported on first use. Errors that a caller can\n"
        "correct are `SottoError`: one line with the value, the allowed range and what to do.\n",
    ]
    found = {name: _definition(name) for name in sorted(sottovoce.__all__, key=str.lower)}
    kinds = {"Functions": ast.FunctionDef, "Classes": ast.ClassDef}
    for title, kind in kinds.items():
        names = [name for name, (_, node) in found.items() if isinstance(node, kind)]
        parts.append(f"{title}: " + ", ".join(f"[`{name}`](#{name.lower()})" for name in names) + ".\n")
    for kind in kinds.values():
        for name, (home, node) in found.items():
            if isinstance(node, kind):
                parts.extend(_entry(name, home, node))
    return "\n".join(parts)


def _definition(name: str) -> tuple[Path, ast.FunctionDef | ast.ClassDef]:
    home = Path(inspect.getsourcefile(sys.modules[getattr(sottovoce, name).__module__]))
    for node in ast.parse(home.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return home, node
    raise SystemExit(f"error: {home} does not define {name}, which sottovoce exports")


def _entry(name: str, home: Path, node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"[`{Path(*home.parts[home.parts.index('src') + 1 :])}`](../../{home.relative_to(ROOT)})\n"
    if isinstance(node, ast.FunctionDef):
        yield f"```python\n{_signature(node)}\n```\n"
        yield _docstring(node)
        return
    fields = [_field(item) for item in node.body if isinstance(item, ast.AnnAssign) and _is_public(_name_of(item))]
    if fields:
        yield "```python\n" + "\n".join([f"class {name}:", *(f"    {line}" for line in fields)]) + "\n```\n"
    yield _docstring(node)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and (_is_public(item.name) or item.name == "__init__"):
            called = f"{name}.{item.name}" if item.name != "__init__" else name
            marks = {_source(mark) for mark in item.decorator_list}
            if marks & {"property", "cached_property", "functools.cached_property"}:
                result = f" -> {_source(item.returns)}" if item.returns else ""
                yield f"`{called}{result}`\n"
            else:
                yield f"`{_signature(item, called, method='staticmethod' not in marks)}`\n"
            if text := _docstring(item):
                yield textwrap.indent(text, "> ", lambda line: True).rstrip() + "\n"


def _signature(node: ast.FunctionDef, called: str = "", *, method: bool = False) -> str:
    """On one line where it fits or is a method's, else an argument a line."""
    arguments = list(_arguments(node.args))[1 if method else 0 :]
    result = f" -> {_source(node.returns)}" if node.returns else ""
    text = f"{called or node.name}({', '.join(arguments)}){result}"
    if len(text) <= 100 or called:
        return text
    return f"{node.name}(\n    " + ",\n    ".join(arguments) + f",\n){result}"


def _arguments(given: ast.arguments) -> Iterator[str]:
    places = [*given.posonlyargs, *given.args]
    without = [None] * (len(places) - len(given.defaults))
    for argument, default in zip(places, [*without, *given.defaults], strict=True):
        yield _argument(argument, default)
    if given.vararg:
        yield f"*{_argument(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default)
    if given.kwarg:
        yield f"**{_argument(given.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = f"{argument.arg}: {_source(argument.annotation)}" if argument.annotation else argument.arg
    if default is None:
        return text
    return f"{text} = {_source(default)}" if argument.annotation else f"{text}={_source(default)}"


def _field(item: ast.AnnAssign) -> str:
    line = f"{_name_of(item)}: {_source(item.annotation)}"
    return f"{line} = {_source(item.value)}" if item.value is not None else line


def _name_of(item: ast.AnnAssign) -> str:
    return _source(item.target)


def _source(node: ast.AST) -> str:
    """The code of a node, with the double quotes of the rest of the code."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node))


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring; the lines of its sections (Args, Returns) become a list."""
    lines = []
    for line in (ast.get_docstring(node) or "").splitlines():
        if line.strip() in ("Args:", "Returns:", "Raises:", "Yields:"):
            lines.append(f"**{line.strip()}**\n")
        elif line.startswith("    ") and not line.startswith("     "):
            lines.append(f"- {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n" if lines else ""


# Pages


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


PAGES = {"recipe.md": recipe_page, "cli.md": cli_page, "python.md": python_page}


def stale() -> list[str]:
    """The pages that are not what the code gives."""
    found = []
    for name, write in PAGES.items():
        page = FOLDER / name
        if not page.exists() or page.read_text(encoding="utf-8") != write():
            found.append(f"{page.relative_to(ROOT)} is not what the code gives; `make reference` writes it")
    return found


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        found = stale()
        print("\n".join(found), end="\n" if found else "")
        sys.exit(1 if found else 0)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
