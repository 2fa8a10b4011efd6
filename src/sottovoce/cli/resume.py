"""`sotto resume`."""

from __future__ import annotations

from pathlib import Path

from sottovoce.cli.display import gentle_stop, progress_of_rounds
from sottovoce.cli.options import ALONE, Json, Processes
from sottovoce.cli.train import print_helper, print_result


def resume(run: Path, *, several: Processes = ALONE, store: Path | None = None, json: Json = False) -> None:
    """Go on with a run that was stopped or killed.

    Parameters
    ----------
    run
        Folder of the run. Of several processes, only process 0 needs it.
    store
        Where a process other than 0 has the store, if not where process 0 has it.
    """
    import sottovoce
    from sottovoce.commands.helper import work_as_helper

    with several.join() as group, gentle_stop() as stop:
        if group and not group.is_leader:
            work_as_helper(group, store, stop=stop)
            return print_helper(group, json=json)
        with progress_of_rounds(run.name, quiet=json) as observer:
            result = sottovoce.resume(run, observer=observer, stop=stop, group=group)
    return print_result(result, json=json)
