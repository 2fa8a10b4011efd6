"""`sotto release`."""

from __future__ import annotations

import sys
from pathlib import Path

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Flag, Json, Run


def release(
    run: Run,
    *,
    out: Path,
    most_exposure: float | None = None,
    require_audit: Flag = False,
    json: Json = False,
) -> None:
    """Copy weights, vocabulary, card, statement and charges out of a run, if no check speaks against it.

    The run must be private, its ledger whole, and no audit may contradict the claim. The run's secrets, the keys of its
    noise, are then erased, and it cannot be resumed any more. Otherwise: exit status 1, every reason, and no change.

    Parameters
    ----------
    out
        New folder for what may be public.
    most_exposure
        Bits by which an inserted secret of one user may be exposed (default: 10, and log2 of how many there are).
    require_audit
        Refuse where the model was not audited by rounds and by canaries; else the statement says that it was not.
    """
    from sottovoce.commands.release import release_run
    from sottovoce.reporting.statement_text import would_have_seen

    result = release_run(run, out, most_exposure=most_exposure, require_audit=require_audit).to_json()
    if json:
        print_json(result)
    elif result["released"]:
        print(f"released: {out}")
        print(f"anyone who has it finds its ε with: {result['check']}")
        for one in result["audits"]:
            noticed = f"; it {would_have_seen(one['would_notice'])}" if "would_notice" in one else ""
            print(f"audit by {one['audit']}: {one['result']}{noticed}")
        print(f"the secrets of {run} are erased; erase copies of them too")
    else:
        print(f"not released: {run}")
        for reason in result["reasons"]:
            print(f"- {reason}")
    if not result["released"]:
        sys.exit(1)
