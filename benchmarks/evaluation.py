"""Time the evaluation of the paper's LSTM on made-up users of 1,600 tokens, as `sotto evaluate` does it.

`--against SRC` names the folder `src` of another version: the two take turns, each turn in a process of its own.
Prints, for every turn, CPU microseconds a target, which other work on the machine disturbs less than seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import time


def work(users: int) -> None:
    """One process: evaluates twice, and prints the CPU seconds of the second time, when all is compiled."""
    import jax

    from sottovoce.commands.bench import made_up_users
    from sottovoce.evaluation.breakdown import bands_of, count_parts
    from sottovoce.models.lstm import LSTM

    store = made_up_users(users, words=10_000, tokens=1600)
    model, bands = LSTM(store.vocabulary.size, key=jax.random.key(0)), bands_of(store)
    count_parts(model, store, bands)
    worked = time.process_time()
    counts, _ = count_parts(model, store, bands)
    targets = counts.targets.sum()
    micro = 1e6 * (time.process_time() - worked) / targets
    print(json.dumps({"cpu_microseconds": micro, "top1": counts.top1.sum(), "loss": counts.loss.sum() / targets}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--against", metavar="SRC")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.users)
        return
    cores = str(len(os.sched_getaffinity(0)))
    for turn in range(options.turns):
        for name, folder in (("this", None), ("other", options.against)):
            if name == "other" and folder is None:
                continue
            environment = {**os.environ, "JAX_NUM_CPU_DEVICES": cores, **({"PYTHONPATH": folder} if folder else {})}
            command = [sys.executable, __file__, "--work", "--users", str(options.users)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            print(turn, name, done.stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
