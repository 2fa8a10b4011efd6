"""`sotto verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from sottovoce.cli.display import print_json, print_table, shown_epsilon
from sottovoce.cli.options import Json, option
from sottovoce_evidence.errors import plain_number, printable


def verify(
    folder: Annotated[Path, option("Folder of a release.")],
    *,
    signer: Annotated[str | None, option("Fingerprint or public key of the owner; no other signature counts.")] = None,
    unsigned: Annotated[bool, option("Check a release that has no signature too: anyone may have made it.")] = False,
    json: Json = False,
) -> None:
    """Check the files and the signature of a release, and compute its ε again by three accountants.

    Exit status 1 if a check fails, or needs code that is not here. It needs neither a GPU nor jax nor the private text.
    """
    from sottovoce.commands.verify import FAILED, LOUD, UNCHECKED, verify_release

    found = verify_release(folder, signer=signer, unsigned=unsigned)
    if json:
        print_json(found.to_json())
    else:
        for note in (note for note in found.notes if note.startswith(LOUD)):
            print(printable(note))
        width = max((len(check.name) for check in found.checks), default=0)
        wide = max((len(check.result) for check in found.checks), default=0)
        for check in found.checks:
            print(f"{check.name:{width}}  {check.result:{max(wide, 9)}}  {printable(check.found)}")
        if found.delta is not None:
            claim = {"claimed by the statement": shown_epsilon(found.claimed or 0.0, 4)}
            computed = {one.accountant: _shown(one.epsilon) for one in found.epsilons}
            computed = computed or {"computed from the ledger": UNCHECKED}
            print_table(f"ε at δ = {plain_number(found.delta)}", claim | computed)
        for note in (note for note in found.notes if not note.startswith(LOUD)):
            print(f"note: {printable(note)}")
        print("\n- ".join(["not proved by this:", *found.not_proved]))
        failed, unchecked = (
            [check.name for check in found.checks if check.result == result] for result in (FAILED, UNCHECKED)
        )
        ends = [f"FAILED: {', '.join(failed)}" if failed else "no check failed"]
        ends += [f"NOT CHECKED: {', '.join(unchecked)}"] * bool(unchecked)
        ends += ["IT IS NOT SIGNED"] * (not found.signed)
        ends += ["get the release again, or ask its owner"] * ("files" in failed)
        print("; ".join(ends))
    if not found.verified:
        sys.exit(1)


def _shown(epsilon: float | None) -> str:
    return "no answer for these rounds" if epsilon is None else shown_epsilon(epsilon, 4)
