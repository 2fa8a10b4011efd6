"""A private model that is not projected: the whole population, pre-trained on public text, at ε = 8 and ε = 4.

Every private trial is a real run with secrets from entropy, charged to the people's store. Two experiments: settings
are tuned on public people (a store of another corpus), then each ingredient is taken away or changed on the people that
are protected. What a trial keeps of these people is public (`Trial.is_guarded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.accounting import rounded_up
from sottovoce.papers.engine.results import Pool
from sottovoce.papers.engine.tables import markdown
from sottovoce.papers.engine.trial import Size, Trial

Changes = Mapping[str, Any]

DELTA = 1e-5
BUDGETS = (8.0, 4.0)
# Chosen on public people (`tuning`), before any private run. Another choice is made here, and nowhere else.
CLIP_NORM = 15.0
SERVER: Changes = {}
LOCAL: Changes = {}
# The declared mean weight by ŵ, from what is published of Reddit and blog users: all have 200 words, 6 of 10 have 400,
# 1 of 4 has 1,600. A wrong one only changes the server's step. 100 and 160 are for the
# synthetic people of the small sizes.
MEAN_WEIGHTS = {400.0: 0.92, 1600.0: 0.5, 100.0: 0.9, 160.0: 0.9}
# What tuning on public people adds as noise: σ/S of ε = 8 with 2,000 of 27,000 users (W = 24,840) in 300 rounds.
TUNING_NOISE_OVER_S = 5.76e-4


# Two ways to go twice as far in as many rounds; with half of S the noise of both is as before.
TWICE: Changes = {"learning_rate": 2.0}
MOMENTUM: Changes = {"optimiser": "momentum", "learning_rate": 0.2, "momentum": 0.9}
HALF_AND_TWICE = f"S = {CLIP_NORM / 2:g}, server rate 2"


@dataclass(frozen=True)
class _Scale:
    """Cohorts and rounds in multiples of the size's; ŵ in tokens; lanes and rounds of pre-training."""

    small: float
    middle: float
    large: float
    rounds: float
    tuning_rounds: float
    most_rounds: float
    weight_cap: float
    longest: float
    lanes: int
    public_rounds: float


# gpu: 250, 2,000, 3,000 users a round; 150 rounds an ingredient, 300 to tune, 500 for the models; Wikipedia's 5,800
# pieces are read 5 times.
_FULL = _Scale(2.5, 20, 30, 0.1, 0.2, 1 / 3, weight_cap=400, longest=1600, lanes=128, public_rounds=290 / 1500)
_FEW = _Scale(0.5, 2, 3, 1, 1, 1, weight_cap=100, longest=160, lanes=8, public_rounds=1)


def _scale(size: Size) -> _Scale:
    return _FULL if size.full else _FEW


def pretrained(size: Size) -> Trial:
    """SGD on public text, by Adam: nobody's part is bounded, and nobody's has to be."""
    scale = _scale(size)
    return Trial(
        "pre-trained on public text, no private training", called="pretrained", on="public", elsewhere=True,
        rounds=scale.public_rounds, run={"algorithm": "central"},
        local={"batch": scale.lanes, "unroll": 20, "learning_rate": 1.0},
        server={"optimiser": "adam", "learning_rate": 0.002},
    )  # fmt: skip


def private(size: Size, label: str, epsilon: float = 8.0, **privacy: Any) -> Trial:
    """All ingredients at the middle cohort; `privacy` changes some."""
    scale = _scale(size)
    weight_cap = privacy.pop("weight_cap", scale.weight_cap)
    return Trial(
        label, after=pretrained(size), cohort=scale.middle, rounds=scale.rounds, mean_weight=MEAN_WEIGHTS[weight_cap],
        server=SERVER, local=LOCAL,
        privacy={
            "mode": "private", "epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM, "weight_cap": weight_cap,
            **privacy,
        },
    )  # fmt: skip


