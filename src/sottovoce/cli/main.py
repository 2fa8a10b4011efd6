"""The entry point of `sotto`: one app, one way to fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

import cyclopts

from sottovoce.cli import (
    audit,
    bench,
    compare,
    demo,
    evaluate,
    export,
    federate,
    keyboard,
    plan,
    prepare,
    release,
    report,
    reproduce,
    resume,
    train,
    watch,
)
from sottovoce.errors import LostProcess, SettingError, SottoError
from sottovoce.files import FULL

LONGEST_COMPLAINT = 1200

app = cyclopts.App(
    name="sotto",
    help="Train next-word models on people's text with user-level differential privacy.",
    version=version("sottovoce"),
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # or a command that is broken off ends without a word
)
for command in (
    demo.demo,
    prepare.prepare,
    plan.plan,
    train.train,
    resume.resume,
    federate.app,
    evaluate.evaluate,
    audit.app,
    release.release,
    report.report,
    compare.compare,
    watch.watch,
    export.export,
    keyboard.keyboard,
    reproduce.reproduce,
    bench.bench,
):
    app.command(command)


def _share_out_cores() -> None:
    """Give JAX a device for each core of a CPU, so that users train in parallel. It must be set before jax starts."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """The options of the command that was called, by their names in Python: `min_tokens` is `--min-tokens`."""
    _, apps, _ = app.parse_commands(arguments)
    names = (name for argument in apps[-1].assemble_argument_collection() for name in argument.names)
    return {name.removeprefix("--").replace("-", "_"): name for name in names if name.startswith("--")}


def _complain(text: str) -> None:
    """Print one line, cut in the middle where a value makes it endless."""
    line = " ".join(text.split())
    half = LONGEST_COMPLAINT // 2
    print("error:", line if len(line) <= 2 * half else f"{line[:half]} … {line[-half:]}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input ends with status 2 and one line on standard error."""
    _share_out_cores()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any("\0" in argument for argument in arguments):  # a system gives none, but a caller may
            raise SottoError("an argument holds a NUL, which no path can; leave it out")
        arguments = audit.modern(arguments)
        app(arguments, exit_on_error=False, print_error=False)
    except SettingError as error:
        _complain(error.text(_options(arguments)))
        sys.exit(2)
    except SottoError as error:
        _complain(str(error))
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
