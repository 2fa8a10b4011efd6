"""Compare this project with others on one machine, on the workload of `sotto bench --workload mcmahan-lstm`.

    python benchmarks/against_pfl.py --pfl PYTHON                       # by turns with pfl
    python benchmarks/against_pfl.py --pfl PYTHON --torch --plain       # one table with all of them

- pfl (PyTorch) needs an environment of its own with torch; `--pfl` names its Python. On a CPU it trains with one
  single-threaded process a core, on a GPU with one process. It clips an update once, at the end; `--clip-every-step`
  adds the clip after every step that the workload has.
- `--torch`: PyTorch without a framework, one user after another, by the same Python and in as many processes.
- `--plain`: `benchmarks/plain.py`, 80 lines of JAX.

The programs take turns. Prints, for every turn, users per second and users per core second, the medians and how many
times this project has those of each. Other work on the machine changes seconds more than core seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LANES, UNROLL, STEPS, WORDS = 8, 10, 20, 10_000
RATE, CLIP = 6.0, 15.0
OURS, PFL, TORCH, PLAIN = "sottovoce", "pfl", "PyTorch, one user after another", "plain JAX"


def work(program: str, users: int, every_step: bool) -> None:
    """One process: prints when it is ready, waits for a line, trains, and prints the seconds that its users took."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    play = prepare_pfl(torch, every_step) if program == PFL else prepare_torch(torch)
    play(1)
    print("ready", flush=True)
    sys.stdin.readline()
    begun, worked = time.perf_counter(), time.process_time()
    play(users)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print(f"seconds {time.perf_counter() - begun} {time.process_time() - worked}", flush=True)


def device_of(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def next_word(torch: Any) -> Any:
    """The paper's LSTM: 96 numbers a word, 256 hidden, output tied to the embedding, whose rows have norm 1."""

    class NextWord(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Parameter(torch.randn(WORDS, 96) * 0.1)
            self.lstm = torch.nn.LSTM(96, 256, batch_first=True)
            self.projection = torch.nn.Linear(256, 96)
            self.state = None

        def loss(self, inputs: Any, targets: Any, first: Any) -> Any:
            rows = torch.nn.functional.normalize(self.embedding, dim=1)
            state = None if bool(first[0]) else self.state
            hidden, state = self.lstm(rows[inputs[0]], state)
            self.state = tuple(part.detach() for part in state)
            scores = self.projection(hidden).reshape(-1, 96) @ rows.T
            return torch.nn.functional.cross_entropy(scores, targets[0].reshape(-1))

        def metrics(self, inputs: Any, targets: Any, first: Any) -> Any:
            from pfl.metrics import Weighted

            return {"loss": Weighted(0.0, 1)}

    return NextWord().to(device_of(torch))


def texts_of(torch: Any) -> Callable[[], list[Any]]:
    """Makes a user: inputs and targets [steps, lanes, unroll], and which step is the first."""
    import numpy as np

    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(WORDS) + 10.0)
    chances /= chances.sum()
    first = torch.tensor([step == 0 for step in range(STEPS)])

    def text() -> list[Any]:
        tokens = torch.from_numpy(generator.choice(WORDS, size=(LANES, STEPS * UNROLL + 1), p=chances))
        cut = [
            part.reshape(LANES, STEPS, UNROLL).transpose(0, 1).contiguous() for part in (tokens[:, :-1], tokens[:, 1:])
        ]
        return [*(part.to(device_of(torch)) for part in cut), first]

    return text


def clip_to(torch: Any, weights: list[Any], received: list[Any]) -> None:
    """Clip the whole update, as the workload does after every step."""
    with torch.no_grad():
        changes = [weight - was for weight, was in zip(weights, received, strict=True)]
        norm = torch.sqrt(sum(torch.sum(change * change) for change in changes))
        if norm > CLIP:
            for weight, was, change in zip(weights, received, changes, strict=True):
                weight.copy_(was + change * (CLIP / norm))


def prepare_torch(torch: Any) -> Callable[[int], None]:
    """Algorithm 1 as a loop: local SGD, the clip after every step, the sum, noise, the server's step."""
    module, text = next_word(torch), texts_of(torch)
    weights = list(module.parameters())

    def play(cohort: int) -> None:
        received = [weight.detach().clone() for weight in weights]
        total = [torch.zeros_like(weight) for weight in received]
        for _ in range(cohort):
            for inputs, targets, first in zip(*text(), strict=True):
                loss = module.loss(inputs[None], targets[None], first[None])
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight -= RATE * gradient
                clip_to(torch, weights, received)
            with torch.no_grad():
                for sums, weight, was in zip(total, weights, received, strict=True):
                    sums += weight - was
                    weight.copy_(was)
        with torch.no_grad():
            for weight, sums in zip(weights, total, strict=True):
                weight += (sums + CLIP * torch.randn_like(sums)) / cohort

    return play


def prepare_pfl(torch: Any, every_step: bool) -> Callable[[int], None]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class EveryStepClipped(torch.optim.SGD):
        """Clips the whole update after each step, which pfl does not do itself."""

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            clip_to(torch, [weight for group in self.param_groups for weight in group["params"]], received)

    module, text = next_word(torch), texts_of(torch)
    received = [weight.detach().clone() for weight in module.parameters()]
    optimiser = EveryStepClipped if every_step else torch.optim.SGD
    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), lr=1.0))
    people = FederatedDataset(
        lambda name: Dataset(text(), user_id=str(name)), get_user_sampler("random", [*range(1000)])
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, 1e-3))
    backend = SimulatedBackend(people, people, [noise])
    evaluation = NNEvalHyperParams(local_batch_size=1)
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=1)

    def play(cohort: int) -> None:
        plan = NNAlgorithmParams(
            central_num_iterations=1, evaluation_frequency=1000, train_cohort_size=cohort, val_cohort_size=0
        )
        FederatedAveraging().run(plan, backend, model, training, evaluation, [])

    return play


