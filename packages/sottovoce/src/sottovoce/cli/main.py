"""The entry point of `sotto`: one app, one way to fail."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

import cyclopts

from sottovoce.cli.display import AskedTwice, Printable
from sottovoce.cli.examples import add_examples
from sottovoce.cli.options import setting_called
from sottovoce.cores import cores
from sottovoce.files import FULL
from sottovoce_evidence.errors import LostProcess, SettingError, SottoError, printable

LONGEST_ERROR = 1200  # characters
CLOSED = 128 + 13  # where nobody reads on: what a shell says of a program that SIGPIPE ends
VERBS = {  # by what a person does
    "Start": ("demo", "doctor", "prepare", "tokenizer", "init", "plan"),
    "Train": ("train", "resume", "base", "federate"),
    "Look": ("evaluate", "report", "compare", "watch", "keyboard"),
    "Release": ("audit", "release", "select", "verify", "export"),
    "Research": ("reproduce", "bench"),
}

app = cyclopts.App(
    name="sotto",
    help="Train next-word models on people's text with user-level differential privacy.",
    version=version("sottovoce"),
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # or a command that is broken off ends without a word
)
for place, (title, verbs) in enumerate(VERBS.items()):
    group = cyclopts.Group(title, sort_key=place)
    for verb in verbs:
        module = import_module(f"sottovoce.cli.{verb}")
        app.command(getattr(module, "app", None) or getattr(module, verb), name=verb)
        app[verb].group, app[verb].sort_key = group, verbs.index(verb)
app.register_install_completion_command()
options = cyclopts.Group("Options", sort_key=len(VERBS))
for flag in ("--help", "--version", "--install-completion"):
    app[flag].group = options
EXAMPLES = add_examples(app)


def _share_out_cores() -> None:
    """Give JAX a device for each core of a CPU, so that users train in parallel. It must be set before jax starts."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores()))


def _prepare_output() -> None:
    """Write each line at once: with `> log 2>&1` lines of both kinds are in the order in which they were printed.

    What an output cannot write, such as an ε in ASCII, is written as an escape. Warnings are for a terminal, too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Printable())


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """The options of the command that was called, by their names in Python: `min_tokens` is `--min-tokens`."""
    _, apps, _ = app.parse_commands(arguments)
    names = (name for argument in apps[-1].assemble_argument_collection() for name in argument.names)
    return {name.removeprefix("--").replace("-", "_"): name for name in names if name.startswith("--")}


def _missing(error: cyclopts.MissingArgumentError) -> str:
    """An option or argument that was not given at all; cyclopts says the same where its value is missing."""
    argument = error.argument
    if argument is None or error.keyword is not None or argument.tokens:
        return str(error)
    name = argument.name if argument.index is None else argument.name.removeprefix("--").upper()
    about, command = (argument.parameter.help or "").rstrip("."), " ".join(["sotto", *(error.command_chain or ())])
    return f"{name} is missing ({about[:1].lower()}{about[1:]}); see `{command} --help`"


def _unknown(error: cyclopts.UnknownOptionError, options: Collection[str]) -> str:
    """An option that the command does not have; of one that changes or writes a recipe, perhaps a key of it."""
    option = error.token.keyword or error.token.value
    changes, writes = "--set" in options, tuple(error.command_chain or ()) == ("init",)
    key = setting_called(option) if option.startswith("--") and (changes or writes) else None
    if key is None:
        return str(error)
    cure = f"give --set {key}=VALUE" if changes else f"set {key} in the recipe"
    return f"Unknown option: {option}; {cure}"


def _fail(text: str, status: int = 2) -> NoReturn:
    """Print one line, cut in the middle where a value makes it too long, and exit."""
    line, half = printable(" ".join(text.split())), LONGEST_ERROR // 2
    print("error:", line if len(line) <= 2 * half else f"{line[:half]} … {line[-half:]}", file=sys.stderr)
    sys.exit(status)


def _is_text(argument: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in argument)


def _needed() -> set[str]:
    """Names of what the package itself depends on, extras left out, as they are imported."""
    from importlib.metadata import requires

    listed = [each for each in requires("sottovoce") or () if "extra ==" not in each]
    return {re.split(r"[^A-Za-z0-9_.-]", each)[0].replace("-", "_").lower() for each in listed}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input ends with status 2 and one line on standard error."""
    _share_out_cores()
    _prepare_output()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any("\0" in argument for argument in arguments):  # a system gives none, but a caller may
            raise SottoError("an argument holds a NUL, which no path can; leave it out")
        if broken := [each for each in arguments if not _is_text(each)]:
            raise SottoError(f"{broken[0]!r} is not UTF-8, as all names and paths here must be; give it another name")
        app(arguments, exit_on_error=False, print_error=False)
    except SettingError as error:
        _fail(error.text(_options(arguments)))
    except LostProcess as error:
        _fail(str(error), status=1)
    except cyclopts.MissingArgumentError as error:
        _fail(_missing(error))
    except cyclopts.UnknownOptionError as error:
        _fail(_unknown(error, _options(arguments).values()))
    except (SottoError, cyclopts.CycloptsError) as error:
        _fail(str(error))
    except ModuleNotFoundError as error:  # installed without what training needs, to verify alone
        if (error.name or "").partition(".")[0] not in _needed():
            raise
        then = "`pip install sottovoce` adds it (`sotto verify` needs no jax)"
        _fail(f"this command needs {error.name}, which is not installed; {then}")
    except UnicodeEncodeError as error:  # the path of the folder that somebody is in
        found = error.object[error.start : error.end]
        _fail(f"a name or path holds {found!r}, which is not UTF-8; rename that file or folder")
    except RecursionError:  # JSON of a hundred thousand brackets
        _fail("a file that was given is nested too deep to be read; put it back as it was written")
    except BrokenPipeError:  # `sotto plan … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED)
    except SystemExit as error:  # the console that prints `--help` does the same, and has a status of its own
        sys.exit(CLOSED if isinstance(error.__context__, BrokenPipeError) else error.code)
    except OSError as error:  # a full disk, a name too long, a folder without permission
        then = "check its name, and who may read and write there"
        if error.errno in FULL:
            then = "free some space there, then give the same command again"
        _fail(f"cannot use {error.filename or 'a file'} ({error.strerror or error}); {then}")
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        sys.exit(error.status if isinstance(error, AskedTwice) else 130)


if __name__ == "__main__":
    main()
