"""The entry point of `sotto`: one app, one way to fail."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version

import cyclopts

from sottovoce.cli import audit, compare, evaluate, federate, keyboard, plan, prepare, release, reproduce, train, watch
from sottovoce.errors import LostProcess, SottoError
from sottovoce.files import FULL

LONGEST_COMPLAINT = 1200

app = cyclopts.App(
    name="sotto",
    help="Train next-word models on people's text with user-level differential privacy.",
    version=version("sottovoce"),
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # or a command that is broken off ends without a word
)
app.command(train.demo)
app.command(prepare.prepare)
app.command(plan.plan)
app.command(train.train)
app.command(train.resume)
app.command(federate.app)
app.command(evaluate.evaluate)
app.command(audit.audit)
app.command(release.release)
app.command(evaluate.report)
app.command(compare.compare)
app.command(watch.watch)
app.command(keyboard.export)
app.command(keyboard.keyboard)
app.command(reproduce.reproduce)
app.command(evaluate.bench)


def _share_out_cores() -> None:
    """A device of JAX for each core of a CPU, so that users train side by side; it must be said before jax is there."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))


def name_options(text: str, arguments: Sequence[str] | None) -> str:
    """An error's text with the options of the command that was called, where it names arguments of Python.

    `min_tokens=0` becomes `--min-tokens 0`. A name without an underscore is an ordinary word unless a value is given;
    keys of a recipe (`privacy.users=9`), paths and what is quoted stay.
    """
    _, apps, _ = app.parse_commands(arguments)
    options = {name for argument in apps[-1].assemble_argument_collection() for name in argument.names}
    for option in sorted(name for name in options if name.startswith("--")):
        name = option.removeprefix("--").replace("-", "_")
        text = re.sub(rf"(?<![\w./'\"-]){name}=(?=\S)", f"{option} ", text)
        if "_" in name:
            text = re.sub(rf"(?<![\w./'\"-]){name}(?![\w./'\"-])", option, text)
    return text


def _complain(text: str) -> None:
    """One line, which a value of a hundred thousand digits does not make endless."""
    line = " ".join(text.split())
    half = LONGEST_COMPLAINT // 2
    print("error:", line if len(line) <= 2 * half else f"{line[:half]} … {line[-half:]}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input ends with status 2 and one line on standard error."""
    _share_out_cores()
    try:
        if any("\0" in argument for argument in arguments or ()):  # a system gives none, but a caller may
            raise SottoError("an argument holds a NUL, which no path can; leave it out")
        app(arguments, exit_on_error=False, print_error=False)
    except SottoError as error:
        _complain(name_options(str(error), arguments))
        sys.exit(1 if isinstance(error, LostProcess) else 2)
    except cyclopts.CycloptsError as error:
        _complain(str(error))
        sys.exit(2)
    except RecursionError:  # JSON of a hundred thousand brackets
        _complain("a file that was given is nested too deep to be read; put it back as it was written")
        sys.exit(2)
    except BrokenPipeError:  # `sotto plan … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a name too long, a folder without permission
        where = error.filename or "a file"
        then = "free some space there, then give the same command again"
        if error.errno not in FULL:
            then = "check its name, and who may read and write there"
        _complain(f"cannot use {where} ({error.strerror or error}); {then}")
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
