"""After the fact: what ledgers add up to, by any accountant and at any δ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.runs.ledger import NO_RUNS, LedgerContents, read_ledger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Event
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Facts, Json, as_json


@dataclass(frozen=True)
class Figures(Facts):
    """What some releases add up to, under the relation that they have in common; none where no ε is finite."""

    relation: str | None
    releases: int
    events: list[Json]
    epsilons: list[dict[str, float]]
    epsilon_replaced: float | None  # at the first δ; the moments accountant has none


@dataclass(frozen=True)
class Judgement(Facts):
    """The figures of each ledger, and of all together.

    Held-out users of a ledger have figures of their own (`held_out`). In the total of several ledgers all charges
    compose: who is held out of one store may be trained on in another.
    """

    accountant: str
    ledgers: list[Json]
    total: Figures

    def to_json(self) -> Json:
        name = accounting.accountant_name(self.accountant)
        return {**as_json(self.total.epsilons[0]), **super().to_json(), "accountant_name": name}


def judge_ledgers(paths: Sequence[Path], deltas: Sequence[float], accountant: str | None = None) -> Judgement:
    """ε at each δ of all that was released by ledgers, apart and together.

    Args:
        paths: files of ledgers, or folders of runs or stores that hold one.
        deltas: at which ε is computed.
        accountant: "pld", "rdp" or "moments"; by default the tightest that has an answer for all that was released.
    """
    if not deltas:
        text = "{delta.name} is missing: give one or more, well below 1/users; an ε holds at its δ only"
        raise SettingError(text, delta=None)
    ledgers = [read_ledger(path / "ledger.jsonl" if path.is_dir() else path) for path in paths]
    _refuse_double_counting(ledgers)
    if accountant is None:
        known = [event.accountants for ledger in ledgers for event, _ in ledger.spent]
        tightest = accounting.DEFAULT_ACCOUNTANT
        accountant = tightest if all(tightest in each for each in known) else "rdp"
    total: Counter[Event] = Counter()
    for ledger in ledgers:
        total.update(dict(ledger.spent))
        if len(ledgers) > 1:
            total.update(dict(ledger.held_out))
    each = [
        {"path": str(ledger.path), "kind": ledger.kind, "runs": list(ledger.runs), "notes": ledger.notes}
        | _figures(ledger.spent, deltas, accountant).to_json()
        | ({"held_out": _figures(ledger.held_out, deltas, accountant).to_json()} if ledger.held_out else {})
        for ledger in ledgers
    ]
    return Judgement(accountant, each, _figures(list(total.items()), deltas, accountant))


def _figures(spent: list[tuple[Event, int]], deltas: Sequence[float], accountant: str) -> Figures:
    answers = accounting.epsilons(spent, deltas, accountant)
    return Figures(
        accounting.relation_of(event for event, _ in spent),
        sum(count for _, count in spent),
        [{"event": event.to_json(), "count": count} for event, count in spent],
        [{"delta": delta, "epsilon": answer} for delta, answer in zip(deltas, answers, strict=True)],
        None if accountant == "moments" else accounting.epsilon(spent, deltas[0], accountant, replaced=True),
    )


def _refuse_double_counting(ledgers: Sequence[LedgerContents]) -> None:
    """One release must not be counted twice: a run's store and its release have it too."""
    for index, one in enumerate(ledgers):
        for other in ledgers[index + 1 :]:
            shared = min(len(one.lines), len(other.lines))
            if shared and one.lines[:shared] == other.lines[:shared]:
                same = f"{one.path} and {other.path} are the same ledger, or one is an earlier copy of the other"
                raise SottoError(f"{same}: their releases would count twice; give the longer one alone")
            if twice := [run for run in one.runs if run in other.runs and run not in NO_RUNS]:
                both = f"{one.path} and {other.path} are both charged for run {twice[0]}"
                raise SottoError(f"{both}: its rounds would count twice; leave one of the two out")
