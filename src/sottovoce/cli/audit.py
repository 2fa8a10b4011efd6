"""`sotto audit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sottovoce.cli.display import least_epsilon, print_json, print_rows, progress_of_steps, shown_epsilon
from sottovoce.errors import SottoError

Flag = Annotated[bool, Parameter(negative=())]


def audit(
    run: Path,
    *without: Path,
    tails: Flag = False,
    rounds: int | None = None,
    canaries: Flag = False,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    membership: Flag = False,
    references: int = 0,
    users: int = 2000,
    leave_out: int = 0,
    texts: int = 30_000,
    delta: float | None = None,
    confidence: float | None = None,
    seed: int = 0,
    json: Flag = False,
) -> None:
    """Measure how leaky a run is: what an attack finds beside what is proved, for the owner only.

    Without an attack named: all that was found so far. With --rounds or --canaries, exit status 1 says that more leaks
    than is claimed.

    Parameters
    ----------
    run
        Folder of a run.
    without
        With --tails: runs of the same recipe on stores that lack one of its users each. With --canaries: runs with
        secrets planted, drawn beside this one.
    tails
        Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write.
    rounds
        Play so many single rounds on made-up users, with and without one of them; measure their noise, guess from each
        round's noised update whether that one was there, and compare the noise multiplier and the ε that shows with
        those that are claimed for a round.
    canaries
        Rank the secrets that the recipe's [audit] planted among all that could stand in their place, and guess from
        every round's noised update, and from the model, which canary users were in: a lower bound on the run's ε. A run
        without canaries has a twin trained for this audit alone, which takes as long as the run and is not kept.
    settings
        What is planted in that twin: audit.key=value (default: audit.users=100 audit.secrets=6).
    membership
        Tell users of the train split from users held out by how well the model predicts them; AUC, and how many are
        found at few false alarms.
    references
        For --membership: also by as many models trained by the recipe, each with a random half of these users. Even,
        from 4 on; each costs a training.
    users
        For --membership: at most so many of each kind.
    leave_out
        Instead of runs without a user: train the recipe again, with everybody and without each of so many users.
    texts
        Texts of 10 words that each model of a pair writes.
    delta
        δ at which ε is estimated (default: the run's).
    confidence
        Of what --rounds finds (default: 0.999, as it can stop a release), of the lower bounds of --canaries and of the
        intervals of --membership (default: 0.95).
    seed
        Chooses the users left out, and the texts; or the coins and the noise of rounds or of a twin; or the users told
        apart.
    json
        One JSON object, no progress.
    """
    chosen = {
        "--tails": tails, "--rounds 1000": rounds is not None, "--canaries": canaries, "--membership": membership,
    }  # fmt: skip
    if sum(chosen.values()) > 1:
        raise SottoError(f"audit by one of these at a time: {', '.join(chosen)}")
    if without and not (tails or canaries):
        raise SottoError("runs to compare are for --tails or --canaries; add one of them")
    if leave_out and not tails:
        raise SottoError("--leave-out is for --tails; add it")
    if settings and not canaries:
        raise SottoError("--set says what is planted in a twin; it is for --canaries")
    if references and not membership:
        raise SottoError(f"--references {references} is for --membership; add it")
    if confidence is None:
        confidence = 0.95 if rounds is None else 0.999
    if canaries:
        _audit_canaries(run, without, settings or (), delta, confidence, seed, json)
    elif membership:
        _audit_membership(run, references, users, confidence, seed, json)
    elif rounds is not None:
        _audit_rounds(run, rounds, delta, confidence, seed, json)
    elif tails:
        _audit_tails(run, without, leave_out, texts, delta, seed, json)
    else:
        _tell_findings(run, json)


def _audit_tails(
    run: Path, without: Sequence[Path], leave_out: int, texts: int, delta: float | None, seed: int, json: bool
) -> None:
    from sottovoce.commands.audit_tails import audit_tails

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        result = audit_tails(
            run, without, leave_out=leave_out, texts=texts, delta=delta, seed=seed, progress=progress
        ).to_json()
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
    from sottovoce.commands.audit_rounds import audit_rounds

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        result = audit_rounds(run, rounds=rounds, delta=delta, confidence=confidence, seed=seed, progress=progress)
    result = result.to_json()
    if json:
        print_json(result)
    else:
        _tell_rounds(result)
    if result["contradicted"]:
        sys.exit(1)


def _tell_rounds(result: dict[str, Any]) -> None:
    from sottovoce.reporting.statement_text import would_have_seen

    at, sure = f"at δ = {result['delta']:g}", f"at {result['confidence']:g} confidence"
    claimed = shown_epsilon(result["claimed"])
    print(
        f"claimed: noise of {result['claimed_multiplier']:g} times the sensitivity, so ε <= {claimed} {at}, for round "
        f"{result['round']} and somebody who surely takes part"
    )
    print(f"shown:   noise of at most {shown_epsilon(result['shown_multiplier'])} times the sensitivity, {sure}")
    print(
        f"         ε >= {least_epsilon(result['shown'])} {at}: of {result['judged']:,} rounds {result['correct']:,} "
        f"were guessed right, and perfect guesses would show {result['most']:.3g}"
    )
    if result["reach"] < 0.99:
        print(
            f"the canary's update is {result['reach']:.0%} of the clip norm: guesses about a louder one would show more"
        )
    if result["contradicted"]:
        print("CONTRADICTED: rounds leak more than is claimed. Do not release anything of this run")
        return
    print(f"not contradicted; the audit {would_have_seen(result['would_notice'])}, 99 times in 100: {result['note']}")


def _audit_canaries(
    run: Path, beside: Sequence[Path], settings: Sequence[str], delta: float | None, confidence: float, seed: int,
    json: bool,
) -> None:  # fmt: skip
    from sottovoce.commands.audit_canaries import audit_canaries

    with progress_of_steps(f"twin of {run.name}", quiet=json) as progress:
        result = audit_canaries(
            run, beside, settings=settings, delta=delta, confidence=confidence, seed=seed, progress=progress
        ).to_json()
    if json:
        print_json(result)
    else:
        _tell_canaries(run, result)
    if result["contradicted"]:
        sys.exit(1)


def _tell_canaries(run: Path, result: dict[str, Any]) -> None:
    print(f"audited: {result['of']}")
    if result["curve"]:
        curves = [(result["run"], result["curve"]), *((other["run"], other["curve"]) for other in result["beside"])]
        most = max(one["most"] for one in result["exposure"])
        print_rows(
            f"Exposure of secrets, in bits; {most:.3g} at most",
            [{"run": name, **_curve_row(point)} for name, points in curves for point in points],
        )
    one_run = result["one_run"]
    if one_run:
        at = f"at δ = {result['delta']:g}"
        print(f"claimed: ε <= {shown_epsilon(result['claimed'])} {at}, for the {result['round']} rounds that were done")
        print(
            f"shown:   ε >= {least_epsilon(one_run['shown'])} {at}, at {result['confidence']:g} confidence; of "
            f"{one_run['canaries']:,} canary users {_guesses(one_run['rounds'])} from the noised updates and "
            f"{_guesses(one_run['model'])} from the model; perfect guesses would show {one_run['rounds']['most']:.3g}"
        )
    elif result["canaries"]["users"]:
        print("who of the canary users was in is not known any more: the run's secrets are gone")
    if result["contradicted"]:
        print("CONTRADICTED: the run leaks more than is claimed. Do not release anything of it")
    elif one_run:
        print(f"not contradicted: {result['note']}")
    print(f"for the owner only, not covered by any ε: {run / 'audit'}")


def _guesses(found: dict[str, Any]) -> str:
    return f"{found['correct']:,} of {found['guesses']:,} were guessed right"


def _curve_row(point: dict[str, Any]) -> dict[str, str]:
    return {
        "held by": f"{point['holders']:,}",
        "secrets": f"{point['secrets']:,}",
        "least": f"{point['least']:.1f}",
        "median": f"{point['median']:.1f}",
        "largest": f"{point['largest']:.1f}",
        "found by beam search": f"{point['extracted']:,}",
    }


def _audit_membership(run: Path, references: int, users: int, confidence: float, seed: int, json: bool) -> None:
    from sottovoce.commands.audit_membership import audit_membership

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        result = audit_membership(
            run, references=references, users=users, confidence=confidence, seed=seed, progress=progress
        ).to_json()
    if json:
        print_json(result)
        return
    sides = f"{result['in_users']:,} users in, {result['out_users']:,} out"
    print_rows(f"Membership: {sides}", [_attack_row(attack) for attack in result["attacks"]])
    print("found at 0.1%: the share of in users found where that share of out users is taken for one")
    print(f"in brackets intervals at {result['confidence']:g} confidence; an AUC of 0.5 is a guess; {result['note']}")
    few = sorted({rate["fpr"] for attack in result["attacks"] for rate in attack["rates"] if rate["too_few"]})
    if few:
        rates = " and ".join(f"{rate:.1%}" for rate in few)
        print(
            f"{result['out_users']:,} out users are too few for false alarms of {rates}: there, found is who scores "
            f"above all of them"
        )
    print(f"each user joined {result['rounds_a_user']:.3g} rounds on average")
    print(f"for the owner only, not covered by any ε: {run / 'audit'}")


def _attack_row(attack: dict[str, Any]) -> dict[str, str]:
    rates = {
        f"found at\n{rate['fpr']:.1%}": f"{rate['tpr']:.1%} ({100 * rate['low']:.1f}–{100 * rate['high']:.1f})"
        for rate in attack["rates"]
    }
    between = f"{attack['auc']:.3f} ({attack['low']:.3f}–{attack['high']:.3f})"
    return {"attack": attack["attack"], "AUC": between, **rates}


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


def _tell_findings(run: Path, json: bool) -> None:
    from sottovoce.commands.report import read_findings
    from sottovoce.runs.folder import RunFolder

    rows = read_findings(RunFolder.open(run), str(run))
    if json:
        print_json({"run": run.resolve().name, "findings": [row.to_json() for row in rows]})
        return
    for row in rows:
        print(f"{row.name} ({row.kind}): {row.result}")
        print(f"    {row.about}" if row.was_run or not row.command else f"    {row.command}")
