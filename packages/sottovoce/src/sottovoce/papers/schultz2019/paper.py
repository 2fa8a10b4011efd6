"""Schultz 2019: its sizes, experiments, claims and tables."""

from __future__ import annotations

from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.schultz2019 import claims, tables, trials

SCHULTZ2019 = Paper(
    name="schultz2019",
    title=trials.TITLE,
    sizes=trials.SIZES,
    experiments=trials.EXPERIMENTS,
    claims=claims.CLAIMS,
    metric=claims.METRIC,
    about=(
        "No run here is private: σ = S/100 is given, and ε infinite. Targets are words, punctuation and EOS, never "
        "padding, and a word outside the vocabulary is always a mistake; the best of the rounds is shown with, in "
        "brackets, the round it was reached in;"
    ),
    rows=tables.setting_table,
    tables={
        "table-1": tables.table_1,
        "table-2": tables.table_2,
        "tuned": tables.tuned_table,
    },
    printed=("table-1", "tuned"),
)