def trials(size: Size) -> list[Trial]:
    """In the order in which a short budget is best spent."""
    scale = _scale(size)
    base = private(size, "")
    rounds = base.rounds_of(size)
    base = replace(base, label=f"all ingredients, C̃ = {base.cohort_of(size):,}, {rounds} rounds")
    late = round(0.6 * rounds) + 1
    headline = [
        replace(private(size, f"ε = {epsilon:g}", epsilon), cohort=scale.large, rounds=scale.most_rounds)
        for epsilon in BUDGETS
    ]
    without_noise = Trial(
        "no noise: the ceiling", guarded=True, after=base.after, cohort=scale.middle / 4, rounds=scale.most_rounds,
        mean_weight=base.mean_weight, server=SERVER, local=LOCAL,
        privacy={"clip_norm": CLIP_NORM, "weight_cap": scale.weight_cap, "sampling": "poisson"},
    )  # fmt: skip
    ingredients = [
        base,
        replace(base, label="no pre-training", after=None),
        replace(base, label=f"C̃ = {round(scale.small * size.cohort):,}", cohort=scale.small),
        private(size, f"S = {CLIP_NORM / 2:g}", clip_norm=CLIP_NORM / 2),
        private(size, "S falls to a half for the last 40 %", clip_schedule=((1, 1.0), (late, 0.5))),
        replace(private(size, HALF_AND_TWICE, clip_norm=CLIP_NORM / 2), server=TWICE),
        private(size, "adaptive clip, median", adaptive_quantile=0.5),
        private(size, f"ŵ = {scale.longest:,g}: weights by tokens", weight_cap=scale.longest),
    ]
    return [
        pretrained(size).shown_as("pre-trained on public text, no private training", panel="the model"),
        *(trial.shown_as(trial.label, panel="the model") for trial in [*headline, without_noise]),
        *(trial.shown_as(trial.label, panel="ingredients, ε = 8") for trial in ingredients),
    ]


def tuning(size: Size) -> list[Trial]:
    """On public people, with the noise of the private runs to come. σ is given: nothing is promised to them."""
    scale = _scale(size)

    def tuned(label: str, clip_norm: float = CLIP_NORM, noise: float = 1.0, **changes: Any) -> Trial:
        sigma = float(f"{noise * TUNING_NOISE_OVER_S * clip_norm:.3g}")
        return Trial(
            label, on="other", after=pretrained(size), rounds=scale.tuning_rounds,
            privacy={"clip_norm": clip_norm, "noise_std": sigma}, **changes,
        )  # fmt: skip

    return [
        tuned(f"S = {CLIP_NORM:g}, η = 6"),
        tuned("no noise", noise=0.0),
        *(tuned(f"S = {factor * CLIP_NORM:g}", factor * CLIP_NORM) for factor in (0.5, 2.0)),
        tuned("η = 3", local={"learning_rate": 3.0}),
        tuned("server rate 2", server=TWICE),
        tuned(HALF_AND_TWICE, CLIP_NORM / 2, server=TWICE),
        tuned(f"S = {CLIP_NORM / 4:g}, server rate 4", CLIP_NORM / 4, server={"learning_rate": 4.0}),
        tuned("server momentum 0.9, rate 0.2", server=MOMENTUM),
        replace(tuned("no pre-training"), after=None),
    ]


def table(size: Size, pool: Pool, out: Path) -> str:
    """What is promised and what is reached, a row a trial, and what all of it cost the people together."""
    header = [
        "setting", "ε", "S", "C̃", "rounds", "z", "σ", "user updates, expected", "top-1 at the end", "perplexity",
    ]  # fmt: skip
    rows, totals, counted = [], [], 0
    shown = [trial for trial in trials(size) if pool.of(trial)]
    for trial in shown:
        for outcome in pool.of(trial):
            recipe, facts = outcome.recipe, outcome.facts
            promised = trial.is_private
            if promised:
                totals.append(facts["epsilon_store"])
                counted += 1
            perplexity = outcome.evaluation["perplexity"]
            people = not trial.on
            rows.append([
                trial.label,
                rounded_up(facts["epsilon"]) if promised else "∞" if people else "0",
                f"{recipe['privacy']['clip_norm']:g}" if people else "",
                f"{recipe['privacy']['cohort']:,.0f}" if people else "",
                f"{outcome.rounds:,}" if people else "",
                f"{facts['noise_multiplier']:.3g}" if promised else "",
                f"{facts['noise_std']:.2g}" if promised else "0" if people else "",
                f"{outcome.user_updates:,}" if people else "",
                f"{100 * outcome.evaluation['top1']:.2f} %",
                "diverged" if perplexity is None else f"{perplexity:.4g}",
            ])  # fmt: skip
    known = [value for value in totals if isinstance(value, int | float)]
    total = rounded_up(max(known)) if known and len(known) == len(totals) else "not known to be finite"
    deltas = {outcome.facts["delta"] for trial in shown if trial.is_private for outcome in pool.of(trial)}
    note = (
        f"ε at δ = {', '.join(f'{delta:g}' for delta in sorted(deltas))} is of each model alone; S, z and σ are of the "
        f"first round. All private runs on this store, until the last of these {counted}, together: ε = {total}. A "
        f"trial with ε = ∞ promises nothing, and its model is not to be released; ε = 0 saw nobody of the store."
    )
    return f"{markdown(header, rows)}\n\n{note}" if counted else markdown(header, rows)
