"""Small worlds that every test can afford."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile hundreds of tiny programs and run each once: compile quickly, run slowly, and in one part, since parts
# that are compiled side by side are more work, and two workers have no third core. The older emitters of fused
# loops compile a round in half the time, where XLA still has them: it ends at once on a flag that it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""),
)
# What one test compiled, others load: a third of their time goes into compiling, often of the same programs. `make`
# keeps them for its next command; otherwise they are of this run alone, its workers and their processes included. It
# must be said before anything is compiled, and once: jax goes on with the first folder that it was told of.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="programs-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A run writes ledgers, keys and checkpoints through to the disk some sixty times, and most of the time of a tiny one is
# waiting for that: folders of tests lie in memory where there is room. pytest reads this when it makes the first.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Where pytest takes itself to be on a CI machine, it writes out the whole difference of what an assert compares. Of two
# lists of 3,000 numbers that takes hours.
os.environ.pop("CI", None)
os.environ.pop("BUILD_NUMBER", None)

# The key that signs releases is made on first use: never in the home of who runs the tests.
if "config-of-tests-" not in os.environ.get("XDG_CONFIG_HOME", ""):
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="config-of-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

import pytest
from hypothesis import settings
from second_opinions import losses_once  # noqa: F401

from kinds import FAMILY

# Nothing heavy is imported here: the process that hands out tests to workers reads this file before it starts them.
if TYPE_CHECKING:
    from sottovoce.data.store import Store
    from sottovoce.data.vocabulary import Vocabulary
    from sottovoce.models.contract import LanguageModel
    from sottovoce.models.lstm import LSTM

WORDS = 60

# Tracing makes many objects and little garbage, and every collection looks at all that was compiled.
gc.set_threshold(50_000, 20, 50)

# The same examples every time: a test fails because of a change, not because of the day.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


TESTS = count(1)


@pytest.hookimpl(trylast=True)  # after what a test has put in place of Path's own functions is gone
def pytest_runtest_teardown() -> None:
    """Every compiled program maps memory, and Linux allows a process 65,530 maps: beyond them the compiler crashes.

    Counting them takes 20 ms, so it is done after every twentieth test.
    """
    maps = Path("/proc/self/maps")
    if next(TESTS) % 20 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        import jax

        jax.clear_caches()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    from sottovoce.data.vocabulary import Vocabulary

    frame = Vocabulary.from_words(())
    return Vocabulary(frame.words + tuple(f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(WORDS - frame.size)))


def random_users(vocabulary: Vocabulary, lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Token streams of given lengths: texts of a few words, each between BOS and EOS."""
    import numpy as np

    from sottovoce.data.words import BOS, EOS

    generator = np.random.default_rng(seed)
    users = []
    for length in lengths:
        stream: list[int] = []
        while len(stream) < length:
            words = generator.integers(3, vocabulary.size, size=generator.integers(2, 9)).tolist()
            stream += [BOS, *words, EOS]
        users.append(stream[:length])
    return users


@pytest.fixture(scope="session")
def store(vocabulary: Vocabulary) -> Store:
    """Users of all lengths: none, one token, odd lengths, exactly full, and in between."""
    from sottovoce.data.store import Store

    lengths = [48, 0, 1, 7, 48, 23, 30, 48, 12, 41, 5, 48, 36]
    return Store.from_users(random_users(vocabulary, lengths), vocabulary, tokens_per_user=48)


@pytest.fixture(scope="session")
def model(vocabulary: Vocabulary) -> LSTM:
    import jax

    from sottovoce.models.lstm import LSTM

    return LSTM(vocabulary.size, embedding=6, hidden=8, key=jax.random.key(7))


@pytest.fixture(scope="session", autouse=True)
def drawings() -> Iterator[dict[str, object]]:
    """Figures that were drawn, by what is in them: one that many pages share is drawn once. Clear it to draw anew."""
    from sottovoce.reporting import compare, report
    from sottovoce.reporting.draw import curves

    drawn: dict[str, object] = {}

    def once(draw: Callable[..., object]) -> Callable[..., object]:
        def drawing(*contents: object) -> object:
            key = f"{draw.__qualname__} {contents!r}"
            if key not in drawn:
                drawn[key] = draw(*contents)
            return drawn[key]

        return drawing

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (curves.Figure, "svg"), (report, "draw_number_line"), (compare, "draw_utility"), (compare, "draw_spread"),
            (compare, "_head_words"),
        ):  # fmt: skip
            patch.setattr(owner, name, once(getattr(owner, name)))
        yield drawn


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe `demo` with a smaller model, for examples that train it."""
    from sottovoce_evidence.recipe import Recipe

    load = Recipe.load
    demo = load("demo").replace(model={"embedding": 4, "hidden": 5})
    monkeypatch.setattr(Recipe, "load", lambda path: demo if path == "demo" else load(path))


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if "," in name else name for name in FAMILY])
def any_model(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> LanguageModel:
    """A test that takes this is run for every kind, or for those it names; variants of a kind are slow tests."""
    from family import of_family

    return of_family(request.param, vocabulary.size)
