"""Does a round cost the same among a thousand users as among ten million? Prints JSON; --figure draws it.

    python benchmarks/population.py --users 1000 1000000 --cohort 100 --figure population.svg

Stores are made of short, made-up users in a temporary folder, one after the other; each is opened, and rounds played on
it, in a process of its own, so that memory can be told apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TOKENS, WORDS = 24, 200


def make(folder: Path, users: int) -> None:
    """A store on disk, as `sotto prepare` leaves one."""
    import numpy as np

    from sottovoce.data.store import FORMAT, STORE_FILE, VOCABULARY_FILE, SplitWriter
    from sottovoce.data.vocabulary import FRAME, Vocabulary

    vocabulary = Vocabulary(FRAME + tuple(f"w{number}" for number in range(WORDS)))
    tokens = np.random.default_rng(0).integers(len(FRAME), vocabulary.size, size=(1000, TOKENS)).astype(np.uint16)
    for split, count in (("train", users), ("test", 1)):
        with SplitWriter(folder / f"{split}.arrow", vocabulary.size) as writer:
            for number in range(count):
                writer.add(f"{number:032x}", tokens[number % 1000])
    vocabulary.save(folder / VOCABULARY_FILE)
    facts = {
        "format": FORMAT, "tokens_per_user": TOKENS, "vocabulary_size": vocabulary.size, "fingerprint": str(users),
        "splits": {
            "train": {"users": users, "tokens": users * TOKENS},
            "test": {"users": 1, "tokens": TOKENS},
        },
    }  # fmt: skip
    (folder / STORE_FILE).write_text(json.dumps(facts))


def measure(folder: Path, users: int, cohort: int) -> dict[str, float]:
    """Seconds to open the store and for a round on it, and the memory of the process beyond what was there before."""
    from sottovoce.assembly import assemble
    from sottovoce.data.store import Store
    from sottovoce.experiments.bench import play_next, timed
    from sottovoce.recipe import Recipe

    begun = time.perf_counter()
    store = Store.open(folder)
    opened = time.perf_counter() - begun
    recipe = Recipe.load("demo").replace(
        data={"store": str(folder)},
        privacy={"users": users, "cohort": cohort, "noise_multiplier": 1.0, "epsilon": None, "delta": 1e-9},
    )
    play = play_next(assemble(recipe, store), store)
    for _ in range(3):  # cohorts of several sizes, so that every shape is compiled
        play()
    return {
        "users": users,
        "cohort": cohort,
        "seconds_to_open": opened,
        "seconds_a_round": median(timed(play) for _ in range(9)),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def draw(found: list[dict[str, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3))
    users = [row["users"] for row in found]
    columns = (("seconds_a_round", "ms a round", 1e3), ("peak_bytes", "peak MiB", 2**-20))
    for place, (key, unit, scale) in enumerate(columns):
        axes[place].plot(users, [row[key] * scale for row in found], "o-")
        axes[place].set(xscale="log", xlabel="users in the store", ylabel=unit, ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # one store, in a process of its own
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.users[0], options.cohort)))
        return
    found = []
    for users in options.users:
        with tempfile.TemporaryDirectory() as work:
            make(Path(work), users)
            command = [sys.executable, __file__, "--measure", work, "--users", str(users)]
            command += ["--cohort", str(options.cohort)]
            found.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
    print(json.dumps(found))
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
