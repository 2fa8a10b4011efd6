"""McMahan et al. 2018 as a paper that can be run again: its settings, experiments, claims and tables."""

from __future__ import annotations

from sottovoce.papers import private_model
from sottovoce.papers.engine.results import SMOOTHED_OVER
from sottovoce.papers.engine.trial import Paper
from sottovoce.papers.mcmahan2018 import claims, tables, trials

MCMAHAN2018 = Paper(
    name="mcmahan2018",
    title=trials.TITLE,
    sizes=trials.SIZES,
    experiments=trials.EXPERIMENTS,
    claims=claims.CLAIMS,
    yardstick=claims.YARDSTICK,
    about=(
        f"No run is private but those of private-model: σ is given, and ε infinite unless it is called *projected*. "
        f"Top-1 counts words, punctuation and EOS as targets; smoothed is over {SMOOTHED_OVER} evaluations;"
    ),
    rows=tables.setting_table,
    tables={
        "table-1": tables.table_1,
        "table-2": tables.table_2,
        "private-model": private_model.table,
    },
    smoothed=SMOOTHED_OVER,
)
