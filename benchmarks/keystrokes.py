"""Time the count of keystrokes beside the model's own evaluation: made-up text, the paper's LSTM, random weights.

    python benchmarks/keystrokes.py --vocabulary 10000 30000 --tokens 200000

Prints a JSON object a vocabulary: seconds on the clock and of all cores together, compiling left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import jax
import numpy as np

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import FRAME
from sottovoce.evaluation.keystrokes import count_keystrokes, saving
from sottovoce.evaluation.prediction import count_hits
from sottovoce.models.lstm import LSTM

TOKENS_PER_USER = 1600


def made_up(vocabulary: Vocabulary, tokens: int) -> Store:
    """Users of `TOKENS_PER_USER` tokens, drawn as frequent as words are."""
    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(vocabulary.size - len(FRAME)) + 10.0)
    shape = (-(-tokens // TOKENS_PER_USER), TOKENS_PER_USER)
    drawn = generator.choice(len(chances), size=shape, p=chances / chances.sum()) + len(FRAME)
    return Store.from_users(list(drawn), vocabulary)


def seconds(work: Callable[[], object]) -> dict[str, float]:
    clock, cores = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - clock, "core_seconds": time.process_time() - cores}


def measure(size: int, tokens: int) -> dict[str, object]:
    vocabulary = Vocabulary.public(size)
    store, model = made_up(vocabulary, tokens), LSTM(size, key=jax.random.key(0))
    block = store.gather(range(min(16, store.users)))
    few = Store.from_users(list(block.tokens), vocabulary)  # the same shapes: everything is compiled on it
    count_hits(model, few)
    count_keystrokes(model, few)
    return {
        "device": jax.devices()[0].device_kind,
        "vocabulary": size,
        "tokens": store.users * TOKENS_PER_USER,
        "prediction": seconds(lambda: count_hits(model, store)),
        "keystrokes": seconds(lambda: count_keystrokes(model, store)),
        "keystroke_saving": saving(count_keystrokes(model, few)).keystroke_saving,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[10_000, 30_000])
    parser.add_argument("--tokens", type=int, default=200_000)
    chosen = parser.parse_args()
    for size in chosen.vocabulary:
        print(json.dumps(measure(size, chosen.tokens)), flush=True)