class Rates(NamedTuple):
    users_per_second: float
    users_per_core_second: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", metavar="PYTHON", help="Python of an environment with torch and pfl")
    parser.add_argument("--torch", action="store_true", help="also PyTorch, one user after another")
    parser.add_argument("--plain", action="store_true", help="also plain JAX")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--users", type=int, default=16, help="users of each turn, for all programs")
    parser.add_argument("--slow-users", type=int, help="users of each turn for programs of torch, if fewer")
    parser.add_argument("--processes", type=int, help="of torch; one for each core unless said otherwise, on a GPU one")
    parser.add_argument("--clip-every-step", action="store_true")
    parser.add_argument("--work", choices=(PFL, TORCH), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.users, options.clip_every_step)
        return
    programs: dict[str, Callable[[], Rates]] = {
        PFL: lambda: torch_rates(PFL, options),
        **({TORCH: lambda: torch_rates(TORCH, options)} if options.torch else {}),
        **({PLAIN: lambda: plain_rates(options.users)} if options.plain else {}),
        OURS: lambda: own_rates(options.users),
    }
    turns: dict[str, list[Rates]] = {name: [] for name in programs}
    for _ in range(options.turns):
        for name, measure in programs.items():
            turns[name].append(measure())
    for kind in Rates._fields:
        rates = {name: [getattr(rate, kind) for rate in each] for name, each in turns.items()}
        medians = {name: statistics.median(values) for name, values in rates.items()}
        ratios = {name: medians[OURS] / median for name, median in medians.items() if name != OURS}
        print(json.dumps({kind: rates, "medians": medians, "ratios": ratios}, indent=1))


def own_rates(users: int) -> Rates:
    command = [sys.executable, "-m", "sottovoce", "bench", "--workload", "mcmahan-lstm", "--json"]
    done = subprocess.run([*command, "--cohort", str(users)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return Rates(found["users_per_second"], users / found["core_seconds_a_round"])


def plain_rates(users: int) -> Rates:
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), "--cohort", str(users), "--json"]
    return Rates(**json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def torch_rates(program: str, options: argparse.Namespace) -> Rates:
    count = options.processes or len(os.sched_getaffinity(0))
    users = (options.slow_users or options.users) // count
    command = [options.pfl, __file__, "--work", program, "--users", str(users)]
    workers = [
        subprocess.Popen(
            command + ["--clip-every-step"] * options.clip_every_step,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(count)
    ]
    for worker in workers:
        answer(worker, "ready")
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    took = [[float(number) for number in answer(worker, "seconds").split()] for worker in workers]
    trained = users * count
    return Rates(trained / max(seconds for seconds, _ in took), trained / sum(worked for _, worked in took))


def answer(worker: subprocess.Popen[str], word: str) -> str:
    """The rest of the next line that begins with a word; pfl prints other lines too."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(word):
            return line[len(word) :]
    raise SystemExit("a process of torch ended early: run with --work to see why")


if __name__ == "__main__":
    main()
