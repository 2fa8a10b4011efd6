"""What is proved and what was found, in one table: a row for each, also for what was not run, and how to run it.

A bound that is proved, a bound that an attack shows, an estimate and the score of an attack are four kinds of thing;
no row stands for another. What was computed from people's text beyond what the run releases is for the owner alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sottovoce.accounting import rounded_down, rounded_up
from sottovoce.reporting.number_line import Lane
from sottovoce.reporting.wording import epsilon_text, finite, is_private, is_unfinished, percent, plain, would_have_seen

AUDITS = ("rounds", "tails", "canaries", "membership")  # RUN/audit/NAME.json
NOT_RUN, NO_CLAIM = "not run", "nothing is claimed"
HIDDEN = "for the owner"

Found = dict[str, Any] | None


@dataclass(frozen=True)
class Finding:
    """A row. `found` is what the audit wrote; nothing where it was not run."""

    key: str
    name: str
    kind: str
    result: str
    about: str
    command: str = ""  # that would run it
    found: Found = None
    owner: bool = False  # not to be published
    lanes: tuple[Lane, ...] = field(default=())

    @property
    def was_run(self) -> bool:
        return self.found is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "audit": self.key, "what": self.name, "kind": self.kind, "result": self.result, "about": self.about,
            "command": self.command, "owner_only": self.owner, "found": self.found,
        }  # fmt: skip


def findings(
    statement: dict[str, Any], audits: Mapping[str, Found], run: str = "RUN", weights: str | None = None
) -> list[Finding]:
    """All rows of a run, in the order of the table. An audit of other `weights` than the run has is out of date."""
    current = {name: found for name, found in audits.items() if found and found.get("weights") in (None, weights)}
    stale = {name for name, found in audits.items() if found and name not in current}
    canaries = current.get("canaries")
    if canaries and canaries.get("one_run"):  # one file has both
        about = ("claimed", "delta", "confidence", "contradicted", "itself")
        current["one_run"] = {**{name: canaries.get(name) for name in about}, **canaries["one_run"]}
    rows = [
        make(current.get(name), statement)
        for name, make in (
            ("one_run", _one_run), ("rounds", _rounds), ("tails", _tails), ("canaries", _canaries),
            ("membership", _membership),
        )
    ]  # fmt: skip
    rows = [replace(row, result=f"{NOT_RUN} since training went on") if row.key in stale else row for row in rows]
    return [_proved(statement), *(replace(row, command=row.command.replace("RUN", run, 1)) for row in rows)]


def public(rows: Sequence[Finding]) -> list[Finding]:
    """The same rows for anybody: of what is the owner's, not even whether it was run."""
    return [
        replace(
            row, result=HIDDEN, about="computed from people's text, so not on this page (sotto report --internal)",
            command="", found=None, lanes=(),
        )
        if row.owner
        else row
        for row in rows
    ]  # fmt: skip


def lanes_of(rows: Sequence[Finding]) -> list[Lane]:
    return [lane for row in rows for lane in row.lanes]


def _proved(statement: dict[str, Any]) -> Finding:
    name, kind, facts = "Proved", "upper bound", ("private", "epsilon", "delta")
    found = {key: statement[key] for key in facts}
    if not is_private(statement):
        return Finding("proved", name, kind, "nothing: ε is infinite", "this run has no guarantee", found=found)
    projected = ", projected" if is_unfinished(statement) else ""
    result = f"ε ≤ {epsilon_text(statement['epsilon'])} at δ = {plain(statement['delta'])}{projected}"
    lane = Lane("Proved: the run, any user", at_most=finite(statement["epsilon"]))
    return Finding("proved", name, kind, result, "for every user, against whoever has all releases",
                   found=found, lanes=(lane,))  # fmt: skip


def _one_run(found: Found, statement: dict[str, Any]) -> Finding:
    """Written by the audit of canaries. The noised updates it reads are not released one by one: the owner's."""
    row = Finding(
        "one_run", "One run, canary users", "lower bound", NOT_RUN,
        "canary users, each in or out by a coin, guessed from one run", "sotto audit canaries RUN", owner=True,
    )  # fmt: skip
    if not is_private(statement):
        return replace(row, result=NO_CLAIM, found=found)
    if found is None:
        return row
    said = f"{found['canaries']:,} canary users" if isinstance(found.get("canaries"), int) else "canary users"
    return _lower_bound(row, found, "One run, canary users", f"{said}, guessed from one run, of {_model_of(found)}")


