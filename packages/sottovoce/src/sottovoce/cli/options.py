"""Options that several commands share: each type and its line of --help is written once."""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce_evidence.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.multiprocess.group import Group


def option(help: str, name: str | None = None) -> Parameter:
    """An option, with its line of --help."""
    return Parameter(help=help, name=name)


Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[Flag, option("One JSON object, no progress.")]
Run = Annotated[Path, option("Folder of a run.")]
Model = Annotated[Path, option("Folder of a run or of a release.")]
AnyModel = Annotated[Path, option("Folder of a run, a release, a base or Hugging Face, or the name of a base.")]
Recipe = Annotated[str, option("A TOML file, or the name of a shipped recipe (demo, mcmahan2018).")]
Out = Annotated[Path, option("Folder of the new run.")]
Paths = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]
Strings = Annotated[list[str] | None, Parameter(negative=())]
Settings = Annotated[Strings, option("Change a value of the recipe: section.key=value. May be repeated.", "--set")]
UserField = Annotated[
    tuple[str, ...],
    Parameter(help="Field that names the user. Repeat it for several owners.", negative=(), show_default=" ".join),
]
ContextValues = Annotated[
    tuple[str, ...],
    Parameter(consume_multiple=True, negative=(), show_default=False),
    option("What may be known of a writer: public values, declared by hand."),
]
TextField = Annotated[str, option("Field or column of the corpus that holds the text.")]
Delimiter = Annotated[str | None, option("Of tables: one character, or tab. By default it is found.")]
Encoding = Annotated[str | None, option("Of text files, such as latin-1. By default UTF-8 or UTF-16.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Processes:
    """Several processes that train one run."""

    coordinator: Annotated[str | None, option("HOST:PORT of process 0, or auto in a cluster that JAX knows.")] = None
    processes: Annotated[int | None, option("How many processes train the run.")] = None
    process_id: Annotated[int | None, option("Rank of this one. Process 0 has the run's folder.")] = None
    wait: Annotated[float, option("Seconds to wait for all processes.")] = 300.0
    secret: Annotated[Path | None, option("File with the secret that all share; else SOTTO_SECRET is read.")] = None

    def join(self) -> AbstractContextManager[Group | None]:
        """The group of all processes; None for one process alone."""
        if self.coordinator is not None:
            from sottovoce.multiprocess.group import join

            return join(self.coordinator, self.processes, self.process_id, self.wait, log, self.secret)
        if (self.processes, self.process_id, self.secret) != (None, None, None):
            raise SottoError("--processes, --process-id and --secret need --coordinator, the HOST:PORT of process 0")
        return nullcontext()


ALONE = Processes()


def delimiter_of(typed: str | None) -> str | None:
    """A tab is hard to type."""
    return "\t" if typed in ("tab", "\\t") else typed


def set_options(settings: list[str] | None) -> str:
    """The --set options that were given, as they are typed for the next command."""
    return "".join(f" --set {shlex.quote(each)}" for each in settings or ())


def setting_called(option: str) -> str | None:
    """The key of a recipe that an option is called like, if it is clear: `--epsilon` is `privacy.epsilon`."""
    from sottovoce.cli.recipe_keys import describe

    name = option.removeprefix("--").partition("=")[0].replace("-", "_")
    sections = [key.section for key in describe() if key.name == name]
    meant = [section for section in ("privacy", "run") if section in sections] or sections
    return f"{meant[0]}.{name}" if len(meant) == 1 else None


def log(text: str) -> None:
    """A line on standard error, at once."""
    print(text, file=sys.stderr, flush=True)
