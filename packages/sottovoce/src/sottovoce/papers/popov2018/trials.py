"""Popov et al. 2018, "Differentially private distributed learning for language modeling tasks": Tables 1 to 4, Figures
2 and 3, and the benchmark of section 2.6.

The base is the shipped recipe `popov2018` (section 2.5). All trials start from one model that was pre-trained on public
text. Devices come in turn, each once, as in the paper's queue. Nothing is private: there is neither clip nor noise.

Table 1 is of a single node, as in the paper: the text of some users is pooled and read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.papers.engine.partitions import NODES
from sottovoce.papers.engine.trial import PUBLIC, Changes, Corpus, Experiments, Section, Size, Trial
from sottovoce.papers.popov2018.distillation import Distillation

TITLE = "Popov et al. 2018, Differentially private distributed learning for language modeling tasks"
RATE = 0.75  # η on a device. Used on a node and for distillation too, where the paper prints none.
# Not printed, but usual for this model from random weights: without such a clip it diverges at η = 10.
# η is divided by four after these of 28 rounds.
PTB_RATE, PTB_CLIP, PTB_FALLS = 20.0, 0.25, (8, 13, 18)
SHARES = (0.25, 0.5, 0.75)  # λ
SHARE = 0.5  # λ of all that is averaged: the best of Table 1
DELTAS = (1e-4, 1e-5, 1e-6)

_LSTM = {"kind": "lstm", "layers": None, "dropout": None}  # one layer, which a CPU can train

# gpu: 100 held-out users of 2,000 tokens and 100 pieces of 1,600 tokens; the paper has 200,000 and 170,000 tokens.
SIZES = {
    size.name: size
    for size in (
        Size(
            "smoke",
            rounds=4,
            cohort=4,
            evaluate_every=2,
            evaluate_users=4,
            synthetic_users=60,
            node_users=8,
            changes=Changes(model={**_LSTM, "embedding": 8, "hidden": 12}, local={"batch": 4, "unroll": 10}),
        ),
        Size(
            "cpu",
            rounds=30,
            cohort=5,
            evaluate_every=5,
            evaluate_users=10,
            synthetic_users=300,
            synthetic_tokens=400,
            node_users=30,
            changes=Changes(model={**_LSTM, "embedding": 32, "hidden": 64}),
        ),
        Size(
            "gpu",
            rounds=150,
            cohort=10,
            evaluate_every=15,
            evaluate_users=100,
            synthetic_users=2000,
            synthetic_tokens=2000,
            node_users=250,
            full=True,
        ),
    )
}

# Tables 1 and 2 by run: perplexity and keystroke saving on public text, the same on users' text, average perplexity.
Printed = tuple[float, float, float, float, float]
PRINTED: Mapping[str, Printed] = {
    "pretrained": (100.1, 67.9, 336.0, 49.7, 192.6),
    "node-rehearsal-0.25": (121.3, 66.3, 127.9, 56.9, 124.8),
    "node-rehearsal-0.5": (131.1, 65.9, 109.7, 58.3, 119.1),
    "node-rehearsal-0.75": (149.0, 64.8, 99.7, 59.0, 119.9),
    "node-without-forgetting-0.25": (128.4, 66.0, 162.8, 54.9, 146.0),
    "node-without-forgetting-0.5": (147.0, 64.9, 121.7, 57.5, 132.7),
    "node-without-forgetting-0.75": (186.5, 63.1, 101.1, 59.2, 133.9),
    "node-plain-1": (265.1, 60.2, 93.4, 59.7, 150.8),
    "transfer-generated-1": (109.2, 67.2, 259.7, 50.8, 174.4),
    "transfer-generated-5": (112.3, 67.0, 246.0, 51.2, 171.6),
    "transfer-public-1": (108.7, 67.2, 261.2, 50.7, 174.6),
    "averaging-one-round": (102.8, 67.7, 233.8, 51.9, 160.3),
    "averaging": (105.5, 67.3, 109.3, 58.4, 107.5),
}

# Table 3: α, C and √k times the Lilliefors statistic of 20 pairs. Table 4: the largest ε at each δ.
TABLE_3 = (
    (15.8, 3.25, 0.49),
    (20.9, 5.64, 0.91),
    (15.1, 2.02, 0.48),
    (16.6, 2.48, 0.62),
    (16.5, 2.70, 0.83),
    (17.6, 4.19, 0.59),
    (14.9, 1.47, 1.39),
    (19.2, 3.31, 0.41),
    (15.6, 1.65, 0.93),
    (15.2, 1.83, 0.51),
    (16.5, 3.00, 0.76),
    (14.4, 1.53, 0.89),
    (19.5, 3.67, 0.66),
    (18.2, 2.20, 0.94),
    (16.2, 3.42, 0.67),
    (17.2, 2.66, 0.85),
    (17.3, 1.68, 0.73),
    (14.8, 2.18, 0.97),
    (17.1, 2.87, 0.65),
    (20.5, 4.60, 0.94),
)
TABLE_4 = (0.67, 0.83, 0.99)

# Section 2.6: rounds, passes a round, gigabytes in all, perplexity by averaging and by sparse gradients (Lin et al.).
PTB_ROUNDS, PTB_EPOCHS, PTB_GIGABYTES, PTB_AVERAGED, PTB_SPARSE = 28, 10, 5.6, 74.48, 72.24


@dataclass(frozen=True)
class Scale:
    """Figures of a size besides the rounds and cohorts of averaging.

    Args:
        public_rounds: Rounds of pre-training.
        pieces: Pieces of public text in one of them.
        lanes: Lanes of pre-training and of a node.
        leave_one_out: Models without one user, for Tables 3 and 4.
        texts: Sampled texts for Tables 3 and 4.
    """

    public_rounds: int
    pieces: int
    lanes: int
    unroll: int
    distillation_tokens: int
    tail_rounds: int
    leave_one_out: int
    texts: int
    ptb_width: int
    ptb_lanes: int
    ptb_rounds: int
    ptb_epochs: int

    @property
    def ptb_model(self) -> Section:
        return {**_PTB, "embedding": self.ptb_width, "hidden": self.ptb_width}


# Dropout is not printed either. With 0.5 a node memorised its share of the text from the fifth round on.
_PTB = {"kind": "stacked_lstm", "layers": 2, "dropout": 0.65, "tied": True, "variational": True}

# gpu: Wikipedia's 5,800 pieces are read one and a half times.
SCALES = {
    "smoke": Scale(
        public_rounds=2,
        pieces=20,
        lanes=4,
        unroll=10,
        distillation_tokens=160,
        tail_rounds=1,
        leave_one_out=2,
        texts=400,
        ptb_width=8,
        ptb_lanes=4,
        ptb_rounds=2,
        ptb_epochs=2,
    ),
    "cpu": Scale(
        public_rounds=20,
        pieces=60,
        lanes=8,
        unroll=20,
        distillation_tokens=2000,
        tail_rounds=3,
        leave_one_out=5,
        texts=3000,
        ptb_width=32,
        ptb_lanes=8,
        ptb_rounds=4,
        ptb_epochs=3,
    ),
    "gpu": Scale(
        public_rounds=87,
        pieces=100,
        lanes=20,
        unroll=35,
        distillation_tokens=20_000,
        tail_rounds=5,
        leave_one_out=20,
        texts=30_000,
        ptb_width=1500,
        ptb_lanes=40,
        ptb_rounds=PTB_ROUNDS,
        ptb_epochs=PTB_EPOCHS,
    ),
}

_NOT_PRIVATE = {"mode": "none", "noise_std": None}
_FIXED = {**_NOT_PRIVATE, "sampling": "fixed"}
_IN_TURN = {**_NOT_PRIVATE, "sampling": "in_turn"}


def pretrained(size: Size) -> Trial:
    """Adam on public text; its rate is halved at one half and at three quarters. All trials but `ptb` start here."""
    scale = SCALES[size.name]
    rounds = scale.public_rounds
    falls = {1: 1.0, rounds // 2 + 1: 0.5, rounds * 3 // 4 + 1: 0.25}
    return Trial(
        "initial server model",
        Changes(
            privacy=_FIXED,
            run={"algorithm": "central", "evaluate_every": -(-rounds // 2)},
            local={"batch": scale.lanes, "unroll": scale.unroll, "learning_rate": 1.0},
            server={"optimiser": "adam", "learning_rate": 0.001, "schedule": tuple(falls.items())},
        ),
        rounds=rounds / size.rounds,
        cohort=scale.pieces / size.cohort,
        corpus=PUBLIC,
        short_name="pretrained",
        single_seed=True,
    )


def _objective(kind: str, share: float) -> dict[str, Any]:
    return {"objective": kind, "user_share": share} if kind != "plain" else {}


def node(size: Size, kind: str, share: float) -> Trial:
    """One node reads the text of some users once. λ is in its objective, or in the share of public text it reads."""
    scale = SCALES[size.name]
    words = {"rehearsal": "random rehearsal", "without_forgetting": "learning without forgetting", "plain": "plain"}
    local = {"batch": scale.lanes, "unroll": scale.unroll, "learning_rate": RATE, **_objective(kind, share)}
    return Trial(
        f"{words[kind]}, λ = {share:g}",
        Changes(_FIXED, local),
        rounds=1 / size.rounds,
        cohort=1 / size.cohort,
        corpus=Corpus("node", with_public_text=kind == "rehearsal"),
        after=pretrained(size),
        short_name=f"node-{kind.replace('_', '-')}-{share:g}",
    )


def averaging(size: Size, label: str, name: str, *, rounds: float, kind: str = "rehearsal") -> Trial:
    """Devices train and the server averages their models."""
    return Trial(
        label,
        Changes(_IN_TURN, {"learning_rate": RATE, **_objective(kind, SHARE)}),
        rounds=rounds,
        corpus=Corpus(with_public_text=kind == "rehearsal"),
        after=pretrained(size),
        short_name=name,
    )


def _rounds(number: int) -> str:
    return f"{number} round{'s' if number > 1 else ''}"


def rehearsed(size: Size) -> Trial:
    return averaging(size, f"model averaging ({_rounds(size.rounds)})", "averaging", rounds=1)


def forgetful(size: Size) -> Trial:
    return averaging(size, "without rehearsal", "averaging-plain", rounds=1, kind="plain")


def one_round(size: Size) -> Trial:
    return averaging(size, "model averaging (1 round)", "averaging-one-round", rounds=1 / size.rounds)


def distillation(size: Size, text: str, cycles: int) -> Trial:
    """One round of distillation ("transfer learning"): six passes over one text, or one pass over each of five."""
    words = "real data" if text == "public" else f"generated data ({cycles} cycle{'s' if cycles > 1 else ''})"
    tokens, epochs = SCALES[size.name].distillation_tokens, 6 if cycles == 1 else 1
    strategy = Distillation(tokens, epochs, cycles, generated=text == "generated")
    label, name = f"transfer learning on {words}", f"transfer-{text}-{cycles}"
    trial = averaging(size, label, name, rounds=1 / size.rounds)
    return replace(trial, strategy=strategy, changes=replace(trial.changes, server={"learning_rate": RATE}))


def tails(size: Size) -> Trial:
    """A short run, because it is trained again without each of some users."""
    scale = SCALES[size.name]
    label = f"model averaging ({_rounds(scale.tail_rounds)}), with and without a user"
    trial = averaging(size, label, "averaging-pairs", rounds=scale.tail_rounds / size.rounds)
    return replace(trial, leave_one_out=scale.leave_one_out)


# The most important first: a short budget runs those.
EXPERIMENTS = Experiments()


@EXPERIMENTS.add(
    "table-2", "Table 2: averaging and transfer learning", "Averaging does better, and costs less", view=""
)
def _table_2(size: Size) -> list[Trial]:
    distilled = [
        distillation(size, "generated", 1),
        distillation(size, "generated", 5),
        distillation(size, "public", 1),
    ]
    return [pretrained(size), rehearsed(size), one_round(size), *distilled]


EXPERIMENTS.add("figure-2", "Figure 2: with and without rehearsal", "Without it, public text is forgotten", view="own")(
    lambda size: [rehearsed(size), forgetful(size)]
)


@EXPERIMENTS.add(
    "table-1",
    "Table 1: rehearsal and learning without forgetting",
    "Rehearsal forgets less for what it learns",
    view="",
)
def _table_1(size: Size) -> list[Trial]:
    rows = [node(size, kind, share) for kind in ("rehearsal", "without_forgetting") for share in SHARES]
    return [pretrained(size), *rows, node(size, "plain", 1.0)]


EXPERIMENTS.add("table-3", "Table 3: tails of c(s)", "They are Pareto's: the Lilliefors test rejects few", view="")(
    lambda size: [tails(size)]
)


EXPERIMENTS.add("table-4", "Table 4: ε by δ, estimated", "The largest of all pairs", view="")(
    lambda size: [tails(size)]
)


EXPERIMENTS.add(
    "figure-3", "Figure 3: the tail of c(s)", "How many texts are in it, and how far off the law is", view="own"
)(lambda size: [tails(size)])


@EXPERIMENTS.add(
    "ptb", "Section 2.6: perplexity by gigabytes", "The Penn Treebank, averaged, from a random model", view="own"
)
def benchmark(size: Size) -> list[Trial]:
    """A random model, averaged over all nodes every round.

    Each round is a run that continues from the one before, so that a benchmark that is stopped has a result too.
    """
    scale = SCALES[size.name]
    chain: list[Trial] = []
    for number in range(1, scale.ptb_rounds + 1):
        falls = sum(number * PTB_ROUNDS > fall * scale.ptb_rounds for fall in PTB_FALLS)
        local = {
            "batch": scale.ptb_lanes,
            "unroll": scale.unroll,
            "epochs": scale.ptb_epochs,
            "learning_rate": PTB_RATE / 4**falls,
            "gradient_clip": PTB_CLIP,
        }
        trial = Trial(
            f"round {number}",
            Changes(_FIXED, local, model=scale.ptb_model),
            rounds=1 / size.rounds,
            cohort=NODES / size.cohort,
            corpus=Corpus("ptb"),
            after=chain[-1] if chain else None,
            short_name=f"ptb-round-{number:02}",
        )
        chain.append(trial)
    return chain
