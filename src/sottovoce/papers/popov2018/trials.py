"""Popov et al. 2018, "Differentially private distributed learning for language modeling tasks": Tables 1 to 4, Figures
2 and 3, and the benchmark of section 2.6.

The base is the shipped recipe `popov2018` (section 2.5). All begin with one model that was pre-trained on public text.
Devices come in turn, each once, as in the paper's queue. Nothing is private: there is neither clip nor noise.

Table 1 is of a single node, as in the paper: the text of some users is one text, read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.papers.engine.partitions import NODES
from sottovoce.papers.engine.trial import Experiment, Size, Trial

TITLE = "Popov et al. 2018, Differentially private distributed learning for language modeling tasks"
RATE = 0.75  # η on a device; here on a node too, and where the server imitates, of which nothing is printed
# Not printed. They are usual for this model from random weights: at η = 10 already it diverges without such a clip.
# η is quartered after these of 28 rounds.
PTB_RATE, PTB_CLIP, PTB_FALLS = 20.0, 0.25, (8, 13, 18)
SHARES = (0.25, 0.5, 0.75)  # λ
SHARE = 0.5  # λ of all that is averaged: the best of Table 1
DELTAS = (1e-4, 1e-5, 1e-6)

_LSTM = {"kind": "lstm", "layers": None, "dropout": None}  # with one layer, which a CPU can train

# gpu: 100 held-out people of 2,000 tokens and 100 pieces of 1,600, as in the paper's 200 and 170 thousand tokens.
SIZES = {
    "smoke": Size("smoke", rounds=4, cohort=4, evaluate_every=2, evaluate_users=4, synthetic=60, node_users=8,
                  changes={"model": {**_LSTM, "embedding": 8, "hidden": 12}, "local": {"batch": 4, "unroll": 10}}),
    "cpu": Size("cpu", rounds=30, cohort=5, evaluate_every=5, evaluate_users=10, synthetic=300, synthetic_tokens=400,
                node_users=30, changes={"model": {**_LSTM, "embedding": 32, "hidden": 64}}),
    "gpu": Size("gpu", rounds=150, cohort=10, evaluate_every=15, evaluate_users=100, synthetic=2000,
                synthetic_tokens=2000, node_users=250, full=True),
}  # fmt: skip

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
    (15.8, 3.25, 0.49), (20.9, 5.64, 0.91), (15.1, 2.02, 0.48), (16.6, 2.48, 0.62), (16.5, 2.70, 0.83),
    (17.6, 4.19, 0.59), (14.9, 1.47, 1.39), (19.2, 3.31, 0.41), (15.6, 1.65, 0.93), (15.2, 1.83, 0.51),
    (16.5, 3.00, 0.76), (14.4, 1.53, 0.89), (19.5, 3.67, 0.66), (18.2, 2.20, 0.94), (16.2, 3.42, 0.67),
    (17.2, 2.66, 0.85), (17.3, 1.68, 0.73), (14.8, 2.18, 0.97), (17.1, 2.87, 0.65), (20.5, 4.60, 0.94),
)  # fmt: skip
TABLE_4 = (0.67, 0.83, 0.99)

# Section 2.6: rounds, passes a round, gigabytes in all, perplexity by averaging and by sparse gradients (Lin et al.).
PTB_ROUNDS, PTB_EPOCHS, PTB_GIGABYTES, PTB_AVERAGED, PTB_SPARSE = 28, 10, 5.6, 74.48, 72.24


@dataclass(frozen=True)
class Scale:
    """What a size means beside the rounds and cohorts of averaging."""

    public_rounds: int  # of pre-training
    pieces: int  # of public text in one of them
    lanes: int  # of pre-training, of a node and of the benchmark
    unroll: int
    transfer_tokens: int
    tail_rounds: int
    pairs: int
    texts: int
    ptb_model: Mapping[str, Any]
    ptb_lanes: int
    ptb_rounds: int
    ptb_epochs: int


# Dropout is not printed either. With 0.5 a node learned its share of the text by heart from the fifth round on.
_PTB = {"kind": "stacked_lstm", "layers": 2, "dropout": 0.65, "tied": True, "variational": True}

# gpu: Wikipedia's 5,800 pieces are read one and a half times.
SCALES = {
    "smoke": Scale(2, 20, 4, 10, 160, 1, 2, 400, {**_PTB, "embedding": 8, "hidden": 8}, 4, 2, 2),
    "cpu": Scale(20, 60, 8, 20, 2000, 3, 5, 3000, {**_PTB, "embedding": 32, "hidden": 32}, 8, 4, 3),
    "gpu": Scale(87, 100, 20, 35, 20_000, 5, 20, 30_000, {**_PTB, "embedding": 1500, "hidden": 1500}, 40,
                 PTB_ROUNDS, PTB_EPOCHS),
}  # fmt: skip

_NOTHING = {"mode": "none", "noise_std": None}  # is promised


def pretrained(size: Size) -> Trial:
    """Adam on public text, its rate halved half-way and again at three quarters: what all others but one go on from."""
    scale = SCALES[size.name]
    rounds = scale.public_rounds
    falls = {1: 1.0, rounds // 2 + 1: 0.5, rounds * 3 // 4 + 1: 0.25}
    return Trial(
        "initial server model", called="pretrained", on="public", elsewhere=True, once=True,
        privacy={**_NOTHING, "sampling": "fixed"},
        rounds=rounds / size.rounds, cohort=scale.pieces / size.cohort,
        run={"algorithm": "central", "evaluate_every": -(-rounds // 2)},
        local={"batch": scale.lanes, "unroll": scale.unroll, "learning_rate": 1.0},
        server={"optimiser": "adam", "learning_rate": 0.001, "schedule": tuple(falls.items())},
    )  # fmt: skip


def _objective(kind: str, share: float) -> dict[str, Any]:
    return {"objective": kind, "user_share": share} if kind != "plain" else {}


def node(size: Size, kind: str, share: float) -> Trial:
    """One node reads the text of some users once. λ is in its objective, or in how much public text joins it."""
    scale = SCALES[size.name]
    words = {"rehearsal": "random rehearsal", "without_forgetting": "learning without forgetting", "plain": "plain"}
    return Trial(
        f"{words[kind]}, λ = {share:g}", called=f"node-{kind.replace('_', '-')}-{share:g}", on="node",
        after=pretrained(size), privacy={**_NOTHING, "sampling": "fixed"}, rounds=1 / size.rounds,
        cohort=1 / size.cohort, needs=("public",) if kind == "rehearsal" else (),
        local={"batch": scale.lanes, "unroll": scale.unroll, "learning_rate": RATE, **_objective(kind, share)},
    )  # fmt: skip


def averaging(size: Size, label: str, called: str, *, rounds: float, kind: str = "rehearsal",
              pairs: int = 0, server: Mapping[str, Any] | None = None) -> Trial:  # fmt: skip
    """Devices train and the server averages, or does what `server` says."""
    return Trial(
        label, called=called, after=pretrained(size), privacy={**_NOTHING, "sampling": "in_turn"}, rounds=rounds,
        needs=("public",) if kind == "rehearsal" else (), pairs=pairs, server=server or {},
        local={"learning_rate": RATE, **_objective(kind, SHARE)},
    )  # fmt: skip


def _rounds(number: int) -> str:
    return f"{number} round{'s' if number > 1 else ''}"


def rehearsed(size: Size) -> Trial:
    return averaging(size, f"model averaging ({_rounds(size.rounds)})", "averaging", rounds=1)


def forgetful(size: Size) -> Trial:
    return averaging(size, "without rehearsal", "averaging-plain", rounds=1, kind="plain")


def one_round(size: Size) -> Trial:
    return averaging(size, "model averaging (1 round)", "averaging-one-round", rounds=1 / size.rounds)


def transfer(size: Size, text: str, cycles: int) -> Trial:
    """One round of imitation: six passes over one text, or a pass over each of five."""
    words = "real data" if text == "public" else f"generated data ({cycles} cycle{'s' if cycles > 1 else ''})"
    server = {
        "update": "transfer", "text": text, "tokens": SCALES[size.name].transfer_tokens, "cycles": cycles,
        "epochs": 6 if cycles == 1 else 1, "learning_rate": RATE,
    }  # fmt: skip
    called = f"transfer-{text}-{cycles}"
    return averaging(size, f"transfer learning on {words}", called, rounds=1 / size.rounds, server=server)


def tails(size: Size) -> Trial:
    """Short, as it is trained again without each of some users."""
    scale = SCALES[size.name]
    label = f"model averaging ({_rounds(scale.tail_rounds)}), with and without a user"
    return averaging(size, label, "averaging-pairs", rounds=scale.tail_rounds / size.rounds, pairs=scale.pairs)


def benchmark(size: Size) -> list[Trial]:
    """A random model, averaged over all nodes every round. A round is a run, which goes on from the one before: however
    far it comes, that far is told."""
    scale = SCALES[size.name]
    chain: list[Trial] = []
    for number in range(1, scale.ptb_rounds + 1):
        falls = sum(number * PTB_ROUNDS > fall * scale.ptb_rounds for fall in PTB_FALLS)
        chain.append(Trial(
            f"round {number}", called=f"ptb-round-{number:02}", on="ptb", after=chain[-1] if chain else None,
            privacy={**_NOTHING, "sampling": "fixed"}, model=scale.ptb_model, rounds=1 / size.rounds,
            cohort=NODES / size.cohort,
            local={"batch": scale.ptb_lanes, "unroll": scale.unroll, "epochs": scale.ptb_epochs,
                   "learning_rate": PTB_RATE / 4**falls, "gradient_clip": PTB_CLIP},
        ))  # fmt: skip
    return chain


def _table_1(size: Size) -> list[Trial]:
    rows = [node(size, kind, share) for kind in ("rehearsal", "without_forgetting") for share in SHARES]
    return [pretrained(size), *rows, node(size, "plain", 1.0)]


def _table_2(size: Size) -> list[Trial]:
    imitated = [transfer(size, "generated", 1), transfer(size, "generated", 5), transfer(size, "public", 1)]
    return [pretrained(size), rehearsed(size), one_round(size), *imitated]


# In the order in which a short budget is best spent.
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("table-2", "Table 2: averaging and transfer learning", "Averaging does better, and costs less",
                   _table_2, view=""),
        Experiment("figure-2", "Figure 2: with and without rehearsal", "Without it, public text is forgotten",
                   lambda size: [rehearsed(size), forgetful(size)], view="own"),
        Experiment("table-1", "Table 1: rehearsal and learning without forgetting",
                   "Rehearsal forgets less for what it learns", _table_1, view=""),
        Experiment("table-3", "Table 3: tails of c(s)", "They are Pareto's: the Lilliefors test rejects few",
                   lambda size: [tails(size)], view=""),
        Experiment("table-4", "Table 4: ε by δ, estimated", "The largest of all pairs",
                   lambda size: [tails(size)], view=""),
        Experiment("figure-3", "Figure 3: the tail of c(s)", "How many texts are in it, and how far off the law is",
                   lambda size: [tails(size)], view="own"),
        Experiment("ptb", "Section 2.6: perplexity by gigabytes", "The Penn Treebank, averaged, from a random model",
                   benchmark, view="own"),
    )
}  # fmt: skip
