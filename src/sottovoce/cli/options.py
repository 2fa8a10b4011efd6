"""Options that several commands share: their types and help texts are written once, here."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sottovoce.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.multiprocess.group import Group

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[bool, Parameter(negative=(), show_default=False, help="One JSON object, no progress.")]
Run = Annotated[Path, Parameter(help="Folder of a run.")]
Paths = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]
Settings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative=(),
        help="Change one value of the recipe: section.key=value. May be given many times.",
    ),
]
UserField = Annotated[str, Parameter(help="Field or column of the corpus that names the user.")]
TextField = Annotated[str, Parameter(help="Field or column of the corpus that holds the text.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Processes:
    """Several processes that train one run.

    Parameters
    ----------
    coordinator
        Train with several processes: HOST:PORT of process 0, the same for all, or auto in a cluster that JAX knows.
    processes
        How many processes there are.
    process_id
        Rank of this one, from 0. Process 0 keeps the run's folder; the others help.
    wait
        Seconds to wait for all processes.
    secret
        File with the secret that all processes share, which only its owner may read; else SOTTO_SECRET in the
        environment.
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    wait: float = 300.0
    secret: Path | None = None

    def join(self) -> AbstractContextManager[Group | None]:
        """The group of all processes; None for one process alone."""
        if self.coordinator is None:
            if self.processes is not None or self.process_id is not None or self.secret is not None:
                raise SottoError(
                    "--processes, --process-id and --secret need --coordinator: HOST:PORT of process 0, or auto"
                )
            return nullcontext()
        from sottovoce.multiprocess.group import join

        return join(self.coordinator, self.processes, self.process_id, self.wait, log, self.secret)


ALONE = Processes()


def log(text: str) -> None:
    """A line on standard error, at once."""
    print(text, file=sys.stderr, flush=True)
