"""`sotto audit` and its attacks: rounds, canaries, tails, membership."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from sottovoce.cli.display import least_epsilon, print_json, print_rows, progress_of_steps, shown_epsilon
from sottovoce.cli.options import Json, Run, log
from sottovoce.errors import SottoError
from sottovoce.files import Json as JsonObject

ATTACKS = ("rounds", "canaries", "tails", "membership")
Delta = Annotated[float | None, Parameter(help="δ at which ε is estimated (default: the run's).")]

app = cyclopts.App(
    name="audit",
    help="Measure how leaky a run is: what attacks find, next to what is proved. For the owner only.\n\nWithout an "
    "attack: all that was found so far. In rounds and canaries, exit status 1 says that more leaks than is claimed.",
)


def modern(arguments: Sequence[str]) -> list[str]:
    """The old spelling of an audit in the new one: `audit RUN --tails` is `audit tails RUN`. It prints a hint."""
    arguments = list(arguments)
    if arguments[:1] != ["audit"] or (arguments[1:2] and arguments[1] in ATTACKS):
        return arguments
    named = [attack for attack in ATTACKS if any(part.split("=")[0] == f"--{attack}" for part in arguments)]
    if not named:
        return arguments
    if len(named) > 1:
        raise SottoError(f"audit by one of these at a time: {', '.join(ATTACKS)}")
    attack = named[0]
    kept = [part for part in arguments[1:] if part != f"--{attack}" or attack == "rounds"]
    log(f"hint: this is now called `sotto audit {attack} RUN`; see sotto audit {attack} --help")
    return ["audit", attack, *kept]


@app.default
def findings(run: Run, *, json: Json = False) -> None:
    """Show what audits found so far."""
    from sottovoce.commands.report import read_findings
    from sottovoce.runs.folder import RunFolder

    rows = read_findings(RunFolder.open(run), str(run))
    if json:
        print_json({"run": run.resolve().name, "findings": [row.to_json() for row in rows]})
        return
    for row in rows:
        print(f"{row.name} ({row.kind}): {row.result}")
        print(f"    {row.about}" if row.was_run or not row.command else f"    {row.command}")


@app.command
def rounds(
    run: Run,
    *,
    rounds: int = 2000,
    delta: Delta = None,
    confidence: float = 0.999,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Play single rounds on made-up users, with and without one of them.

    Measures their noise, and guesses from each round's noised update whether that user was there. Compares the noise
    multiplier and the ε that this shows with those that are claimed for a round.

    Parameters
    ----------
    rounds
        How many rounds to play.
    confidence
        Of what is shown. High, because the result can stop a release.
    seed
        Chooses the coins and the noise.
    """
    from sottovoce.commands.audit_rounds import audit_rounds

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_rounds(run, rounds=rounds, delta=delta, confidence=confidence, seed=seed, progress=progress)
    result = found.to_json()
    if json:
        print_json(result)
    else:
        _print_rounds(result)
    if result["contradicted"]:
        sys.exit(1)


