"""Compare this project with others on one machine, on the workload mcmahan-lstm of `benchmarks/workloads.py`.

    python benchmarks/against_pfl.py --pfl PYTHON                       # by turns with pfl
    python benchmarks/against_pfl.py --pfl PYTHON --torch --plain       # one table with all of them
    python benchmarks/against_pfl.py --pfl PYTHON --torch --plain --plain-bfloat16 \\
        --clip-every-step --users 500 --slow-users 100 --processes 1 8  # the same on a GPU

- pfl (PyTorch) needs an environment of its own with torch; `--pfl` names its Python. On a CPU it trains with one
  single-threaded process a core, on a GPU with one process; `--processes` may name several numbers, a row each. It
  clips an update once, at the end; `--clip-every-step` adds the clip after every step that the workload has.
- `--torch`: PyTorch without a framework, one user after another, by the same Python and in as many processes.
- `--plain`: `benchmarks/plain.py`, JAX without a framework; `--plain-bfloat16`: the same with losses in bfloat16.

On a GPU, PyTorch and plain JAX multiply in TF32, and their users lie in its memory before the clock starts. Only this
project gathers users within a round.

All programs start first, compile and train once. Then they take turns of whole rounds, for `--seconds` each; the others
wait. Prints, for every turn, users per second and users per core second, the medians and how many times this project
has those of each. Other work on the machine changes seconds more than core seconds.
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
from functools import partial
from typing import Any, NamedTuple

LANES, UNROLL, STEPS, WORDS = 8, 10, 20, 10_000
RATE, CLIP = 6.0, 15.0
OURS, PFL, TORCH = "sottovoce", "pfl", "PyTorch, one user after another"
PLAIN, NARROW = "plain JAX", "plain JAX, bfloat16"
DIFFERENT_USERS = 64  # of programs of torch: they take turns

Round = Callable[[], int]  # plays a round and gives the number of its users


def work(program: str, users: int, every_step: bool, seconds: float) -> None:
    """One process: says when it is ready. For every line that it reads, it trains and says how long that took."""
    play, device = PREPARE[program](users, every_step)
    print("ready", device, flush=True)
    for _ in sys.stdin:
        trained, begun, worked = 0, time.perf_counter(), time.process_time()
        while not trained or time.perf_counter() - begun < seconds:
            trained += play()
        print("trained", trained, time.perf_counter() - begun, time.process_time() - worked, flush=True)


def prepare_own(users: int, every_step: bool) -> tuple[Round, str]:
    """As `benchmarks/workloads.py` times it, with a device for each core of a CPU. It always clips after every step."""
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(len(os.sched_getaffinity(0))))
    import jax
    from workloads import WORKLOADS

    from sottovoce.commands.bench import play_next

    workload = WORKLOADS["mcmahan-lstm"]
    store = workload.users(users)
    assembly = workload.assemble(store)
    play = play_next(assembly, store)

    def whole_round() -> int:
        state, users = play()
        jax.block_until_ready(state.params)  # else the next program would be timed with the end of it
        return users

    for _ in range(2):
        whole_round()
    products = type(assembly.sum_updates.products).__name__
    return whole_round, f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {products}"


def prepare_plain(kind: str, users: int, every_step: bool) -> tuple[Round, str]:
    """It always clips after every step."""
    import jax
    import plain

    play, users = plain.prepare(users, jax.numpy.dtype(kind))
    for _ in range(2):
        play()
    return lambda: play() or users, f"jax {jax.__version__}, {jax.devices()[0].device_kind}"


def prepare_with_torch(prepare: Callable[[Any, bool], Callable[[int], None]], users: int, every_step: bool) -> Any:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32, as JAX has it there
    train = prepare(torch, every_step)

    def play(cohort: int = users) -> int:
        train(cohort)
        if on_gpu:
            torch.cuda.synchronize()
        return cohort

    play(8 if on_gpu else 1)
    return play, f"torch {torch.__version__}, {torch.cuda.get_device_name() if on_gpu else 'cpu'}"


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
            self.state, self.step = None, 0

        def loss(self, inputs: Any, targets: Any) -> Any:
            rows = torch.nn.functional.normalize(self.embedding, dim=1)
            state = self.state if self.step % STEPS else None  # a user begins without one
            hidden, state = self.lstm(rows[inputs[0]], state)
            self.state, self.step = tuple(part.detach() for part in state), self.step + 1
            scores = self.projection(hidden).reshape(-1, 96) @ rows.T
            return torch.nn.functional.cross_entropy(scores, targets[0].reshape(-1))

        def metrics(self, inputs: Any, targets: Any) -> Any:
            from pfl.metrics import Weighted

            return {"loss": Weighted(0.0, 1)}

    return NextWord().to(device_of(torch))


def texts_of(torch: Any) -> list[list[Any]]:
    """Users: inputs and targets [steps, lanes, unroll] of each, on the device."""
    import numpy as np

    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(WORDS) + 10.0)
    chances /= chances.sum()

    def text() -> list[Any]:
        tokens = torch.from_numpy(generator.choice(WORDS, size=(LANES, STEPS * UNROLL + 1), p=chances))
        return [
            part.reshape(LANES, STEPS, UNROLL).transpose(0, 1).contiguous().to(device_of(torch))
            for part in (tokens[:, :-1], tokens[:, 1:])
        ]

    return [text() for _ in range(DIFFERENT_USERS)]


def clip_to(torch: Any, weights: list[Any], received: list[Any]) -> None:
    """Clip the whole update, as the workload does after every step."""
    with torch.no_grad():
        changes = torch._foreach_sub(weights, received)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(changes)))
        # To ask a GPU for the norm would wait for it. A CPU is asked: it saves the second pass.
        if norm.is_cuda or norm > CLIP:
            torch._foreach_mul_(changes, (CLIP / norm).clamp(max=1.0))
            torch._foreach_copy_(weights, torch._foreach_add(received, changes))


def prepare_torch(torch: Any, every_step: bool) -> Callable[[int], None]:
    """Algorithm 1 as a loop: local SGD, the clip after every step, the sum, noise, the server's step."""
    module, texts = next_word(torch), texts_of(torch)
    weights = list(module.parameters())

    def play(cohort: int) -> None:
        received = [weight.detach().clone() for weight in weights]
        total = [torch.zeros_like(weight) for weight in received]
        for user in range(cohort):
            for inputs, targets in zip(*texts[user % len(texts)], strict=True):
                loss = module.loss(inputs[None], targets[None])
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    torch._foreach_add_(weights, gradients, alpha=-RATE)
                clip_to(torch, weights, received)
            with torch.no_grad():
                torch._foreach_add_(total, torch._foreach_sub(weights, received))
                torch._foreach_copy_(weights, received)
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
        """Clips the whole update after each step, which pfl does not do itself. Each user has a new optimiser."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, lr=lr)
            self.weights = [weight for group in self.param_groups for weight in group["params"]]
            self.received = [weight.detach().clone() for weight in self.weights]

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            clip_to(torch, self.weights, self.received)

    module, texts = next_word(torch), texts_of(torch)
    optimiser = EveryStepClipped if every_step else torch.optim.SGD
    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), lr=1.0))
    people = FederatedDataset(
        lambda name: Dataset(texts[name % len(texts)], user_id=str(name)), get_user_sampler("random", [*range(1000)])
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


PREPARE: dict[str, Callable[[int, bool], tuple[Round, str]]] = {
    PFL: partial(prepare_with_torch, prepare_pfl),
    TORCH: partial(prepare_with_torch, prepare_torch),
    PLAIN: partial(prepare_plain, "float32"),
    NARROW: partial(prepare_plain, "bfloat16"),
    OURS: prepare_own,
}


class Rates(NamedTuple):
    users_per_second: float
    users_per_core_second: float


class Team:
    """The processes of one program, which wait for their turn."""

    def __init__(self, program: str, python: str, count: int, options: argparse.Namespace) -> None:
        users = options.users if program not in (PFL, TORCH) else (options.slow_users or options.users) // count
        command = [python, __file__, "--work", program, "--users", str(users), "--seconds", str(options.seconds)]
        self.processes = [
            subprocess.Popen(
                command + ["--clip-every-step"] * options.clip_every_step,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # they share a GPU
            )
            for _ in range(count)
        ]
        self.is_complete = True  # until a process ends early: what it wrote to stderr says why

    def answers(self, word: str) -> list[str]:
        """The rest of the next line of each process that begins with a word; pfl prints other lines too."""
        found = []
        for process in self.processes:
            assert process.stdout is not None
            found += next(([line[len(word) :].strip()] for line in process.stdout if line.startswith(word)), [])
        self.is_complete = len(found) == len(self.processes)
        return found

    def train(self) -> Rates | None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        took = [[float(number) for number in answer.split()] for answer in self.answers("trained")]
        if not self.is_complete:
            return None
        trained, cores = sum(users for users, _, _ in took), sum(worked for _, _, worked in took)
        return Rates(sum(users / seconds for users, seconds, _ in took), trained / cores)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", metavar="PYTHON", help="Python of an environment with torch and pfl")
    parser.add_argument("--torch", action="store_true", help="also PyTorch, one user after another")
    parser.add_argument("--plain", action="store_true", help="also plain JAX")
    parser.add_argument("--plain-bfloat16", action="store_true", help="also plain JAX with losses in bfloat16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn, at least; rounds are not cut")
    parser.add_argument("--users", type=int, default=16, help="users a round, for all programs")
    parser.add_argument("--slow-users", type=int, help="users a round for programs of torch, if fewer")
    parser.add_argument(
        "--processes", type=int, nargs="+", help="of torch; one for each core unless said otherwise, on a GPU one"
    )
    parser.add_argument("--clip-every-step", action="store_true")
    parser.add_argument("--work", choices=PREPARE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.users, options.clip_every_step, options.seconds)
        return
    teams = start(options)
    try:
        print(json.dumps(measure(teams, options.turns), indent=1))
    finally:
        for team in teams.values():
            team.end()


def start(options: argparse.Namespace) -> dict[str, Team]:
    """The programs by name, all of them started."""
    teams = {}
    if options.pfl:
        counts = options.processes or [processes_for(options.pfl)]
        for program in [PFL, *([TORCH] if options.torch else [])]:
            for count in counts:
                name = program if len(counts) == 1 else f"{program}, {count} at once"
                teams[name] = Team(program, options.pfl, count, options)
    asked = {PLAIN: options.plain, NARROW: options.plain_bfloat16, OURS: True}
    for program in [program for program, wanted in asked.items() if wanted]:
        teams[program] = Team(program, sys.executable, 1, options)
    return teams


def processes_for(python: str) -> int:
    """One on a GPU, one for each core without."""
    code = "import torch; print(int(torch.cuda.is_available()))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return int(found.stdout) or len(os.sched_getaffinity(0))


def measure(teams: dict[str, Team], count: int) -> dict[str, Any]:
    """Rates of all turns, medians and ratios; a program that fails has no more turns. Writes each turn to stderr."""
    run_by, turns = {}, dict[str, list[Rates]]()
    for name, team in teams.items():
        run_by[name] = [*dict.fromkeys(team.answers("ready"))]
        print(name, *run_by[name], file=sys.stderr, flush=True)
    for _ in range(count):
        for name, team in teams.items():
            if team.is_complete and (rates := team.train()):
                turns.setdefault(name, []).append(rates)
                print(json.dumps({name: rates._asdict()}), file=sys.stderr, flush=True)
    found: dict[str, Any] = {"run_by": run_by}
    for kind in Rates._fields:
        values = {name: [getattr(rate, kind) for rate in each] for name, each in turns.items()}
        medians = {name: statistics.median(each) for name, each in values.items()}
        ratios = {name: medians[OURS] / median for name, median in medians.items() if name != OURS and OURS in medians}
        found[kind] = {"turns": values, "medians": medians, "ratios": ratios}
    return found


if __name__ == "__main__":
    main()
