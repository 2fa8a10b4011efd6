"""How good a model might be, in few words."""

from __future__ import annotations

import math
from typing import Any

from sottovoce.evaluation.figures import Evaluation


def score(
    users: int, top1: float, top3: float = 0.4, top5: float = 0.5, perplexity: float | None = 100.0, **more: Any
) -> Evaluation:
    """As public files have it; without a perplexity it is infinite."""
    endless = math.inf if perplexity is None else perplexity
    given = {"targets": 0, "top1_words": None, "oov_rate": None, "perplexity_in_vocabulary": endless, **more}
    return Evaluation(users=users, top1=top1, top3=top3, top5=top5, perplexity=endless, **given)
