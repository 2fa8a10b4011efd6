"""The papers that can be run again."""

from __future__ import annotations

from sottovoce.experiments import (
    mcmahan2018,
    mcmahan2018_claims,
    mcmahan2018_tables,
    popov2018,
    popov2018_claims,
    popov2018_measures,
    popov2018_tables,
    private_model,
    schultz2019,
    schultz2019_claims,
    schultz2019_tables,
)
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

SCHULTZ2019 = Paper(
    name="schultz2019",
    title=schultz2019.TITLE,
    sizes=schultz2019.SIZES,
    experiments=schultz2019.EXPERIMENTS,
    claims=schultz2019_claims.CLAIMS,
    yardstick=schultz2019_claims.YARDSTICK,
    about=(
        "No run here is private: σ = S/100 is given, and ε infinite. Targets are words, punctuation and EOS, never "
        "padding, and a word outside the vocabulary is always a mistake; the best of the rounds is shown with, in "
        "brackets, the round it was reached in;"
    ),
    rows=schultz2019_tables.setting_table,
    tables={
        "table-1": schultz2019_tables.table_1,
        "table-2": schultz2019_tables.table_2,
        "tuned": schultz2019_tables.tuned_table,
    },
)

POPOV2018 = Paper(
    name="popov2018",
    title=popov2018.TITLE,
    sizes=popov2018.SIZES,
    experiments=popov2018.EXPERIMENTS,
    claims=popov2018_claims.CLAIMS,
    yardstick=popov2018_claims.YARDSTICK,
    about=(
        "No run is private: there is neither clip nor noise, and what Tables 3 and 4 say of privacy is an estimate. "
        "Perplexity is over words of the vocabulary, KSS the keystrokes that three suggestions save, the average "
        "perplexity that of both texts as one; in brackets is what the paper prints;"
    ),
    rows=popov2018_tables.setting_table,
    tables={"table-3": popov2018_tables.table_3, "table-4": popov2018_tables.table_4},
    figures={
        "figure-2": popov2018_tables.figure_2,
        "figure-3": popov2018_tables.figure_3,
        "ptb": popov2018_tables.figure_ptb,
    },
    measure=popov2018_measures.measure,
)

PAPERS = {paper.name: paper for paper in (MCMAHAN2018, SCHULTZ2019, POPOV2018)}
