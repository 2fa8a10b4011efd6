"""After the fact: what ledgers add up to, by any accountant and at any δ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottoError
from sottovoce.planning.plan import plain_json
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import Event, NonPrivate
from sottovoce.runs.ledger import LedgerContents, read_ledger


@dataclass(frozen=True)
class Figures:
    """What some releases add up to. Where they have no common ε, every `epsilon` is None and `why` says it."""

    relation: str | None
    releases: int
    events: list[dict[str, Any]]
    epsilons: list[dict[str, float | None]]
    why: str | None


@dataclass(frozen=True)
class Judgement:
    """The figures of each ledger, and of all together."""

    accountant: str
    ledgers: list[dict[str, Any]]
    total: Figures

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values. JSON has no infinity, so an infinite figure is the string "infinity"."""
        name = accounting.accountant_name(self.accountant)
        main = self.total.epsilons[0]
        return plain_json({**main, **asdict(self), "accountant_name": name})


def judge_ledgers(paths: Sequence[Path], deltas: Sequence[float], accountant: str | None = None) -> Judgement:
    """ε at each δ of all that the ledgers of runs or stores say was released, apart and together."""
    accountant = accountant or accounting.default_accountant("poisson")
    if not deltas:
        raise SottoError("delta is missing: give one or more, well below 1/users; an ε holds at its δ only")
    ledgers = [read_ledger(path) for path in paths]
    _refuse_double_counting(ledgers)
    total: Counter[Event] = Counter()
    for ledger in ledgers:
        total.update(dict(ledger.spent))
    return Judgement(
        accountant,
        [
            {"path": str(ledger.path), "kind": ledger.kind, "runs": list(ledger.runs)}
            | asdict(_figures(ledger.spent, deltas, accountant))
            for ledger in ledgers
        ],
        _figures(list(total.items()), deltas, accountant),
    )


def _figures(spent: list[tuple[Event, int]], deltas: Sequence[float], accountant: str) -> Figures:
    relation, why = _relation(spent)
    answers: list[float] | list[None] = [None] * len(deltas) if why else accounting.epsilons(spent, deltas, accountant)
    return Figures(
        relation,
        sum(count for _, count in spent),
        [{"event": event.to_json(), "count": count} for event, count in spent],
        [{"delta": delta, "epsilon": answer} for delta, answer in zip(deltas, answers, strict=True)],
        why,
    )


def _relation(spent: list[tuple[Event, int]]) -> tuple[str | None, str | None]:
    """The relation under which these releases have an ε, or why there is none."""
    if any(isinstance(event, NonPrivate) or event.noise_multiplier == 0 for event, _ in spent):
        return None, None  # ε is infinite under any
    sampled = {event.relation for event, _ in spent if isinstance(event, accounting.SampledGaussian)}
    if len(sampled) > 1:
        return None, (
            "some rounds protect from adding or removing one user (sampling='poisson'), others from replacing one "
            "(sampling='fixed'): they have no common ε, and neither figure holds for both"
        )
    alone = {event.relation for event, _ in spent if not isinstance(event, NonPrivate)}
    return next(iter(sampled or alone), None), None


def _refuse_double_counting(ledgers: Sequence[LedgerContents]) -> None:
    """One release must not be counted twice: a run is charged to its store's ledger too, and a file may be a copy."""
    for index, one in enumerate(ledgers):
        for other in ledgers[index + 1 :]:
            shared = min(len(one.lines), len(other.lines))
            if shared and one.lines[:shared] == other.lines[:shared]:
                raise SottoError(
                    f"{one.path} and {other.path} are the same ledger, or one is an earlier copy of the other: their "
                    f"releases would count twice; give the longer one alone"
                )
            for run, store in ((one, other), (other, one)):
                if run.kind == "run" and store.kind == "store" and set(run.runs) & set(store.runs):
                    raise SottoError(
                        f"{store.path} is charged for run {run.runs[0]} already, whose ledger is {run.path}: its "
                        f"rounds would count twice; leave one of the two out"
                    )
