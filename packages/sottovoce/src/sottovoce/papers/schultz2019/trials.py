"""Schultz 2019, "Learning private CNN language models": both tables and every figure.

The base is the shipped recipe `schultz2019`: E = 1, B = 10, sequences of 8, η = 0.01, 20 rounds of about 100 users,
every user with weight 1 (section 4.3, Algorithm 1). Noise has σ = S/100, whether or not updates are clipped at S.
Figures have no legend in the text we have: their lines follow the captions and section 5.

The paper prints one η. A good η depends on the initial weights, which the paper does not give. So each of the twelve
models is also run at a second η, chosen here (`TUNED`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sottovoce.papers.engine.trial import Changes, Experiments, Place, Size, Trial

TITLE = "Schultz 2019, Learning private CNN language models"
PRINTED, TUNED = 0.01, 0.1  # η
BOUNDS = (5.0, 10.0, 20.0)  # S
EXPECTED_USERS = 100  # C̃ of σ = S/C̃, in every size

# The evaluation set has 113,000 tokens: 57 users of 2,000.
SIZES = {
    size.name: size
    for size in (
        Size(
            "smoke",
            rounds=3,
            cohort=4,
            evaluate_every=1,
            evaluate_users=4,
            synthetic_users=40,
            changes=Changes(model={"embedding": 8, "hidden": 8, "bottleneck": 4}, local={"batch": 4}),
        ),
        Size(
            "cpu",
            rounds=20,
            cohort=10,
            evaluate_every=1,
            evaluate_users=10,
            synthetic_users=300,
            synthetic_tokens=800,
            changes=Changes(model={"embedding": 48, "hidden": 48, "bottleneck": 8}),
        ),
        Size(
            "gpu",
            rounds=20,
            cohort=100,
            evaluate_every=1,
            evaluate_users=57,
            synthetic_users=2000,
            synthetic_tokens=4000,
            full=True,
        ),
    )
}

# Table 1, in its order: training, clipped at S, noise for S; best perplexity, loss and accuracy, each with its round.
TABLE_1 = (
    ("DP-FedAvg", 20.0, 20.0, (42.21, 7), (3.74, 7), (0.55, 14)),
    ("Central", None, None, (39.13, 8), (3.67, 8), (0.63, 14)),
    ("DP-FedAvg", None, 20.0, (34.7, 5), (3.55, 5), (0.56, 8)),
    ("DP-FedAvg", None, None, (25.94, 20), (3.26, 20), (0.59, 18)),
    ("DP-FedAvg", 5.0, None, (24.56, 20), (3.2, 20), (0.59, 20)),
    ("DP-FedAvg", 5.0, 5.0, (23.6, 20), (3.16, 20), (0.60, 20)),
    ("DP-FedAvg", None, 10.0, (22.72, 14), (3.12, 14), (0.61, 20)),
    ("DP-FedAvg", None, 5.0, (21.12, 20), (3.05, 20), (0.60, 18)),
    ("DP-FedAvg", 10.0, 10.0, (20.13, 20), (3.0, 20), (0.62, 17)),
    ("FedAvg", None, None, (17.69, 20), (2.87, 20), (0.61, 16)),
    ("DP-FedAvg", 20.0, None, (16.41, 7), (2.8, 7), (0.64, 8)),
    ("DP-FedAvg", 10.0, None, (14.27, 20), (2.66, 20), (0.66, 18)),
)

# Table 2: ε at δ for K users, C̃ of them a round, z = 1, 20 rounds.
TABLE_2 = ((1e-4, 1.44), (1e-5, 1.70), (1e-6, 1.95), (1e-7, 2.21))
TABLE_2_USERS, TABLE_2_ROUNDS, TABLE_2_NOISE = 22_389, 20, 1.0


def setting(training: str, clip: float | None = None, noise: float | None = None, rate: float = PRINTED) -> Trial:
    """One of the twelve models: how it is trained, clipped at which S, with noise for which S, at which η."""
    parts = " and ".join([*(["clipped"] if clip else []), *(["noised"] if noise else [])])
    bound = clip or noise
    label = f"{training}, {parts}, S = {bound:g}" if bound else training
    local, place = {} if rate == PRINTED else {"learning_rate": rate}, Place(group=f"η = {rate:g}")
    if training == "Central":
        return Trial(label, Changes(local=local, run={"algorithm": "central"}), place=place)
    privacy: dict[str, Any] = {"clipping": "none"} if clip is None else {"clipping": "flat", "clip_norm": clip}
    if training == "DP-FedAvg":
        privacy["sampling"] = "poisson"
    if noise is not None:
        privacy["noise_std"] = noise / EXPECTED_USERS
    return Trial(label, Changes(privacy, local), place=place)


def all_settings(rate: float) -> list[Trial]:
    return [setting(training, clip, noise, rate) for training, clip, noise, *_ in TABLE_1]


def _at_both(chosen: Callable[[float], list[Trial]]) -> Callable[[Size], list[Trial]]:
    """A panel, or a row of them, for each η."""

    def trials(size: Size) -> list[Trial]:
        return [
            trial.shown_as(trial.label, group=f"η = {rate:g}", panel=_with_rate(trial.place.panel, rate))
            for rate in (PRINTED, TUNED)
            for trial in chosen(rate)
        ]

    return trials


def _with_rate(panel: str, rate: float) -> str:
    return f"{panel}, η = {rate:g}".removeprefix(", ")


def _methods(rate: float) -> list[Trial]:
    """The ways of training, with the private model that the paper finds best."""
    return [
        setting("Central", rate=rate),
        setting("FedAvg", rate=rate),
        setting("DP-FedAvg", rate=rate).shown_as("DP-FedAvg, not private"),
        setting("DP-FedAvg", 10.0, 10.0, rate),
    ]


def _by_bound(settings: Sequence[Trial], panel: str) -> list[Trial]:
    return [trial.shown_as(f"S = {s:g}", panel=panel) for s, trial in zip(BOUNDS, settings, strict=True)]


def clipped(rate: float) -> list[Trial]:
    return [setting("DP-FedAvg", s, None, rate) for s in BOUNDS]


def noised(rate: float) -> list[Trial]:
    return [setting("DP-FedAvg", None, s, rate) for s in BOUNDS]


def both(rate: float) -> list[Trial]:
    return [setting("DP-FedAvg", s, s, rate) for s in BOUNDS]


def _figure_3(rate: float) -> list[Trial]:
    return [
        *_by_bound(clipped(rate), "clipped"),
        *_by_bound(noised(rate), "noised"),
        *_by_bound(both(rate), "clipped and noised"),
    ]


def _figure_7(rate: float) -> list[Trial]:
    parts = (("clipped", 10.0, None), ("noised", None, 10.0), ("clipped and noised", 10.0, 10.0))
    return [setting("DP-FedAvg", clip, noise, rate).shown_as(label) for label, clip, noise in parts]


ALL_THREE = ("top1", "perplexity", "loss")


# The most important first: a short budget runs those.
EXPERIMENTS = Experiments()


EXPERIMENTS.add("table-2", "Table 2: ε by δ", "ε after 20 rounds as printed, and by three accountants", view="")(
    lambda size: []
)


EXPERIMENTS.add(
    "table-1", "Table 1: twelve models", "Best perplexity, loss and accuracy, and when they were had", view=""
)(lambda size: all_settings(PRINTED))


EXPERIMENTS.add("tuned", f"Table 1 at η = {TUNED:g}", "The twelve models at a learning rate chosen here", view="")(
    lambda size: all_settings(TUNED)
)


EXPERIMENTS.add(
    "figure-2",
    "Figure 2: ways of training",
    "Federated training does no worse than central training",
    measures=("top1", "loss"),
)(_at_both(_methods))


EXPERIMENTS.add(
    "figure-3",
    "Figure 3: loss by S",
    "Smaller S is slower when clipped; larger S hurts when noised",
    measures=("loss",),
    columns=3,
)(_at_both(_figure_3))


EXPERIMENTS.add(
    "figure-4", "Figure 4: perplexity of the ways of training", "Figure 2 as perplexity", measures=("perplexity",)
)(_at_both(_methods))


EXPERIMENTS.add(
    "figure-5", "Figure 5: noise", "More noise converges sooner, less noise gets further", measures=ALL_THREE
)(_at_both(lambda rate: _by_bound(noised(rate), "")))


EXPERIMENTS.add("figure-6", "Figure 6: clipping", "The tighter the clip, the slower", measures=ALL_THREE)(
    _at_both(lambda rate: _by_bound(clipped(rate), ""))
)


EXPERIMENTS.add(
    "figure-7", "Figure 7: parts of the private algorithm at S = 10", "Clipping alone does best", measures=ALL_THREE
)(_at_both(_figure_7))


@EXPERIMENTS.add(
    "rates",
    "Learning rates",
    "From where on users diverge, and whether a clip cuts at all",
    view="sweep",
    x="η",
    measures=("loss",),
)
def _rates(size: Size) -> list[Trial]:
    """How the second η was chosen: without a clip, and with one that stops a user from diverging."""
    rates = (0.01, 0.03, 0.1, 0.3, 1.0) if size.full else (PRINTED, TUNED)
    groups = (("not clipped", None), ("clipped at S = 5", 5.0))
    return [
        setting("DP-FedAvg", clip, None, rate).shown_as(f"{words}, η = {rate:g}", x=rate, group=words)
        for words, clip in groups
        for rate in rates
    ]


EXPERIMENTS.add(
    "clients",
    "Loss on the clients before averaging",
    "It is lower than that of the averaged model",
    measures=("loss", "local loss"),
)(_at_both(_methods))
