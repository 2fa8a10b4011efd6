"""`sotto release`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Flag, Json, Run, option


def release(
    run: Run,
    *,
    out: Annotated[Path, option("New folder for what may be public.")],
    most_exposure: Annotated[float | None, option("Bits by which a secret of one user may be exposed.")] = None,
    require_audit: Annotated[Flag, option("Refuse a model that was not audited by rounds and by canaries.")] = False,
    json: Json = False,
) -> None:
    """Copy weights, vocabulary, card, statement and charges out of a run, if no check speaks against it.

    The run must be private, its ledger whole, and no audit may contradict the claim. The run's secrets, the keys of its
    noise, are then erased, and it cannot be resumed any more. Otherwise: exit status 1, every reason, and no change.
    """
    from sottovoce.commands.release import release_run
    from sottovoce.reporting.statement_text import would_have_seen

    result = release_run(run, out, most_exposure=most_exposure, require_audit=require_audit)
    if json:
        print_json(result.to_json())
    elif result.released:
        print(f"released: {out}")
        print(f"anyone who has it finds its ε with: {result.check}")
        for one in result.audits:
            noticed = "" if one.would_notice is None else f"; it {would_have_seen(one.would_notice)}"
            print(f"audit by {one.audit}: {one.result}{noticed}")
        print(f"the secrets of {run} are erased; erase copies of them too")
    else:
        print("\n- ".join([f"not released: {run}", *result.reasons]))
    if not result.released:
        sys.exit(1)
