"""Popov et al. 2018: its sizes, experiments, claims and tables."""

from __future__ import annotations

from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.popov2018 import claims, measures, tables, trials

POPOV2018 = Paper(
    name="popov2018",
    title=trials.TITLE,
    sizes=trials.SIZES,
    experiments=trials.EXPERIMENTS,
    claims=claims.CLAIMS,
    metric=claims.METRIC,
    about=(
        "No run is private: there is neither clip nor noise, and what Tables 3 and 4 say of privacy is an estimate. "
        "Perplexity is over words of the vocabulary, KSS the keystrokes that three suggestions save, the average "
        "perplexity that of both texts as one; in brackets is what the paper prints;"
    ),
    rows=tables.setting_table,
    tables={"table-3": tables.table_3, "table-4": tables.table_4},
    figures={
        "figure-2": tables.figure_2,
        "figure-3": tables.figure_3,
        "ptb": tables.figure_ptb,
    },
    measure=measures.measure,
    printed=("table-1", "table-2", "table-4"),
)
