"""`sotto audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sottovoce.cli.display import print_json, print_rows, progress_of_steps, shown_epsilon
from sottovoce.errors import SottoError

Flag = Annotated[bool, Parameter(negative=())]


def audit(
    run: Path,
    *without: Path,
    tails: Flag = False,
    leave_out: int = 0,
    texts: int = 30_000,
    delta: float | None = None,
    seed: int = 0,
    json: Flag = False,
) -> None:
    """Measure how leaky a run's model is: an estimate beside what is proved, for the owner only.

    Parameters
    ----------
    run
        Folder of a run.
    without
        Runs of the same recipe on stores that lack one of its users each.
    tails
        Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write.
    leave_out
        Instead of runs without a user: train the recipe again, with everybody and without each of so many users.
    texts
        Texts of 10 words that each model of a pair writes.
    delta
        δ at which ε is estimated (default: the run's).
    seed
        Chooses the users left out, and the texts.
    json
        One JSON object, no progress.
    """
    if not tails:
        raise SottoError("say what to audit: --tails")
    from sottovoce.jobs.auditing import audit_tails

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        result = audit_tails(
            run, without, leave_out=leave_out, texts=texts, delta=delta, seed=seed, progress=progress
        )  # fmt: skip
    if json:
        print_json(result)
        return
    print_rows(f"Tails of c(s) = P(s|θ)/P(s|θ'), {run}", [_row(pair) for pair in result["pairs"]])
    at, proved = f"at δ = {result['delta']:g}", result["proved"]
    print(f"estimated: ε = {result['epsilon']:.3g} {at}, the largest of {len(result['pairs'])}; {result['note']}")
    if proved["private"]:
        print(f"proved:    ε = {shown_epsilon(proved['epsilon'])} at δ = {proved['delta']:g}, for every user")
    else:
        print("proved:    nothing; this run has no guarantee, and ε is infinite")
    if result["rejected"]:
        print(
            f"{result['rejected']} of {len(result['pairs'])} tails are not Pareto's (p-value below "
            f"{result['level']:g}): their ε means little"
        )
    print(result["about"])
    print(f"for the owner only, not covered by any ε: {run / 'audit'}")


def _row(pair: dict[str, Any]) -> dict[str, str]:
    return {
        "pair": pair["pair"],
        "texts of": pair["texts_of"],
        "k": f"{pair['k']:,}",
        "α": _shown(pair["alpha"]),
        "C": _shown(pair["constant"]),
        "√k D": _shown(pair["statistic"]),
        "p-value": _shown(pair["p_value"]),
        "ε": f"{pair['epsilon']:.3g}",
    }


def _shown(value: float | str | None) -> str:
    return "–" if value is None else "∞" if isinstance(value, str) else f"{value:.3g}"
