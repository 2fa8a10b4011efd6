"""`sotto audit` and its attacks: rounds, canaries, tails, membership."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from sottovoce.cli.display import least_epsilon, print_json, print_rows, progress_of_steps, shown_epsilon
from sottovoce.cli.options import Json, Run, Strings, option
from sottovoce_evidence.errors import count_of, plain_number, plural
from sottovoce_evidence.files import Facts

if TYPE_CHECKING:
    from sottovoce.audit import results

ATTACKS = ("rounds", "canaries", "tails", "membership")
Delta = Annotated[float | None, option("δ at which ε is estimated (default: the run's).")]

app = cyclopts.App(
    name="audit",
    help="Measure how leaky a run is: what attacks find, next to what is proved. For the owner only.\n\nWithout an "
    "attack: all that was found so far. In rounds and canaries, exit status 1 says that more leaks than is claimed.",
)


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
        print(f"{row.what} ({row.kind}): {row.result}")
        print(f"    {row.about}" if row.was_run or not row.command else f"    {row.command}")
        if row.meaning:
            print(f"    means: {row.meaning}")


@app.command
def rounds(
    run: Run,
    *,
    rounds: Annotated[int, option("How many rounds to play.")] = 2000,
    delta: Delta = None,
    confidence: Annotated[float, option("Of what is shown. High, because the result can stop a release.")] = 0.999,
    seed: Annotated[int, option("Chooses the coins and the noise.")] = 0,
    json: Json = False,
) -> None:
    """Play single rounds on made-up users, with and without one of them.

    Measures their noise, and guesses from each round's noised update whether that user was there. Compares the noise
    multiplier and the ε that this shows with those that are claimed for a round.
    """
    from sottovoce.commands.audit_rounds import audit_rounds

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_rounds(run, rounds=rounds, delta=delta, confidence=confidence, seed=seed, progress=progress)
    _show(found, _print_rounds, json)


@app.command
def canaries(
    run: Run,
    *others: Annotated[Path, option("Runs with inserted secrets, shown next to this one.")],
    settings: Annotated[
        Strings, option("What is inserted into a copy (default: audit.users=100 audit.secrets=6).", "--set")
    ] = None,
    delta: Delta = None,
    confidence: Annotated[float, option("Of the lower bounds.")] = 0.95,
    seed: Annotated[int, option("Chooses the coins and the noise of a copy.")] = 0,
    json: Json = False,
) -> None:
    """Look for canaries: inserted secrets, and canary users who were in or out.

    Ranks the secrets that the recipe's [audit] inserted among all that could stand in their place. Guesses from every
    round's noised update, and from the model, which canary users were in: a lower bound on the run's ε. For a run
    without canaries a copy is trained, which takes as long as the run and is not kept.
    """
    from sottovoce.commands.audit_canaries import audit_canaries

    with progress_of_steps(f"copy of {run.name}", quiet=json) as progress:
        found = audit_canaries(
            run, others, settings=settings or (), delta=delta, confidence=confidence, seed=seed, progress=progress
        )
    _show(found, _print_canaries, json, run)


@app.command
def tails(
    run: Run,
    *without: Annotated[Path, option("Runs of the same recipe on stores that lack one of its users each.")],
    leave_out: Annotated[int, option("Instead: train with all users, and without each of this many users.")] = 0,
    texts: Annotated[int, option("Texts of 10 words that each model of a pair writes.")] = 30_000,
    delta: Delta = None,
    seed: Annotated[int, option("Chooses the users left out, and the texts.")] = 0,
    json: Json = False,
) -> None:
    """Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write."""
    from sottovoce.commands.audit_tails import audit_tails

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_tails(run, without, leave_out=leave_out, texts=texts, delta=delta, seed=seed, progress=progress)
    _show(found, _print_tails, json, run)


@app.command
def membership(
    run: Run,
    *,
    references: Annotated[int, option("Shadow models to train, on random halves of these users: even, from 4 on.")] = 0,
    users: Annotated[int, option("At most this many of each kind.")] = 2000,
    confidence: Annotated[float, option("Of the intervals.")] = 0.95,
    seed: Annotated[int, option("Chooses the users.")] = 0,
    json: Json = False,
) -> None:
    """Tell users of the train split from users held out by how well the model predicts them.

    Prints the AUC, and the share of users found at few false alarms.
    """
    from sottovoce.commands.audit_membership import audit_membership

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_membership(
            run, references=references, users=users, confidence=confidence, seed=seed, progress=progress
        )
    _show(found, _print_membership, json, run)


def _show(found: Facts, print_found: Callable[[Any], None], json: bool, owner_only: Path | None = None) -> None:
    """Print what an attack found and what that means. Exit status 1 where it contradicts the claim."""
    from sottovoce.reporting.audit_meaning import meaning

    if json:
        print_json(found.to_json())
    else:
        print_found(found)
        if sentence := meaning(found):
            print(f"means: {sentence}")
        if owner_only:
            print(f"for the owner only, not covered by any ε: {owner_only / 'audit'}")
    if getattr(found, "contradicted", False):
        sys.exit(1)


def _print_rounds(found: results.RoundsResult) -> None:
    from sottovoce_evidence.statement_text import would_have_seen

    at, sure = f"at δ = {plain_number(found.delta)}", f"at {found.confidence:g} confidence"
    print(
        f"claimed: noise of {found.claimed_multiplier:g} times the sensitivity, so ε <= {shown_epsilon(found.claimed)} "
        f"{at}, for round {found.round} and a user who surely takes part"
    )
    print(f"shown:   noise of at most {shown_epsilon(found.shown_multiplier)} times the sensitivity, {sure}")
    print(
        f"         ε >= {least_epsilon(found.shown)} {at}: of {found.judged:,} rounds {found.correct:,} "
        f"were guessed right, and perfect guesses would show {found.most:.3g}"
    )
    if found.reach < 0.99:
        print(f"the canary's update is {found.reach:.0%} of the clip norm; a longer one would show more")
    if found.contradicted:
        print("CONTRADICTED: rounds leak more than is claimed. Do not release anything of this run")
        return
    print(f"not contradicted; the audit {would_have_seen(found.would_notice)}, 99 times in 100: {found.note}")


def _print_canaries(found: results.CanariesResult) -> None:
    from sottovoce.reporting.audit_meaning import meaning

    print(f"audited: {found.of}")
    if found.curve:
        curves = [(found.run, found.curve), *((other.run, other.curve) for other in found.beside)]
        most = max(one.most for one in found.exposure)
        rows = [{"run": name, **_curve_row(point)} for name, points in curves for point in points]
        print_rows(f"Exposure of secrets, in bits; {most:.3g} at most", rows)
    one_run = found.one_run
    if one_run:
        at = f"at δ = {plain_number(found.delta)}"
        rows = [_guesses_row(source, guesses) for source, guesses in one_run.attacks.items()]
        print_rows(f"Guesses about {one_run.canaries:,} canary users, each in or out by a coin", rows)
        done = count_of(found.round, "round that was", "rounds that were")
        print(f"claimed: ε <= {shown_epsilon(found.claimed)} {at}, for the {done} done")
        print(
            f"shown:   ε >= {least_epsilon(one_run.shown)} {at}, at {found.confidence:g} confidence; perfect guesses "
            f"would show {one_run.rounds.most:.3g}"
        )
        if math.isfinite(one_run.noise):
            by_curve = max(guesses.by_curve for guesses in one_run.attacks.values() if not math.isnan(guesses.by_curve))
            print(
                f"         at most {shown_epsilon(one_run.noise)} times the claimed noise, if it is of the claimed "
                f"kind; with so much, ε = {least_epsilon(by_curve)}"
            )
        print(f"means:   {meaning(one_run)}")
    elif found.canaries.users:
        print("it is not known any more which canary users were in: the run's secrets are gone")
    if found.contradicted:
        print("CONTRADICTED: the run leaks more than is claimed. Do not release anything of it")
    elif one_run:
        print(f"not contradicted: {found.note}")


def _guesses_row(source: str, guesses: results.Guesses) -> dict[str, str]:
    noise = "–" if math.isnan(guesses.noise) else shown_epsilon(guesses.noise)
    right = f"{guesses.correct:,} of {guesses.guesses:,}"
    return {"from": source, "guessed right": right, "ε at least": least_epsilon(guesses.shown), "noise at most": noise}


def _curve_row(point: results.ExposurePoint) -> dict[str, str]:
    bits = {name: f"{getattr(point, name):.1f}" for name in ("least", "median", "largest")}
    counts = {"held by": f"{point.holders:,}", "secrets": f"{point.secrets:,}"}
    return {**counts, **bits, "found by beam search": f"{point.extracted:,}"}


def _print_tails(found: results.TailsResult) -> None:
    print_rows(f"Tails of c(s) = P(s|θ)/P(s|θ'), {found.run}", [_tail_row(pair) for pair in found.pairs])
    at, proved = f"at δ = {plain_number(found.delta)}", found.proved
    print(f"estimated: ε = {found.epsilon:.3g} {at}, the largest of {len(found.pairs)}; {found.note}")
    if proved and proved.private:
        print(f"proved:    ε = {shown_epsilon(proved.epsilon)} at δ = {plain_number(proved.delta)}, for every user")
    else:
        print("proved:    nothing; this run has no guarantee, and ε is infinite")
    if found.rejected:
        tails = f"{found.rejected} of {len(found.pairs)} tails {plural(found.rejected, 'is', 'are')} not Pareto's"
        print(f"{tails} (p-value below {found.level:g}): their ε means little")
    print(found.about)


def _tail_row(pair: results.TailPair) -> dict[str, str]:
    figures = {"α": pair.alpha, "C": pair.constant, "√k D": pair.statistic, "p-value": pair.p_value, "ε": pair.epsilon}
    shown = {name: "–" if math.isnan(value) else f"{value:.3g}".replace("inf", "∞") for name, value in figures.items()}
    return {"pair": pair.pair, "texts of": pair.texts_of, "k": f"{pair.k:,}", **shown}


def _print_membership(found: results.MembershipResult) -> None:
    title = f"Membership: {found.in_users:,} users in, {found.out_users:,} out"
    print_rows(title, [_attack_row(attack) for attack in found.attacks])
    print("found at 0.1%: the share of in users found where that share of out users is taken for one")
    print(f"in brackets intervals at {found.confidence:g} confidence; an AUC of 0.5 is a guess; {found.note}")
    few = sorted({rate.fpr for attack in found.attacks for rate in attack.rates if rate.too_few})
    if few:
        rates = " and ".join(f"{rate:.1%}" for rate in few)
        out = f"{found.out_users:,} out users are too few for false alarms of {rates}"
        print(f"{out}: there, users are found who score above all of them")
    joined = f"{found.rounds_a_user:.3g}"
    print(f"each user joined {joined} {plural(float(joined), 'round')} on average")


def _attack_row(attack: results.AttackResult) -> dict[str, str]:
    rates = {
        f"found at\n{rate.fpr:.1%}": f"{rate.tpr:.1%} ({100 * rate.low:.1f}–{100 * rate.high:.1f})"
        for rate in attack.rates
    }
    return {"attack": attack.attack, "AUC": f"{attack.auc:.3f} ({attack.low:.3f}–{attack.high:.3f})", **rates}
