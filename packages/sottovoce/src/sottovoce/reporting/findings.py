"""What is proved and what was found, in one table: a row for each, also for what was not run, and how to run it.

A bound that is proved, a bound that an attack shows, an estimate and the score of an attack are four kinds of thing;
no row replaces another. What was computed from people's text beyond what the run releases is for the owner alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce.audit.results import Audits, CanariesResult, Found, MembershipResult, Proved, RoundsResult, TailsResult
from sottovoce.reporting.draw.lanes import Lane
from sottovoce_evidence.accounting import rounded_down
from sottovoce_evidence.errors import count_of
from sottovoce_evidence.files import Facts, Json
from sottovoce_evidence.statement import Statement
from sottovoce_evidence.statement_text import epsilon_text, finite, percent, plain, would_have_seen

NOT_RUN, NO_CLAIM = "not run", "nothing is claimed"
HIDDEN = "not public, run or not"


@dataclass(frozen=True)
class Finding(Facts):
    """A row."""

    audit: str
    what: str
    kind: str
    result: str
    about: str
    command: str = ""  # that would run it
    owner_only: bool = False  # not to be published
    found: Found | None = None  # what the audit wrote; None where it was not run
    lanes: tuple[Lane, ...] = ()
    meaning: str = ""  # of the figures, in a sentence

    @property
    def was_run(self) -> bool:
        return self.found is not None

    def to_json(self) -> Json:
        return {key: value for key, value in super().to_json().items() if key != "lanes"}


@dataclass(frozen=True)
class LowerBound(Found):
    """What the row of an attack on one run has: a lower bound on ε, and the claim for the same thing."""

    claimed: float
    delta: float
    confidence: float
    contradicted: bool
    itself: bool
    canaries: int
    shown: float


def findings(statement: Statement, audits: Audits, run: str = "RUN") -> list[Finding]:
    """All rows of a run, in the order of the table."""
    rows = [
        _one_run(audits.canaries, statement),
        _rounds(audits.rounds, statement),
        _tails(audits.tails),
        _canaries(audits.canaries),
        _membership(audits.membership),
    ]
    outdated = f"{NOT_RUN} since training went on"
    rows = [replace(row, result=outdated) if row.audit in audits.outdated else row for row in rows]
    rows = [_proved(statement), *(replace(row, command=row.command.replace("RUN", run, 1)) for row in rows)]
    return [replace(row, meaning=row.meaning or row.found.sentence) if row.found else row for row in rows]


def public(rows: Sequence[Finding]) -> list[Finding]:
    """The same rows for a public page: of what is the owner's, not even whether it was run."""
    about = "computed from people's text, so not on this page (sotto report --internal)"
    hidden = {"result": HIDDEN, "about": about, "command": "", "found": None, "lanes": (), "meaning": ""}
    return [replace(row, **hidden) if row.owner_only else row for row in rows]


def lanes_of(rows: Sequence[Finding]) -> list[Lane]:
    return [lane for row in rows for lane in row.lanes]


def _proved(statement: Statement) -> Finding:
    found = Proved(statement.private, statement.epsilon, statement.delta)
    row = Finding("proved", "Proved", "upper bound", "nothing: ε is infinite", "this run has no guarantee", found=found)
    if not statement.has_guarantee:
        return row
    projected = ", projected" if statement.is_unfinished else ""
    result = f"ε ≤ {epsilon_text(statement.epsilon)} at δ = {plain(statement.delta)}{projected}"
    lane = Lane("Proved: the run, any user in it", at_most=statement.epsilon)
    return replace(
        row, result=result, about="for every user trained on, against anyone who has all releases", lanes=(lane,)
    )


def _one_run(found: CanariesResult | None, statement: Statement) -> Finding:
    """Written by the audit of canaries. The noised updates it reads are not released one by one: the owner's."""
    name, about = "One run, canary users", "canary users, each in or out by a coin, guessed from one run"
    row = Finding("one_run", name, "lower bound", NOT_RUN, about, "sotto audit canaries RUN", owner_only=True)
    one = None if found is None else found.one_run
    guessed = None
    if found is not None and one is not None:
        claim = (found.claimed, found.delta, found.confidence, found.contradicted, found.itself)
        guessed = LowerBound(*claim, one.canaries, one.shown)
        about = f"{count_of(one.canaries, 'canary user')}, guessed from one run, of {_model_of(found)}"
    if not statement.has_guarantee:
        return replace(row, result=NO_CLAIM, found=guessed)
    if guessed is None or one is None:
        if found is None or not found.canaries.users:
            return row
        return replace(row, about="the run's secrets are gone, and with them which canary users were in", command="")
    return replace(_lower_bound(row, guessed, name, about), meaning=one.sentence)