@app.command
def canaries(
    run: Run,
    *others: Path,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    delta: Delta = None,
    confidence: float = 0.95,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Look for canaries: inserted secrets, and canary users who were in or out.

    Ranks the secrets that the recipe's [audit] inserted among all that could stand in their place. Guesses from every
    round's noised update, and from the model, which canary users were in: a lower bound on the run's ε. For a run
    without canaries a copy is trained, which takes as long as the run and is not kept.

    Parameters
    ----------
    others
        Runs with inserted secrets, shown next to this one.
    settings
        What is inserted into a copy: audit.key=value (default: audit.users=100 audit.secrets=6).
    confidence
        Of the lower bounds.
    seed
        Chooses the coins and the noise of a copy.
    """
    from sottovoce.commands.audit_canaries import audit_canaries

    with progress_of_steps(f"copy of {run.name}", quiet=json) as progress:
        found = audit_canaries(
            run, others, settings=settings or (), delta=delta, confidence=confidence, seed=seed, progress=progress
        )
    result = found.to_json()
    if json:
        print_json(result)
    else:
        _print_canaries(run, result)
    if result["contradicted"]:
        sys.exit(1)


@app.command
def tails(
    run: Run,
    *without: Path,
    leave_out: int = 0,
    texts: int = 30_000,
    delta: Delta = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write.

    Parameters
    ----------
    without
        Runs of the same recipe on stores that lack one of its users each.
    leave_out
        Instead of such runs: train the recipe again, with all users and without each of this many users.
    texts
        Texts of 10 words that each model of a pair writes.
    seed
        Chooses the users left out, and the texts.
    """
    from sottovoce.commands.audit_tails import audit_tails

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_tails(run, without, leave_out=leave_out, texts=texts, delta=delta, seed=seed, progress=progress)
    result = found.to_json()
    if json:
        print_json(result)
        return
    print_rows(f"Tails of c(s) = P(s|θ)/P(s|θ'), {run}", [_tail_row(pair) for pair in result["pairs"]])
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
    _print_owner_only(run)


@app.command
def membership(
    run: Run,
    *,
    references: int = 0,
    users: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Tell users of the train split from users held out by how well the model predicts them.

    Prints the AUC, and the share of users found at few false alarms.

    Parameters
    ----------
    references
        Also by this many shadow models trained by the recipe, each with a random half of these users. Even, from 4
        on; each costs a training.
    users
        At most this many of each kind.
    confidence
        Of the intervals.
    seed
        Chooses the users.
    """
    from sottovoce.commands.audit_membership import audit_membership

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_membership(
            run, references=references, users=users, confidence=confidence, seed=seed, progress=progress
        )
    result = found.to_json()
    if json:
        print_json(result)
    else:
        _print_membership(run, result)


def _print_rounds(result: JsonObject) -> None:
    from sottovoce.reporting.statement_text import would_have_seen

    at, sure = f"at δ = {result['delta']:g}", f"at {result['confidence']:g} confidence"
    claimed = shown_epsilon(result["claimed"])
    print(
        f"claimed: noise of {result['claimed_multiplier']:g} times the sensitivity, so ε <= {claimed} {at}, for round "
        f"{result['round']} and a user who surely takes part"
    )
    print(f"shown:   noise of at most {shown_epsilon(result['shown_multiplier'])} times the sensitivity, {sure}")
    print(
        f"         ε >= {least_epsilon(result['shown'])} {at}: of {result['judged']:,} rounds {result['correct']:,} "
        f"were guessed right, and perfect guesses would show {result['most']:.3g}"
    )
    if result["reach"] < 0.99:
        print(
            f"the canary's update is {result['reach']:.0%} of the clip norm: guesses about a longer one would show more"
        )
    if result["contradicted"]:
        print("CONTRADICTED: rounds leak more than is claimed. Do not release anything of this run")
        return
    print(f"not contradicted; the audit {would_have_seen(result['would_notice'])}, 99 times in 100: {result['note']}")


def _print_canaries(run: Path, result: JsonObject) -> None:
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
        print("it is not known any more which canary users were in: the run's secrets are gone")
    if result["contradicted"]:
        print("CONTRADICTED: the run leaks more than is claimed. Do not release anything of it")
    elif one_run:
        print(f"not contradicted: {result['note']}")
    _print_owner_only(run)


def _guesses(found: JsonObject) -> str:
    return f"{found['correct']:,} of {found['guesses']:,} were guessed right"


def _curve_row(point: JsonObject) -> dict[str, str]:
    return {
        "held by": f"{point['holders']:,}",
        "secrets": f"{point['secrets']:,}",
        "least": f"{point['least']:.1f}",
        "median": f"{point['median']:.1f}",
        "largest": f"{point['largest']:.1f}",
        "found by beam search": f"{point['extracted']:,}",
    }


def _print_membership(run: Path, result: JsonObject) -> None:
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
    _print_owner_only(run)


def _attack_row(attack: JsonObject) -> dict[str, str]:
    rates = {
        f"found at\n{rate['fpr']:.1%}": f"{rate['tpr']:.1%} ({100 * rate['low']:.1f}–{100 * rate['high']:.1f})"
        for rate in attack["rates"]
    }
    between = f"{attack['auc']:.3f} ({attack['low']:.3f}–{attack['high']:.3f})"
    return {"attack": attack["attack"], "AUC": between, **rates}


def _tail_row(pair: JsonObject) -> dict[str, str]:
    return {
        "pair": pair["pair"],
        "texts of": pair["texts_of"],
        "k": f"{pair['k']:,}",
        "α": _format(pair["alpha"]),
        "C": _format(pair["constant"]),
        "√k D": _format(pair["statistic"]),
        "p-value": _format(pair["p_value"]),
        "ε": f"{pair['epsilon']:.3g}",
    }


def _format(value: float | str | None) -> str:
    return "–" if value is None else "∞" if isinstance(value, str) else f"{value:.3g}"


def _print_owner_only(run: Path) -> None:
    print(f"for the owner only, not covered by any ε: {run / 'audit'}")
