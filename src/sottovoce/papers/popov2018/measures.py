"""What is measured of a run of Popov et al. 2018: both texts, keystrokes, bytes, and the tails of c(s)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sottovoce.audit.tails import Tail
from sottovoce.commands.audit_tails import PairTail, fit_tails
from sottovoce.data.store import Store
from sottovoce.evaluation.keystrokes import count_keystrokes, saving
from sottovoce.evaluation.prediction import Evaluation, averages, evaluate
from sottovoce.models.contract import LanguageModel
from sottovoce.papers.engine.results import Curve
from sottovoce.papers.engine.trial import Finished
from sottovoce.papers.popov2018.trials import DELTAS, SCALES

USERS, PUBLIC = "perplexity on users' text", "perplexity on public text"


def measure(done: Finished) -> tuple[dict[str, Any], dict[str, Curve]]:
    """Facts and curves. A perplexity is over the words of the vocabulary, as in the paper."""
    facts: dict[str, Any] = {"bytes": done.run.read_card()["bytes"]}
    if done.trial.on == "ptb":
        return facts, {}
    assert done.public is not None  # it was asked for before the first run
    users, public = (_judged(done.model, store) for store in (done.users, done.public))
    average = averages([users[0], public[0]])["average_perplexity_in_vocabulary"]
    facts |= {"users_text": users[1], "public_text": public[1], "average_perplexity": _finite(average)}
    if done.trial.pairs:
        facts["tails"] = _tails(done)
    curves = {
        name: [(line["round"], line[kind]["perplexity_in_vocabulary"]) for line in done.record if kind in line]
        for name, kind in ((USERS, "evaluation"), (PUBLIC, "beside"))
        if not done.trial.on
    }
    return facts, {name: [point for point in curve if point[1] is not None] for name, curve in curves.items()}


def _judged(model: LanguageModel, store: Store) -> tuple[Evaluation, dict[str, Any]]:
    found = evaluate(model, store)
    typed = saving(count_keystrokes(model, store))
    return found, {
        "users": found.users,
        "targets": found.targets,
        "oov_rate": found.oov_rate,
        "top1": found.top1,
        "perplexity": _finite(found.perplexity_in_vocabulary),
        "perplexity_of_all": _finite(found.perplexity),
        "keystroke_saving": typed.keystroke_saving,
        "keystroke_saving_in_vocabulary": typed.keystroke_saving_in_vocabulary,
    }


def _tails(done: Finished) -> dict[str, Any]:
    """Both directions of every pair, and the larger values of the one with the largest ε that Figure 3 shows."""
    texts = SCALES[done.size.name].texts
    found = fit_tails(done.run, leave_out=done.trial.pairs, texts=texts)
    pairs = [
        {**one.summary(DELTAS[0]).to_json(), "epsilons": [one.tail.epsilon(delta) for delta in DELTAS]} for one in found
    ]  # fmt: skip
    told = [one for one in found if math.isfinite(one.tail.alpha) and one.texts_of == "with"]
    return {"texts": texts, "deltas": list(DELTAS), "pairs": pairs, "shown": _shown(told) if told else None}


def _shown(told: list[PairTail]) -> dict[str, Any]:
    largest = max(told, key=lambda one: one.tail.epsilon(DELTAS[0]))
    upper = np.sort(largest.log_ratios)[::-1][: largest.tail.texts // 2]
    tail = largest.tail
    return {
        "tail": [tail.texts, tail.k, tail.start, tail.alpha, tail.statistic, tail.p_value],
        "log_ratios": [round(float(value), 5) for value in upper],
    }


def tail_of(shown: dict[str, Any]) -> tuple[np.ndarray, Tail]:
    """What `_shown` kept."""
    return np.array(shown["log_ratios"]), Tail(*shown["tail"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
