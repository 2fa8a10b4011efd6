"""What is measured of a run of Popov et al. 2018: perplexity and keystrokes on both texts, bytes, tails of c(s)."""

from __future__ import annotations

import math

import numpy as np

from sottovoce.audit.tails import Tail
from sottovoce.commands.audit_tails import PairTail, fit_tails
from sottovoce.data.store import Store
from sottovoce.evaluation.figures import Evaluation, evaluations
from sottovoce.evaluation.keystrokes import count_keystrokes, saving
from sottovoce.evaluation.prediction import averages, evaluate
from sottovoce.models.contract import LanguageModel
from sottovoce.papers.engine.paper import FinishedRun
from sottovoce.papers.engine.results import Curve, Facts
from sottovoce.papers.popov2018.trials import DELTAS, SCALES
from sottovoce_evidence.recipe import Recipe

USERS, PUBLIC = "perplexity on users' text", "perplexity on public text"


def measure(done: FinishedRun) -> tuple[Facts, dict[str, Curve]]:
    """Facts and curves of a run. Perplexity is over the words of the vocabulary, as in the paper."""
    facts: Facts = {"bytes": done.run.read_card()["bytes"]}
    if done.trial.corpus.trained_on == "ptb":
        return facts, {}
    assert done.public is not None  # checked before the first run
    users, public = (_measured(done.model, store) for store in (done.users, done.public))
    average = averages([users[0], public[0]])["average_perplexity_in_vocabulary"]
    facts |= {"users_text": users[1], "public_text": public[1], "average_perplexity": _finite(average)}
    if done.trial.leave_one_out:
        facts["tails"] = _tails(done)
    record = done.run.record.read()
    curves = {
        name: [(at, found.perplexity_in_vocabulary) for at, found in evaluations(record, kind)]
        for name, kind in ((USERS, "evaluation"), (PUBLIC, "beside"))
        if done.trial.corpus.is_users
    }
    return facts, {name: [point for point in curve if math.isfinite(point[1])] for name, curve in curves.items()}


def _measured(model: LanguageModel, store: Store) -> tuple[Evaluation, Facts]:
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


def _tails(done: FinishedRun) -> Facts:
    """Both directions of every pair, and the larger half of the log ratios of the pair that Figure 3 shows."""
    texts, seed = SCALES[done.size.name].texts, Recipe.of(done.run).run.seed
    found = fit_tails(done.run, leave_out=done.trial.leave_one_out, texts=texts, seed=seed)
    pairs = [
        one.summary(DELTAS[0]).to_json() | {"epsilons": [one.tail.epsilon(delta) for delta in DELTAS]} for one in found
    ]
    finite = [one for one in found if math.isfinite(one.tail.alpha) and one.texts_of == "with"]
    return {"texts": texts, "deltas": list(DELTAS), "pairs": pairs, "shown": _shown(finite) if finite else None}


def _shown(tails: list[PairTail]) -> Facts:
    largest = max(tails, key=lambda one: one.tail.epsilon(DELTAS[0]))
    upper = np.sort(largest.log_ratios)[::-1][: largest.tail.texts // 2]
    tail = largest.tail
    return {
        "tail": [tail.texts, tail.k, tail.start, tail.alpha, tail.statistic, tail.p_value],
        "log_ratios": [round(float(value), 5) for value in upper],
    }


def tail_of(shown: Facts) -> tuple[np.ndarray, Tail]:
    """The larger log ratios and the fitted tail that `_shown` kept."""
    return np.array(shown["log_ratios"]), Tail(*shown["tail"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