def _rounds(found: Found, statement: dict[str, Any]) -> Finding:
    row = Finding(
        "rounds", "Single rounds, a canary", "lower bound", NOT_RUN,
        "rounds of made-up users, with and without a canary", "sotto audit rounds RUN --rounds 2000",
    )  # fmt: skip
    if not is_private(statement):
        return replace(row, result=NO_CLAIM, found=found)
    if found is None:
        return row
    about = "one round of made-up users, for somebody who surely takes part"
    row = _lower_bound(row, found, "One round, somebody in it", about)
    noise, z = finite(found.get("shown_multiplier")), finite(found.get("claimed_multiplier"))
    if noise is None or z is None:  # of version 0.1, which guessed alone
        return row
    result = f"{row.result}; noise of at most {rounded_up(noise)} times the sensitivity, claimed: {plain(z)}"
    seen = "" if found.get("contradicted") else f"; the audit {would_have_seen(found['would_notice'])}"
    return replace(row, result=result, about=row.about + seen)


def _lower_bound(row: Finding, found: dict[str, Any], lane: str, about: str) -> Finding:
    """What an attack shows, beside what is claimed for the same thing."""
    shown, claimed = finite(found.get("shown")), finite(found.get("claimed"))
    at = f" at δ = {plain(found['delta'])}" if finite(found.get("delta")) is not None else ""
    result = "–" if shown is None else f"ε ≥ {rounded_down(shown)}{at}"
    if (confidence := finite(found.get("confidence"))) is not None:
        result += f", {100 * confidence:.4g}% confidence"
    about += f"; claimed: ε ≤ {epsilon_text(claimed)}; "
    about += "CONTRADICTED, more than is claimed" if found.get("contradicted") else "below it, which proves nothing"
    return replace(row, result=result, about=about, found=found, lanes=(Lane(lane, claimed, shown),))


def _tails(found: Found, statement: dict[str, Any]) -> Finding:
    del statement
    row = Finding(
        "tails", "Tails of c(s)", "estimate", NOT_RUN, "models with and without a user",
        "sotto audit tails RUN --leave-out 5", owner=True,
    )  # fmt: skip
    if found is None:
        return row
    epsilon, pairs = finite(found.get("epsilon")), len(found.get("pairs", []))
    result = "–" if epsilon is None else f"ε ≈ {epsilon:.3g} at δ = {plain(found.get('delta'))}"
    rejected = found.get("rejected", 0)
    law = f"{rejected} of them not Pareto's, whose ε means little" if rejected else "all of which pass for Pareto's"
    about = f"the largest of {pairs} tails, {law}; {found.get('note', 'an estimate')}; {found.get('about', '')}"
    lane = Lane("Tails: an estimate", estimate=epsilon)
    return replace(row, result=result, about=about, found=found, lanes=(lane,))


def _canaries(found: Found, statement: dict[str, Any]) -> Finding:
    del statement
    row = Finding(
        "canaries", "Exposure of canaries", "measured", NOT_RUN, "secret texts that were planted, ranked among others",
        "sotto audit canaries RUN", owner=not _is_itself(found),
    )  # fmt: skip
    if found is None:
        return row
    bits = [one["bits"] for one in found.get("exposure", []) if finite(one.get("bits")) is not None]
    if not bits:
        return replace(row, result="no secret was planted", about=f"of {_model_of(found)}", found=found)
    extracted = sum(bool(one.get("extracted")) for one in found["exposure"])
    about = f"the largest of {len(bits)} secrets, {extracted} of them found by search; of {_model_of(found)}"
    return replace(row, result=f"{max(bits):.1f} bits", about=about, found=found)


def _membership(found: Found, statement: dict[str, Any]) -> Finding:
    del statement
    row = Finding(
        "membership", "Membership of users", "measured", NOT_RUN, "users to train on told from users held out",
        "sotto audit membership RUN --references 8", owner=True,
    )  # fmt: skip
    if found is None:
        return row
    attacks = found.get("attacks", [])
    results = [f"AUC {one['auc']:.3f} ({one['low']:.3f} to {one['high']:.3f})" for one in attacks]
    strongest = max(range(len(attacks)), key=lambda place: attacks[place]["auc"], default=None)
    if strongest is None:
        return replace(row, result="–", found=found)
    others = [f"{one['attack']} {one['auc']:.3f}" for place, one in enumerate(attacks) if place != strongest]
    about = (
        f"{attacks[strongest]['attack']}; {found.get('in_users', 0):,} users in and {found.get('out_users', 0):,} out, "
        f"at {percent(found.get('confidence', 0.95), 0)} confidence; 0.5 is a guess"
    )
    about += f"; the largest of {len(attacks)}: {', '.join(others)}" if others else ""
    return replace(row, result=results[strongest], about=about, found=found)


def _is_itself(found: Found) -> bool:
    """Were the canaries planted in the released model? Another was trained on the same people, and nobody was charged.

    What was not run is nobody's secret.
    """
    return found is None or bool(found.get("itself"))


def _model_of(found: dict[str, Any]) -> str:
    return "this model" if found.get("itself") else "a twin trained for the audit"
