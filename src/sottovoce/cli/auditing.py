"""`sotto audit`."""

from __future__ import annotations

import sys
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
    rounds: int | None = None,
    leave_out: int = 0,
    texts: int = 30_000,
    delta: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    json: Flag = False,
) -> None:
    """Measure how leaky a run is: what an attack finds beside what is proved, for the owner only.

    With --rounds, exit status 1 says that a round leaks more than is claimed.

    Parameters
    ----------
    run
        Folder of a run.
    without
        Runs of the same recipe on stores that lack one of its users each.
    tails
        Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write.
    rounds
        Play so many single rounds on made-up users, with and without one of them, guess from each round's noised update
        whether they were there, and compare the ε that shows at least with the one that is claimed for a round.
    leave_out
        Instead of runs without a user: train the recipe again, with everybody and without each of so many users.
    texts
        Texts of 10 words that each model of a pair writes.
    delta
        δ at which ε is estimated (default: the run's).
    confidence
        Of the lower bound that --rounds gives.
    seed
        Chooses the users left out, and the texts; or the coins and the noise of the rounds.
    json
        One JSON object, no progress.
    """
    if tails == (rounds is not None):
        raise SottoError("say what to audit, one of the two: --tails, or --rounds 1000")
    if rounds is not None:
        if without or leave_out:
            raise SottoError("--rounds makes up its users: runs to compare and --leave-out are for --tails")
        _audit_rounds(run, rounds, delta, confidence, seed, json)
        return
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


def _audit_rounds(run: Path, rounds: int, delta: float | None, confidence: float, seed: int, json: bool) -> None:
    from sottovoce.jobs.auditing import audit_rounds

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        result = audit_rounds(run, rounds=rounds, delta=delta, confidence=confidence, seed=seed, progress=progress)
    if json:
        print_json(result)
    else:
        _tell_rounds(result)
    if result["contradicted"]:
        sys.exit(1)


def _tell_rounds(result: dict[str, Any]) -> None:
    at = f"at δ = {result['delta']:g}"
    claimed = shown_epsilon(result["claimed"])
    print(f"claimed: ε <= {claimed} {at}, for round {result['round']} and somebody who surely takes part")
    print(
        f"shown:   ε >= {result['shown']:.3g} {at}, at {result['confidence']:g} confidence; of {result['judged']:,} "
        f"rounds {result['correct']:,} were guessed right, and perfect guesses would show {result['most']:.3g}"
    )
    if result["reach"] < 0.99:
        print(f"the canary's update is {result['reach']:.0%} of the clip norm: a louder one would show more")
    if result["contradicted"]:
        print("CONTRADICTED: rounds leak more than is claimed. Do not release anything of this run")
        return
    needed = result["rounds_to_contradict"]
    if needed is None or needed > result["rounds"]:
        much = "no number of rounds" if needed is None else f"--rounds {needed} at the least"
        print(f"so many rounds cannot contradict this claim, however leaky they are; it takes {much}")
    print(f"not contradicted: {result['note']}")


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
