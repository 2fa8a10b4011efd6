"""Compare this project with pfl (PyTorch) on one machine, on the workload of `sotto bench --workload mcmahan-lstm`.

pfl needs an environment of its own with torch; `--pfl` names its Python. It trains with one single-threaded process a
core. pfl clips an update once, at the end; `--clip-every-step` adds the clip after every step that the workload has.
The two programs alternate. Prints, for every turn, users per second and users per core second, the medians and their
ratios. Other work on the machine changes seconds more than core seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

LANES, UNROLL, STEPS, WORDS = 8, 10, 20, 10_000


def work(users: int, every_step: bool) -> None:
    """One process: prints when it is ready, waits for a line, trains, and prints the seconds that its users took."""
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)

    class NextWord(torch.nn.Module):
        """The paper's LSTM: 96 numbers a word, 256 hidden, output tied to the embedding, whose rows have norm 1."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Parameter(torch.randn(WORDS, 96) * 0.1)
            self.lstm = torch.nn.LSTM(96, 256, batch_first=True)
            self.projection = torch.nn.Linear(256, 96)
            self.state = None

        def loss(self, inputs, targets, first):
            rows = torch.nn.functional.normalize(self.embedding, dim=1)
            state = None if bool(first[0]) else self.state
            hidden, state = self.lstm(rows[inputs[0]], state)
            self.state = tuple(part.detach() for part in state)
            scores = self.projection(hidden).reshape(-1, 96) @ rows.T
            return torch.nn.functional.cross_entropy(scores, targets[0].reshape(-1))

        def metrics(self, inputs, targets, first):
            return {"loss": Weighted(0.0, 1)}

    class EveryStepClipped(torch.optim.SGD):
        """Clips the whole update after each step, which pfl does not do itself."""

        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            weights = [weight for group in self.param_groups for weight in group["params"]]
            changes = [weight - was for weight, was in zip(weights, received, strict=True)]
            norm = torch.sqrt(sum(torch.sum(change * change) for change in changes))
            if norm > 15.0:
                for weight, was, change in zip(weights, received, changes, strict=True):
                    weight.copy_(was + change * (15.0 / norm))

    module = NextWord()
    received = [weight.detach().clone() for weight in module.parameters()]
    optimiser = EveryStepClipped if every_step else torch.optim.SGD
    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), lr=1.0))
    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(WORDS) + 10.0)
    chances /= chances.sum()
    first = torch.tensor([step == 0 for step in range(STEPS)])

    def user(_: int) -> Dataset:
        tokens = torch.from_numpy(generator.choice(WORDS, size=(LANES, STEPS * UNROLL + 1), p=chances))
        cut = [
            part.reshape(LANES, STEPS, UNROLL).transpose(0, 1).contiguous() for part in (tokens[:, :-1], tokens[:, 1:])
        ]
        return Dataset([*cut, first], user_id=str(_))

    people = FederatedDataset(user, get_user_sampler("random", list(range(1000))))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(15.0, 1e-3))
    backend = SimulatedBackend(people, people, [noise])
    evaluation = NNEvalHyperParams(local_batch_size=1)
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=6.0, local_batch_size=1)

    def play(cohort: int) -> None:
        plan = NNAlgorithmParams(
            central_num_iterations=1, evaluation_frequency=1000, train_cohort_size=cohort, val_cohort_size=0
        )
        FederatedAveraging().run(plan, backend, model, training, evaluation, [])

    play(1)
    print("ready", flush=True)
    sys.stdin.readline()
    begun, worked = time.perf_counter(), time.process_time()
    play(users)
    print(f"seconds {time.perf_counter() - begun} {time.process_time() - worked}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfl", metavar="PYTHON", help="Python of an environment with torch and pfl")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--users", type=int, default=16, help="users of each turn, for both programs")
    parser.add_argument("--clip-every-step", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.users, options.clip_every_step)
        return
    turns: dict[str, list[Rates]] = {"pfl": [], "sottovoce": []}
    for _ in range(options.turns):
        turns["pfl"].append(pfl_rates(options.pfl, options.users, options.clip_every_step))
        turns["sottovoce"].append(own_rates(options.users))
    for kind in Rates._fields:
        rates = {name: [getattr(rate, kind) for rate in each] for name, each in turns.items()}
        medians = {name: statistics.median(values) for name, values in rates.items()}
        ratio = medians["sottovoce"] / medians["pfl"]
        print(json.dumps({kind: rates, "medians": medians, "ratio": ratio}, indent=1))


class Rates(NamedTuple):
    users_per_second: float
    users_per_core_second: float


def own_rates(users: int) -> Rates:
    command = [sys.executable, "-m", "sottovoce.cli.main", "bench", "--workload", "mcmahan-lstm", "--json"]
    done = subprocess.run([*command, "--cohort", str(users)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return Rates(found["users_per_second"], users / found["core_seconds_a_round"])


def pfl_rates(python: str, users: int, clip_every_step: bool) -> Rates:
    cores = len(os.sched_getaffinity(0))
    command = [python, __file__, "--work", "--users", str(users // cores)]
    workers = [
        subprocess.Popen(
            command + ["--clip-every-step"] * clip_every_step,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(cores)
    ]
    for worker in workers:
        answer(worker, "ready")
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    took = [[float(number) for number in answer(worker, "seconds").split()] for worker in workers]
    trained = users // cores * cores
    return Rates(trained / max(seconds for seconds, _ in took), trained / sum(worked for _, worked in took))


def answer(worker: subprocess.Popen, word: str) -> str:
    """The rest of the next line that begins with a word; pfl prints other lines too."""
    for line in worker.stdout:
        if line.startswith(word):
            return line[len(word) :]
    raise SystemExit("a process of pfl ended early: run with --work to see why")


if __name__ == "__main__":
    main()