def _rounds(found: RoundsResult | None, statement: Statement) -> Finding:
    name, about = "Single rounds, a canary", "rounds of made-up users, with and without a canary"
    row = Finding("rounds", name, "lower bound", NOT_RUN, about, "sotto audit rounds RUN --rounds 2000")
    if not statement.has_guarantee:
        return replace(row, result=NO_CLAIM, found=found)
    if found is None:
        return row
    about = "one round of made-up users, for a user who surely takes part"
    row = _lower_bound(row, found, "One round, a user in it", about)
    noise, claimed = epsilon_text(found.shown_multiplier), plain(found.claimed_multiplier)
    result = f"{row.result}; noise of at most {noise} times the sensitivity, claimed: {claimed}"
    reach = f"; the canary's update is {percent(found.reach, 0)} of the clip norm: a longer one would show more"
    about = row.about + (reach if found.reach < 0.99 else "")
    seen = "" if found.contradicted else f"; the audit {would_have_seen(found.would_notice)}, 99 times in 100"
    return replace(row, result=result, about=about + seen)


def _lower_bound(row: Finding, found: RoundsResult | LowerBound, lane: str, about: str) -> Finding:
    """What an attack shows, and what is claimed for the same thing."""
    shown, claimed = finite(found.shown), finite(found.claimed)
    result = "–" if shown is None else f"ε ≥ {rounded_down(shown)} at δ = {plain(found.delta)}"
    result += f", {100 * found.confidence:.4g}% confidence"
    about += f"; claimed: ε ≤ {epsilon_text(claimed)}; "
    wrong, right = "CONTRADICTED, more than is claimed: release nothing of this run", "below it, which proves nothing"
    about += wrong if found.contradicted else right
    return replace(row, result=result, about=about, found=found, lanes=(Lane(lane, claimed, shown),))


def _tails(found: TailsResult | None) -> Finding:
    name, command = "Tails of c(s), Popov et al. 2018", "sotto audit tails RUN --leave-out 5"
    row = Finding("tails", name, "estimate", NOT_RUN, "models with and without a user", command, owner_only=True)
    if found is None:
        return row
    epsilon = finite(found.epsilon)
    result = "–" if epsilon is None else f"ε ≈ {epsilon:.3g} at δ = {plain(found.delta)}"
    law = f"{found.rejected} of them not Pareto's, whose ε means little" if found.rejected else "all pass for Pareto's"
    about = f"the largest of {len(found.pairs)} tails, {law}; {found.note}; {found.about}"
    return replace(row, result=result, about=about, found=found, lanes=(Lane("Tails: an estimate", estimate=epsilon),))


def _canaries(found: CanariesResult | None) -> Finding:
    # What was found in a copy is the owner's: no user was charged for it. What was not run is no secret.
    owner = found is not None and not found.itself
    name, about = "Exposure of canaries", "secret texts that were inserted, ranked among others"
    row = Finding("canaries", name, "measured", NOT_RUN, about, "sotto audit canaries RUN", owner_only=owner)
    if found is None:
        return row
    bits = found.bits
    if not bits:
        return replace(row, result="no secret was inserted", about=f"of {_model_of(found)}", found=found)
    extracted = sum(one.extracted for one in found.exposure)
    about = f"the largest of {len(bits)} secrets, {extracted} of them found by search; of {_model_of(found)}"
    if len(bits) == 1:
        about = f"one secret, {'' if extracted else 'not '}found by search; of {_model_of(found)}"
    return replace(row, result=f"{max(bits):.1f} bits", about=about, found=found)


def _membership(found: MembershipResult | None) -> Finding:
    name, about = "Membership of users", "users to train on, distinguished from users held out"
    command = "sotto audit membership RUN --references 8"
    row = Finding("membership", name, "measured", NOT_RUN, about, command, owner_only=True)
    if found is None:
        return row
    if not found.attacks:
        return replace(row, result="–", found=found)
    best = max(found.attacks, key=lambda attack: attack.auc)
    others = [f"{attack.attack} {attack.auc:.3f}" for attack in found.attacks if attack is not best]
    users = f"{found.in_users:,} users in and {found.out_users:,} out"
    about = f"{best.attack}; {users}, at {percent(found.confidence, 0)} confidence; 0.5 is a guess"
    about += f"; the largest of {len(found.attacks)}: {', '.join(others)}" if others else ""
    about += f"; each user joined {found.rounds_a_user:.3g} rounds on average; {found.note}"
    if few := sorted({rate.fpr for attack in found.attacks for rate in attack.rates if rate.too_few}):
        rates = " and ".join(f"{rate:.1%}" for rate in few)
        about += f"; out users are too few for false alarms of {rates}: there, users are found who score above all"
    result = f"AUC {best.auc:.3f} ({best.low:.3f} to {best.high:.3f})"
    return replace(row, result=result, about=about, found=found)


def _model_of(found: CanariesResult) -> str:
    return "this model" if found.itself else "a copy trained for the audit"
