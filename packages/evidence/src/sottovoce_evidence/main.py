"""`sotto-verify`: verify a release without the library that trained it. `sotto verify` prints the same."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence

from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError, plain_number, printable
from sottovoce_evidence.statement_text import LOUD
from sottovoce_evidence.verify import FAILED, UNCHECKED, Verification, verify_release


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when verified, 1 when a check failed or could not be made, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="sotto-verify",
        description="Check the files and the signature of a release, and compute its statement and its ε again.",
    )
    parser.add_argument("folder", help="what `sotto release` wrote")
    parser.add_argument("--signer", help="fingerprint or public key of the owner; no other signature counts")
    parser.add_argument("--unsigned", action="store_true", help="check a release without signature too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no ε
    try:
        found = verify_release(given.folder, signer=given.signer, unsigned=given.unsigned)
    except (SottoError, OSError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    try:
        print(json.dumps(found.to_json(), indent=2) if given.json else "\n".join(lines(found)), flush=True)
    except BrokenPipeError:  # as of `sotto-verify DIR | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if found.verified else 1


def lines(found: Verification) -> Iterator[str]:
    """A verification as a person reads it: what fails or must be known first comes first."""
    for note in (note for note in found.notes if note.startswith(LOUD)):
        yield from map(printable, note.split("\n"))
    width = max((len(check.name) for check in found.checks), default=0)
    wide = max((len(check.result) for check in found.checks), default=0)
    for check in found.checks:
        yield f"{check.name:{width}}  {check.result:{max(wide, 9)}}  {printable(check.found)}"
    if found.delta is not None:
        yield f"ε at δ = {plain_number(found.delta)}:"
        yield f"  {_shown(found.claimed)}  claimed by the statement"
        yield from (f"  {_shown(one.epsilon)}  {one.accountant}" for one in found.epsilons)
    yield from (f"note: {printable(note)}" for note in found.notes if not note.startswith(LOUD))
    yield "\n- ".join(["not proved by this:", *found.not_proved])
    failed, unchecked = ([one.name for one in found.checks if one.result == word] for word in (FAILED, UNCHECKED))
    ends = [f"FAILED: {', '.join(failed)}" if failed else "no check failed"]
    ends += [f"NOT CHECKED: {', '.join(unchecked)}"] * bool(unchecked)
    ends += ["IT IS NOT SIGNED"] * (not found.signed)
    ends += ["get the release again, or ask its owner"] * ("files" in failed)
    yield "; ".join(ends)


def _shown(epsilon: float | None) -> str:
    return "no answer" if epsilon is None else f"{accounting.rounded_up(epsilon, 4):9}"


if __name__ == "__main__":
    sys.exit(main())
