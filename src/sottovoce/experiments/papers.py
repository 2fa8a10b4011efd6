"""The papers that can be run again."""

from __future__ import annotations

from sottovoce.experiments import mcmahan2018, mcmahan2018_claims, mcmahan2018_tables, private_model
from sottovoce.experiments.describe import Paper
from sottovoce.experiments.results import SMOOTHED_OVER

MCMAHAN2018 = Paper(
    name="mcmahan2018",
    title=mcmahan2018.TITLE,
    sizes=mcmahan2018.SIZES,
    experiments=mcmahan2018.EXPERIMENTS,
    claims=mcmahan2018_claims.CLAIMS,
    yardstick=mcmahan2018_claims.YARDSTICK,
    about=(
        f"No run is private but those of private-model: σ is given, and ε infinite unless it is called *projected*. "
        f"Top-1 counts words, punctuation and EOS as targets; smoothed is over {SMOOTHED_OVER} evaluations;"
    ),
    rows=mcmahan2018_tables.setting_table,
    tables={
        "table-1": mcmahan2018_tables.table_1,
        "table-2": mcmahan2018_tables.table_2,
        "private-model": private_model.table,
    },
    smoothed=SMOOTHED_OVER,
)

PAPERS = {paper.name: paper for paper in (MCMAHAN2018,)}
