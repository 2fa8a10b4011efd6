"""McMahan et al. 2018, "Learning differentially private recurrent language models": every table and figure.

The base is the shipped recipe `mcmahan2018`: B = 8, unroll 10, E = 1, η = 6, 1,600 tokens a user (section 3). Numbers
below are the paper's where it prints them; a grid that is only visible in a plot is marked "not printed". Two things
differ throughout; an experiment compares each with the paper's way:

- Cohorts have a fixed size, not a random one (Figure 5 compares them).
- Un-noised runs are clipped at S = 15 unless they are about clipping. The paper's baseline is not clipped; here it is
  run at several η (`baselines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.papers.engine.trial import Changes, Corpus, Experiments, Place, Size, Trial
from sottovoce.papers.private_model import trials as private_model

TITLE = "McMahan et al. 2018, Learning differentially private recurrent language models"

# Section 3: evaluated every 20 rounds on about 75,000 tokens; 60 users of 1,600 tokens are 96,000.
SIZES = {
    size.name: size
    for size in (
        Size(
            "smoke",
            rounds=6,
            cohort=4,
            evaluate_every=2,
            evaluate_users=4,
            target=0.02,
            synthetic_users=60,
            changes=Changes(model={"embedding": 8, "hidden": 12}, local={"batch": 4}),
        ),
        Size(
            "cpu",
            rounds=100,
            cohort=10,
            evaluate_every=10,
            evaluate_users=20,
            target=0.15,
            synthetic_users=500,
            changes=Changes(model={"embedding": 16, "hidden": 32}),
        ),
        Size(
            "gpu",
            rounds=1500,
            cohort=100,
            evaluate_every=20,
            evaluate_users=60,
            target=0.16,
            synthetic_users=2000,
            full=True,
        ),
    )
}

# Table 2: σ, S, users, C̃, ε at δ = 1e-9 after 5,000 rounds, AccuracyTop1 in %.
TABLE_2 = (
    (0.003, 15.0, 763_430, 5000, 4.634, 17.49),
    (0.006, 10.0, 763_430, 1667, 2.314, 17.04),
    (0.012, 15.0, 763_430, 1250, 2.038, 16.33),
    (0.003, 15.0, 10**8, 5000, 1.152, 17.49),
    (0.006, 10.0, 10**8, 1667, 0.991, 17.04),
    (0.012, 15.0, 10**8, 1250, 0.987, 16.33),
)
TABLE_2_BASELINE, TABLE_2_ROUNDS, TABLE_2_DELTA = 17.62, 5000, 1e-9

# Table 1: K, C̃, z, ε after 1, 10, ... 10^6 rounds at δ = K^-1.1. Rows marked False are in the first version only.
TABLE_1 = (
    (10**5, 10**2, 1.0, True, ("0.97", "0.98", "1.00", "1.07", "1.18", "2.21", "7.50")),
    (10**6, 10**1, 1.0, True, ("0.68", "0.69", "0.69", "0.69", "0.69", "0.72", "0.73")),
    (10**6, 10**2, 1.0, False, ("0.85", "0.85", "0.89", "0.89", "0.90", "0.93", "1.10")),
    (10**6, 10**3, 1.0, True, ("1.17", "1.17", "1.20", "1.28", "1.39", "2.44", "8.13")),
    (10**6, 10**4, 1.0, True, ("1.73", "1.92", "2.08", "3.06", "8.49", "32.38", "187.01")),
    (10**6, 10**3, 3.0, True, ("0.47", "0.47", "0.48", "0.48", "0.49", "0.67", "1.95")),
    (10**7, 10**3, 1.0, False, ("0.99", "1.00", "1.04", "1.04", "1.05", "1.08", "1.25")),
    (10**8, 10**3, 1.0, False, ("0.90", "0.92", "0.92", "0.92", "0.92", "0.96", "0.97")),
    (10**9, 10**3, 1.0, True, ("0.84", "0.84", "0.84", "0.85", "0.88", "0.88", "0.88")),
)

SIGMAS = (0.0, 0.003, 0.006, 0.012)
# Table 3 and the text sample this axis (0.0015, 0.006, 0.024, 0.096); σ = 0.2 is z = 1 with 100 users at S = 20.
NOISE_AXIS = (0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.096, 0.2)
CLIP_AXIS = (2.5, 5.0, 10.0, 15.0, 20.0, 30.0)  # not printed, except that 10 to 20 hardly matters
# Figure 8: S and σ move together, S = 20 with σ = 0.012 among them. The paper has steps of 10^0.1, of which 7.9 and
# 0.0048 are printed; here every second one.
TRADE_OFFS = (5.0, 7.9, 12.6, 20.0)
SIGMA_OVER_S = 0.012 / 20


def _few(size: Size, full: Sequence[float], few: Sequence[float]) -> Sequence[float]:
    return full if size.full else few


def noised(sigma: float, clip_norm: float = 15.0, clipping: str = "flat") -> Trial:
    """FedAvg at a given σ and S."""
    label = f"σ = {sigma:g}, S = {clip_norm:g}"
    return Trial(label, Changes({"noise_std": sigma, "clip_norm": clip_norm, "clipping": clipping}))


# The paper's baseline has η = 6 and no clip. Without a clip a smaller η may be needed; this grid is ours.
PRINTED_RATE, BASELINE_RATES = 6.0, (0.3, 1.0, 2.0, 3.0, 4.0, 6.0)


def baselines(size: Size, label: str = "baseline: no clip, true average") -> list[Trial]:
    """The unclipped baseline at every η of a grid. Figures show the best of them."""
    changes = Changes({"clipping": "none", "estimator": "true_average"})
    return [
        Trial(
            f"{label}, η = {rate:g}",
            changes if rate == PRINTED_RATE else replace(changes, local={"learning_rate": rate}),
            best_of="η without a clip",
        )
        for rate in _few(size, BASELINE_RATES, (1.0, PRINTED_RATE))
    ]


def _trade_offs(size: Size, clipping: str, after: Trial | None, *, few: Sequence[float]) -> list[Trial]:
    grid = _few(size, TRADE_OFFS, few)
    if clipping == "per_layer":
        grid = _few(size, (7.9, 20.0), (10.0,))
    return [
        replace(
            noised(round(SIGMA_OVER_S * s, 6), s, clipping),
            label=f"S = {s:g}, σ = {round(SIGMA_OVER_S * s, 6):g}",
            after=after,
            place=Place(x=s),
            extra_seeds=int(s == 20 and after is None),  # the paper shows two runs of it
        )
        for s in grid
    ]


SWITCHED_FROM = noised(0.012, 20.0)  # paper: after 4,885 rounds, for 6,000 more; here: half of the rounds each


def fedsgd(sigma: float, clip_norm: float) -> Trial:
    """One gradient over all 1,600 tokens of a user, 50 users a round, η = 6 (appendix D)."""
    label = f"FedSGD, σ = {sigma:g}, S = {clip_norm:g}"
    changes = Changes({"noise_std": sigma, "clip_norm": clip_norm}, run={"algorithm": "fedsgd"})
    return Trial(label, changes, cohort=0.5)


def _dictionaries(size: Size, words: int, sigma: float, clip_norm: float, x: float) -> Trial:
    group = f"{10_000 * words:,} words" if size.full else f"dictionary × {words}"
    trial = replace(noised(sigma, clip_norm), words=words)
    return trial.shown_as(f"{group}, {trial.label}", x=x, group=group)


# The most important first: a short budget runs those.
EXPERIMENTS = Experiments()


@EXPERIMENTS.add(
    "table-1",
    "Table 1: ε by users, cohort, noise and rounds",
    "What privacy costs by the moments accountant as printed, and by RDP and PLD",
    view="",
)
def _nothing(size: Size) -> list[Trial]:
    return []


@EXPERIMENTS.add("sigma", "Top-1 by σ at S = 15", "What noise costs at the end of training")
def _sigma(size: Size) -> list[Trial]:
    return [noised(sigma) for sigma in SIGMAS]


@EXPERIMENTS.add(
    "table-2",
    "Table 2: ε and accuracy",
    "Accuracy of small-cohort runs, with the ε projected for the cohort that gives their σ at z = 1",
    view="",
)
def _table_2(size: Size) -> list[Trial]:
    return [*baselines(size), noised(0.0), *(noised(sigma, clip_norm) for sigma, clip_norm, *_ in TABLE_2[:3])]


@EXPERIMENTS.add("figure-1", "Figure 1: noised training and the baseline", "σ = 0.003 nearly matches the baseline")
def _figure_1(size: Size) -> list[Trial]:
    # σ = 0.024 is in the text of the first version; its S is not printed.
    pairs = ((0.0, 15.0), (0.003, 15.0), (0.006, 10.0), (0.012, 15.0), (0.024, 15.0))
    return [*baselines(size), *(noised(sigma, clip_norm) for sigma, clip_norm in pairs)]


@EXPERIMENTS.add(
    "figure-2", "Figure 2: clipping", "S from 10 to 20 hardly matters, flat or per layer", view="sweep", x="S"
)
def _figure_2(size: Size) -> list[Trial]:
    flat = _few(size, CLIP_AXIS, (5.0, 15.0))
    per_layer = _few(size, (10.0, 20.0), (15.0,))  # enough to compare with flat
    clipped = [
        noised(0.0, clip_norm, clipping).shown_as(f"{words}, S = {clip_norm:g}", x=clip_norm, group=words)
        for clipping, words, grid in (("flat", "flat", flat), ("per_layer", "per layer", per_layer))
        for clip_norm in grid
    ]
    return [*clipped, *baselines(size, "no clip")]


@EXPERIMENTS.add(
    "figure-3",
    "Figure 3: noise at S = 20",
    "Noise hurts late in training, not early",
    view="sweep",
    x="σ",
    vertical_line=lambda size: (20 / size.cohort, "z = 1"),
)
def _figure_3(size: Size) -> list[Trial]:
    flat = _few(size, (0.0, *NOISE_AXIS), (0.0, 0.012, 0.096))
    per_layer = _few(size, (0.0, 0.012, 0.048), (0.012,))
    return [
        noised(sigma, 20.0, clipping).shown_as(f"{words}, σ = {sigma:g}", x=sigma, group=words)
        for clipping, words, grid in (("flat", "flat", flat), ("per_layer", "per layer", per_layer))
        for sigma in grid
    ]


@EXPERIMENTS.add("figure-5", "Figure 5: samplers and estimators", "None of them changes convergence")
def _figure_5(size: Size) -> list[Trial]:
    def sampled(label: str, estimator: str) -> Trial:
        return Trial(label, Changes({"sampling": "poisson", "estimator": estimator}))

    return [
        # Of a fixed number of users with weight 1, the true average and the fixed denominator are the same.
        noised(0.0).shown_as("fixed sample, true average"),
        sampled("random sample, true average", "true_average"),
        sampled("random sample, fixed denominator", "fixed_denominator"),
        sampled("random sample, clipped denominator", "clipped_denominator"),
        *baselines(size, "fixed sample, true average, no clip"),
    ]


@EXPERIMENTS.add(
    "figure-7", "Figure 7: σ = 0.012 with small and large cohorts", "A small cohort at the same σ predicts a large one"
)
def _figure_7(size: Size) -> list[Trial]:
    changes = noised(0.012).changes
    return [Trial(f"C = {round(size.cohort * each):,}", changes, cohort=each) for each in (1.0, 12.5)]


@EXPERIMENTS.add(
    "figure-4",
    "Figure 4: clip against noise at equal privacy",
    "Smaller S and σ help after a switch late in training",
    view="sweep",
    x="S",
)
def _figure_4(size: Size) -> list[Trial]:
    groups = (
        ("from the start", "flat", None),
        ("after a switch, flat", "flat", SWITCHED_FROM),
        ("after a switch, per layer", "per_layer", SWITCHED_FROM),
    )
    return [
        trial.shown_as(f"{words}: {trial.label}", x=trial.place.x, group=words)
        for words, clipping, after in groups
        for trial in _trade_offs(size, clipping, after, few=(7.9, 20.0))
    ]


@EXPERIMENTS.add(
    "figure-8", "Figure 8: clip against noise at equal privacy, by round", "The runs of Figure 4 as curves"
)
def _figure_8(size: Size) -> list[Trial]:
    left = _trade_offs(size, "flat", None, few=(7.9, 20.0))
    right = _trade_offs(size, "flat", SWITCHED_FROM, few=(7.9, 20.0))
    return [
        trial.shown_as(trial.label, panel=panel)
        for panel, trials in (("from a random model", left), ("going on from S = 20", right))
        for trial in trials
    ]


@EXPERIMENTS.add("figure-6", "Figure 6: users a round", "Returns diminish beyond 50 or 100 users")
def _figure_6(size: Size) -> list[Trial]:
    # The values of C are not printed; returns diminish beyond 50 or 100 (first version).
    multiples = _few(size, (0.1, 0.5, 1.0, 5.0), (0.5, 1.0, 2.0))
    return [
        *(Trial(f"C = {round(size.cohort * each)}", cohort=each) for each in multiples),
        *baselines(size, f"C = {size.cohort}, no clip"),
    ]


@EXPERIMENTS.add(
    "table-3", "Table 3: head words", "A lean towards frequent words follows quality, not noise", view="histograms"
)
def _table_3(size: Size) -> list[Trial]:
    """The models of Figures 7 and 3, and un-noised ones that stopped early, which are worse without noise."""
    early, later, last = size.marks
    shorter = [
        Trial(f"σ = 0, S = 20, {rounds:,} rounds", noised(0.0, 20.0).changes, rounds=rounds / last)
        for rounds in (early, later)
    ]
    sampled = _few(size, (0.0, 0.0015, 0.006, 0.024, 0.096), (0.0, 0.096))
    return [
        *(trial.shown_as(f"σ = 0.012, {trial.label}") for trial in _figure_7(size)),
        *(noised(sigma, 20.0) for sigma in sampled),
        *shorter,
    ]


@EXPERIMENTS.add("figure-9", "Figure 9: clipping in FedSGD", "FedSGD stands a much smaller S", view="sweep", x="S")
def _figure_9(size: Size) -> list[Trial]:
    grid = _few(size, (0.5, 2.0, 20.0), (2.0, 20.0))  # not printed; S = 2 is called reasonable
    return [fedsgd(0.0, s).shown_as(f"S = {s:g}", x=s) for s in grid]


@EXPERIMENTS.add("figure-10", "Figure 10: noise in FedSGD", "FedSGD is more sensitive to noise", view="sweep", x="σ")
def _figure_10(size: Size) -> list[Trial]:
    grid = _few(size, (0.0, 0.002, 0.012), (0.0, 0.002))  # not printed; 0.002 is called reasonable
    return [fedsgd(sigma, 20.0).shown_as(f"σ = {sigma:g}", x=sigma) for sigma in grid]


@EXPERIMENTS.add(
    "figure-11",
    "Figure 11: clipping with larger dictionaries",
    "20,000 and 30,000 words need no other S",
    view="sweep",
    x="S",
)
def _figure_11(size: Size) -> list[Trial]:
    grid = _few(size, (15.0, 20.0), (15.0,))
    return [_dictionaries(size, words, 0.0, s, s) for words in (1, 2, 3) for s in grid]


@EXPERIMENTS.add(
    "figure-12",
    "Figure 12: noise with larger dictionaries",
    "20,000 and 30,000 words need no other σ",
    view="sweep",
    x="σ",
)
def _figure_12(size: Size) -> list[Trial]:
    grid = _few(size, (0.0, 0.012), (0.012,))
    return [_dictionaries(size, words, sigma, 20.0, sigma) for words in (1, 2, 3) for sigma in grid]


@EXPERIMENTS.add("l2-penalty", "A penalty λ‖Δ‖² on updates", "It brings nothing")
def _l2_penalty(size: Size) -> list[Trial]:
    # No λ is printed. A step takes 2ηλ of the update back: 4 % and 12 % of it.
    grid = _few(size, (0.003, 0.01), (0.01,))
    penalties = [Trial(f"λ = {weight:g}", Changes(local={"penalty": weight})) for weight in grid]
    # With a tight clip too: does the penalty replace it?
    weight = grid[-1]
    tight = [Trial(f"λ = {weight:g}, S = 5", Changes({"clip_norm": 5.0}, local={"penalty": weight}))]
    return [noised(0.0).shown_as("λ = 0"), *penalties, noised(0.0, 5.0).shown_as("λ = 0, S = 5"), *tight]


@EXPERIMENTS.add("other-corpus", "Training on another corpus", "It costs far more than privacy", view="")
def _other_corpus(size: Size) -> list[Trial]:
    return [
        noised(0.0).shown_as("trained on these users"),
        noised(0.003).shown_as("trained on these users, σ = 0.003"),
        Trial("trained on the other corpus", noised(0.0).changes, corpus=Corpus("other", compared_on_users=True)),
    ]


EXPERIMENTS.add(
    "private-tuning",
    "Tuning for a private model, on public people",
    "S, η and the server's step, with the noise of the runs to come",
)(private_model.tuning)


EXPERIMENTS.add("private-model", "A private model", "What ε = 8 and ε = 4 reach, and what each ingredient brings")(
    private_model.trials
)
