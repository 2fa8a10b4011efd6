"""A private model that is trained, not projected: the whole population, pre-trained on public text, ε = 8 and ε = 4.

Every private trial is a real run: its secrets come from entropy, and the users' store is charged. There are two
experiments. First, settings are tuned on users of another corpus, which is public. Then each ingredient is left out or
changed on the protected users. Only public facts are kept of them (`Trial.is_protected`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sottovoce.papers.engine.trial import PUBLIC, Changes, Corpus, Section, Size, Trial

DELTA = 1e-5
BUDGETS = (8.0, 4.0)
# Chosen on public users (`tuning`), before any private run.
CLIP_NORM = 15.0
SERVER: Section = {}
LOCAL: Section = {}
# The declared mean weight by ŵ, from published figures of Reddit and blog users: all have 200 words, 6 of 10 have 400,
# 1 of 4 has 1,600. A wrong one changes the server's step only. 100 and 160 are for synthetic users of the small sizes.
MEAN_WEIGHTS = {400.0: 0.92, 1600.0: 0.5, 100.0: 0.9, 160.0: 0.9}
# The noise of tuning on public users: σ/S of ε = 8 with 2,000 of 27,000 users (W = 24,840) in 300 rounds.
TUNING_NOISE_OVER_S = 5.76e-4


# Two ways to take steps twice as large; with half of S the noise of both is as before.
TWICE: Section = {"learning_rate": 2.0}
MOMENTUM: Section = {"optimiser": "momentum", "learning_rate": 0.2, "momentum": 0.9}
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
    """Adam on public text. No user's contribution is bounded, because there are no users."""
    scale = _scale(size)
    changes = Changes(
        run={"algorithm": "central"},
        local={"batch": scale.lanes, "unroll": 20, "learning_rate": 1.0},
        server={"optimiser": "adam", "learning_rate": 0.002},
    )
    label = "pre-trained on public text, no private training"
    return Trial(label, changes, rounds=scale.public_rounds, corpus=PUBLIC, short_name="pretrained")


def private(size: Size, label: str, epsilon: float = 8.0, **privacy: Any) -> Trial:
    """All ingredients with the middle cohort; `privacy` changes some of them."""
    scale = _scale(size)
    values: dict[str, Any] = {
        "mode": "private",
        "epsilon": epsilon,
        "delta": DELTA,
        "clip_norm": CLIP_NORM,
        "weight_cap": scale.weight_cap,
        **privacy,
    }
    return Trial(
        label,
        Changes(privacy=values, server=SERVER, local=LOCAL),
        after=pretrained(size),
        cohort=scale.middle,
        rounds=scale.rounds,
        mean_weight=MEAN_WEIGHTS[values["weight_cap"]],
    )


def trials(size: Size) -> list[Trial]:
    """The most important first: a short budget runs those."""
    scale = _scale(size)
    base = private(size, "")
    rounds = base.rounds_of(size)
    base = replace(base, label=f"all ingredients, C̃ = {base.cohort_of(size):,}, {rounds} rounds")
    late = round(0.6 * rounds) + 1
    headline = [
        replace(private(size, f"ε = {epsilon:g}", epsilon), cohort=scale.large, rounds=scale.most_rounds)
        for epsilon in BUDGETS
    ]
    unnoised = {"clip_norm": CLIP_NORM, "weight_cap": scale.weight_cap, "sampling": "poisson"}
    without_noise = Trial(
        "no noise: the ceiling",
        Changes(privacy=unnoised, server=SERVER, local=LOCAL),
        protected=True,
        after=base.after,
        cohort=scale.middle / 4,
        rounds=scale.most_rounds,
        mean_weight=base.mean_weight,
    )
    ingredients = [
        base,
        replace(base, label="no pre-training", after=None),
        replace(base, label=f"C̃ = {round(scale.small * size.cohort):,}", cohort=scale.small),
        private(size, f"S = {CLIP_NORM / 2:g}", clip_norm=CLIP_NORM / 2),
        private(size, "S falls to a half for the last 40 %", clip_schedule=((1, 1.0), (late, 0.5))),
        _with_server(private(size, HALF_AND_TWICE, clip_norm=CLIP_NORM / 2), TWICE),
        private(size, "adaptive clip, median", adaptive_quantile=0.5),
        private(size, f"ŵ = {scale.longest:,g}: weights by tokens", weight_cap=scale.longest),
    ]
    return [
        pretrained(size).shown_as("pre-trained on public text, no private training", panel="the model"),
        *(trial.shown_as(trial.label, panel="the model") for trial in [*headline, without_noise]),
        *(trial.shown_as(trial.label, panel="ingredients, ε = 8") for trial in ingredients),
    ]


def _with_server(trial: Trial, server: Section) -> Trial:
    return replace(trial, changes=replace(trial.changes, server=server))


def tuning(size: Size) -> list[Trial]:
    """Trials on public users with the noise of the later private runs. σ is given: there is no guarantee."""
    scale = _scale(size)

    def tuned(label: str, clip_norm: float = CLIP_NORM, noise: float = 1.0, **sections: Section) -> Trial:
        sigma = float(f"{noise * TUNING_NOISE_OVER_S * clip_norm:.3g}")
        changes = Changes(privacy={"clip_norm": clip_norm, "noise_std": sigma}, **sections)
        corpus = Corpus("other")
        return Trial(label, changes, rounds=scale.tuning_rounds, corpus=corpus, after=pretrained(size))

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
