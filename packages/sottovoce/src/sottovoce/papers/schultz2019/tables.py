"""Tables 1 and 2 of Schultz 2019, with the printed values."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from sottovoce.files import write_aside
from sottovoce.papers.engine.results import Facts, Outcome, ResultStore, Spread
from sottovoce.papers.engine.tables import ACCOUNTANT_NAMES, number, percent, table
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce.papers.schultz2019.trials import (
    EXPECTED_USERS,
    PRINTED,
    TABLE_1,
    TABLE_2,
    TABLE_2_NOISE,
    TABLE_2_ROUNDS,
    TABLE_2_USERS,
    TUNED,
    setting,
)
from sottovoce_evidence.accounting import ACCOUNTANTS, SampledGaussian, epsilon, rounded_up

# The orders of TensorFlow Privacy's own script in 2019.
_ORDERS_OF_2019 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0, 512.0)


def epsilon_of_2019(rounds: int, delta: float) -> float:
    """ε by the tool that the paper names: its orders, and its conversion RDP(a) + ln(1/δ)/(a - 1) of 2019."""
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    event = dp_accounting.PoissonSampledDpEvent(
        EXPECTED_USERS / TABLE_2_USERS, dp_accounting.GaussianDpEvent(TABLE_2_NOISE)
    )
    log = logging.getLogger("absl")  # it warns of orders that do not converge; they are left out
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        divergences = rdp.RdpAccountant(_ORDERS_OF_2019).compose(event, rounds).rdp
    finally:
        log.setLevel(level)
    return min(
        float(divergence) + math.log(1 / delta) / (order - 1)
        for order, divergence in zip(_ORDERS_OF_2019, divergences, strict=True)
    )


@lru_cache
def table_2_rows() -> list[Facts]:
    """Every row: ε as printed, by our accountants, and by the tool of 2019."""
    event = SampledGaussian(TABLE_2_NOISE, "poisson", EXPECTED_USERS / TABLE_2_USERS)
    many = TABLE_2_ROUNDS * EXPECTED_USERS
    return [
        {
            "delta": delta,
            "printed": printed,
            **{name: epsilon([(event, TABLE_2_ROUNDS)], delta, name) for name in ACCOUNTANTS},
            "tool_of_2019": epsilon_of_2019(TABLE_2_ROUNDS, delta),
            "tool_of_2019_2000_rounds": epsilon_of_2019(many, delta),
            "pld_2000_rounds": epsilon([(event, many)], delta, "pld"),
        }
        for delta, printed in TABLE_2
    ]


def table_2(size: Size, results: ResultStore, out: Path) -> str:
    cells = table_2_rows()
    write_aside(out / "table-2.json", json.dumps(cells, indent=1).encode() + b"\n")
    many = f"{TABLE_2_ROUNDS * EXPECTED_USERS:,}"
    rows = [
        {
            "δ": f"{row['delta']:.0e}",
            "ε printed": f"{row['printed']:.2f}",
            **{f"ε, {ACCOUNTANT_NAMES[name]}": rounded_up(row[name]) for name in ACCOUNTANTS},
            "ε, tool of 2019": f"{row['tool_of_2019']:.2f}",
            f"the same for {many} rounds": f"{row['tool_of_2019_2000_rounds']:.2f}",
            f"PLD for {many} rounds": rounded_up(row["pld_2000_rounds"]),
        }
        for row in cells
    ]
    note = (
        f"{TABLE_2_USERS:,} users, {EXPECTED_USERS} of them a round, z = {TABLE_2_NOISE:g}, {TABLE_2_ROUNDS} rounds. "
        f"The tool of 2019 is TensorFlow Privacy's RDP with its orders and conversion of that year. It gives every "
        f"printed digit for {many} rounds, and not for {TABLE_2_ROUNDS}: the paper seems to have counted clients, "
        f"{TABLE_2_ROUNDS} times {EXPECTED_USERS}, as steps. Its privacy was better than printed."
    )
    return f"{table(rows)}\n\n{note}"


def table_1(size: Size, results: ResultStore, out: Path) -> str:
    return _printed_and_reached(results, PRINTED)


def tuned_table(size: Size, results: ResultStore, out: Path) -> str:
    return _printed_and_reached(results, TUNED)


def _printed_and_reached(results: ResultStore, rate: float) -> str:
    rows = []
    for training, clip, noise, perplexity, _, accuracy in TABLE_1:
        trial = setting(training, clip, noise, rate)
        outcomes = results.outcomes(trial)
        rows.append(
            {
                "training": training,
                "privacy": trial.label.removeprefix(training).lstrip(", ") or "not private",
                "perplexity printed (round)": f"{perplexity[0]:g} ({perplexity[1]})",
                "perplexity here (round)": best_of(outcomes, "perplexity"),
                "accuracy printed (round)": f"{100 * accuracy[0]:.0f} % ({accuracy[1]})",
                "accuracy here (round)": best_of(outcomes, "top1"),
            }
        )
    return table(rows)


def best_of(outcomes: Sequence[Outcome], measure: str) -> str:
    """The best value and its round, each a mean over seeds."""
    if not outcomes:
        return "not run"
    best = [outcome.best(measure) for outcome in outcomes]
    known = [each for each in best if each is not None]
    if len(known) < len(best):
        return "diverged"
    show: Callable[[Spread], str] = percent if measure == "top1" else number
    return f"{show(Spread.of([value for _, value in known]))} ({fmean(at for at, _ in known):.3g})"


def _at_the_end(outcomes: Sequence[Outcome]) -> str:
    """Top-1 after the last round; a run without a finite loss predicts nothing."""
    if any(math.isinf(outcome.evaluation.perplexity) for outcome in outcomes):
        return "diverged"
    return percent(Spread.of([outcome.evaluation.top1 for outcome in outcomes]))


def setting_table(trials: Sequence[Trial], size: Size, results: ResultStore) -> str:
    """One row a setting: the best of each measure with its round, and the training loss of the clients at the end."""
    rows = []
    for trial in trials:
        outcomes = results.outcomes(trial)
        clients = [curve[-1][1] for outcome in outcomes if (curve := outcome.measured("local loss"))]
        cut = [outcome.clipped_share[-1][1] for outcome in outcomes if outcome.clipped_share]
        rows.append(
            {
                "setting": trial.label,
                "η": f"{trial.changes.local.get('learning_rate', PRINTED):g}",
                "seeds": str(len(outcomes)),
                "perplexity": best_of(outcomes, "perplexity"),
                "cross-entropy": best_of(outcomes, "loss"),
                "accuracy": best_of(outcomes, "top1"),
                "accuracy at the end": _at_the_end(outcomes),
                "cross-entropy on the clients": number(Spread.of(clients)) if clients else "diverged",
                "clipped, at the end": f"{fmean(cut):.0%}" if cut else "",
                "run": f"`{trial.name}`",
            }
        )
    return table(rows)
