"""McMahan et al. 2018: its sizes, experiments, claims and tables."""

from __future__ import annotations

from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.engine.results import SMOOTHING
from sottovoce.papers.mcmahan2018 import claims, tables, trials
from sottovoce.papers.private_model import tables as private_model

MCMAHAN2018 = Paper(
    name="mcmahan2018",
    title=trials.TITLE,
    sizes=trials.SIZES,
    experiments=trials.EXPERIMENTS,
    claims=claims.CLAIMS,
    metric=claims.METRIC,
    about=(
        f"No run is private but those of private-model: σ is given, and ε infinite unless it is called *projected*. "
        f"Top-1 counts words, punctuation and EOS as targets; smoothed is over {SMOOTHING} evaluations;"
    ),
    rows=tables.setting_table,
    tables={
        "table-1": tables.table_1,
        "table-2": tables.table_2,
        "private-model": private_model.table,
    },
    smoothing=SMOOTHING,
    printed=("table-2",),
)
