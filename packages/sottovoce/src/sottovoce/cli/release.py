"""`sotto release`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sottovoce.cli.display import at_terminal, confirmed, print_json, shown_epsilon
from sottovoce.cli.options import Flag, Json, Run, log, option
from sottovoce_evidence.errors import SottoError, plain_number

if TYPE_CHECKING:
    from sottovoce.commands.release import Release


def release(
    run: Run,
    *,
    out: Annotated[Path, option("New folder for what may be public.")],
    most_exposure: Annotated[float | None, option("Bits by which a secret of one user may be exposed.")] = None,
    require_audit: Annotated[Flag, option("Refuse a model that was not audited by rounds and by canaries.")] = False,
    license: Annotated[str, option("Licence of the model, for its README.md: apache-2.0.")] = "other",
    language: Annotated[str | None, option("Language of the model, for its README.md: en.")] = None,
    key: Annotated[Path | None, option("Ed25519 key that signs (default: yours, made on first use).")] = None,
    yes: Annotated[Flag, option("Do not ask; needed where there is no terminal, and with --json.")] = False,
    dry_run: Annotated[Flag, option("Show what would be written; change nothing.")] = False,
    json: Json = False,
) -> None:
    """Write what may be public of a run into a signed folder, if no check speaks against it.

    The run must be private, its ledger whole, and no audit may contradict the claim. The run's secrets, the keys of its
    noise, are then erased, and it cannot be resumed any more. Otherwise: exit status 1, every reason, and no change.

    It cannot be undone, so it asks first; where nobody can be asked, it is refused without `--yes`.

    Examples:
        sotto release run --out released
    """
    from sottovoce.commands.release import release_run
    from sottovoce.commands.release_folder import Publication
    from sottovoce.runs.folder import ONNX

    publication = Publication(license, language, key)
    released = partial(
        release_run, run, out, most_exposure=most_exposure, require_audit=require_audit, publication=publication
    )
    result = released(dry_run=True)
    if not result.reasons and not dry_run:
        if not yes and (json or not at_terminal()):
            raise SottoError(f"releasing {run} cannot be undone, and nobody is asked here: give --yes, or --dry-run")
        if not json:
            _show_plan(result, run)
        unchanged = "nothing was released or changed"
        if not yes and not confirmed(f"release {run}?", unchanged):
            return print(unchanged)
        if not json:
            onnx = "writing ONNX, " if f"{ONNX}/" in result.files else ""
            log(f"writing {out}: {onnx}signing, and checking it as `sotto verify` does ...")
        try:
            result = released(dry_run=False)
        except KeyboardInterrupt:
            print(_where_it_stands(result, run), file=sys.stderr)
            raise
    if json:
        print_json(result.to_json())
    elif result.reasons:
        print("\n- ".join([f"not released: {run}", *result.reasons]))
    elif result.released:
        _show_released(result, run)
    else:
        _show_plan(result, run)
        print("nothing was released or changed (--dry-run)")
    return sys.exit(1) if result.reasons else None


def _where_it_stands(plan: Release, run: Path) -> str:
    """After Ctrl-C. Secrets are erased just before the folder gets its name."""
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.secrets import Secrets

    out = Path(plan.out)
    if out.is_dir() and any(out.iterdir()):
        return f"released before it was stopped: {out}"
    if plan.again or Secrets.are_whole(RunFolder.open(run).secrets):
        return f"nothing was released, and {run} is as it was; the same command begins anew"
    return f"nothing was released, but the secrets of {run} are erased; give the same command again"


def _show_plan(plan: Release, run: Path) -> None:
    print(f"to be released: {plan.out}, with ε = {shown_epsilon(plan.epsilon)} at δ = {plain_number(plan.delta)}")
    print(f"files: {', '.join(plan.files)}")
    for note in plan.notes:
        print(f"note: {note}")
    print(f"signed by: {plan.signer}")
    then = "the run's secrets are erased, and it cannot be resumed"
    if plan.again:
        then = f"{run} was released before, and its secrets are erased already: this is a further copy"
    print(f"anyone who gets the folder has the model for good; {then}")


def _show_released(result: Release, run: Path) -> None:
    from sottovoce_evidence.statement_text import would_have_seen

    print(f"released: {result.out}")
    print(f"anyone who has it checks it with: {result.check}")
    for one in result.audits:
        noticed = "" if one.would_notice is None else f"; it {would_have_seen(one.would_notice)}"
        print(f"audit by {one.audit}: {one.result}{noticed}")
    if result.again:
        print(f"a further copy: {run} was released before, and its secrets were erased then")
    else:
        print(f"the secrets of {run} are erased; erase copies of them too")
