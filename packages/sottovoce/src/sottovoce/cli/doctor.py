"""`sotto doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sottovoce.cli.display import print_json, print_table
from sottovoce.cli.options import Flag, Json, log, option


def doctor(
    *,
    folder: Annotated[Path, option("Where runs will be written: its disk is looked at.")] = Path("."),
    no_bench: Annotated[Flag, option("Do not time this machine.")] = False,
    json: Json = False,
) -> None:
    """Look at this machine: versions, device, memory, disk, extras, and how many users a second it trains.

    The rate is that of the recipe `small` with made-up users of 480 tokens, timed for about ten seconds.

    Examples:
        sotto doctor
        sotto doctor --no-bench --json
    """
    from sottovoce.commands.doctor import examine

    def rate() -> float:
        from sottovoce.commands.bench import users_per_second
        from sottovoce_evidence.recipe import Recipe

        if not json:
            log("timing this machine, about 10 seconds ...")
        return users_per_second(Recipe.load("small"), seconds=10.0)

    found, gib = examine(folder, None if no_bench else rate), 2**30
    if json:
        return print_json(found.to_json())
    rows = {name: version or "not installed" for name, version in found.versions.items()}
    rows |= {"system": found.system, "device": f"{found.devices} × {found.device or 'none'}", "cores": f"{found.cores}"}
    rows["memory"] = f"{found.memory_bytes / gib:.1f} GiB"
    rows["disk"] = f"{found.free_disk_bytes / gib:.1f} GiB free in {found.folder}"
    if found.users_per_second is not None:
        rows["rate of `small`"] = f"{found.users_per_second:.3g} users/s"
    for extra, missing in found.extras.items():
        rows[f"extra {extra}"] = f"not installed: pip install 'sottovoce[{extra}]'" if missing else "installed"
    print_table("This machine", rows)
    for problem in found.problems:
        print(f"problem: {problem}")
    return print("nothing is missing for training" if not found.problems else f"{len(found.problems)} to look at")
