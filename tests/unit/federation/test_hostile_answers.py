"""Ten thousand answers that no honest device sends: none of them ends the server, none adds more than a device may."""

from __future__ import annotations

import json
import struct
from collections import Counter
from contextlib import suppress

import jax
import numpy as np
import pytest

import sottovoce
from fleets import InProcess, make_device, make_roster, tiny_recipe
from sottovoce.federation.aggregation import Aggregator
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, Task, digest, read_answer, read_request
from sottovoce.federation.rounds import Coordinator
from sottovoce.privacy.clipping import FlatClip, NoClip
from sottovoce.privacy.estimators import WEIGHT_STEP, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.record import Lines

LIKE = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
S, ASKED, ONE = 0.5, b"task", round(1 / WEIGHT_STEP)
TASK = digest(ASKED)
CLIPPED = Mechanism(Poisson(0.5), FlatClip(S), FixedDenominator(4.0), 1.0)
PLAIN = Mechanism(Poisson(0.5), NoClip(), FixedDenominator(4.0), 0.0)
MANY, FEW, ROUND = 10_400, 1_000, 20

# What stands for a value, as it is written: some of it is no JSON, some of it no number.
VALUES = [
    "0", "-0", "-1", "1.0", "true", "false", "null", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "0.0", '""',
    "[]", "{}", '"1"', r'"\ud800"', r'"\u0000"', '"nobody"', '"joined"', "9" * 18, "9" * 19, "9" * 400, "9" * 5000,
    "-" + "9" * 5000, "[" * 900, "[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "1,1",
    "[" * 199 + "]" * 199, "1" + "0" * 30, "2" + "0" * 18, str(2**63), str(-(2**63)), str(2**64), "0x10", "01", "١",
    "\x00", '"' + "x" * 2000 + '"', '1,"users":1',
]  # fmt: skip
DTYPES = [
    "F64", "F32", "F16", "BF16", "I64", "U64", "I32", "I16", "I8", "U8", "BOOL", "C64", "F8_E4M3", "F4", "none",
]  # fmt: skip
SHAPES = [
    [], [0], [1], [-1], [17], [3, 4], [4, 3], [1] * 40, [2**31, 2**33], [2**62, 4], [0, 2**62], [5.0], ["5"], [None],
    5, None,
]  # fmt: skip


def contribution(generator: np.random.Generator, clipped: bool) -> dict:
    kind = (np.int32, np.int64)[generator.integers(2)] if clipped else np.float32
    scale = 10.0 ** generator.integers(0, 9)
    leaves = [(generator.standard_normal(leaf.shape) * scale).astype(kind) for leaf in jax.tree.leaves(LIKE)]
    facts = {"protocol": "1", "task": f'"{TASK}"', "users": "1", "weight": str(int(generator.integers(ONE + 1)))}
    return {"facts": facts, "arrays": {"bits": np.array([1]), "0000": leaves[0], "0001": leaves[1]}}


def packed(said: bytes, arrays: dict[str, np.ndarray], change=lambda head: None) -> bytes:
    """Arrays and what is said beside them, as they travel; `change` may touch the list of arrays."""
    kinds = {"i8": "I64", "i4": "I32", "f4": "F32", "u1": "U8", "f8": "F64", "i2": "I16", "b1": "BOOL", "c8": "C64"}
    head, data = {}, b""
    for name, array in {"facts": np.frombuffer(said, np.uint8), **arrays}.items():
        contents = array.tobytes()
        ends = [len(data), len(data) + len(contents)]
        head[name] = {"dtype": kinds[array.dtype.str[1:]], "shape": list(array.shape), "data_offsets": ends}
        data += contents
    change(head)
    listed = json.dumps(head).encode()
    return struct.pack("<Q", len(listed)) + listed + data


def written(facts: dict[str, str]) -> bytes:
    return ("{" + ",".join(f'"{name}":{value}' for name, value in facts.items()) + "}").encode()


def mutated(generator: np.random.Generator, clipped: bool) -> bytes:
    """A valid answer, and one or two things wrong with it: in what it says, in its arrays, or in its bytes."""
    answer = contribution(generator, clipped)
    facts, arrays = answer["facts"], answer["arrays"]
    changes = []
    kind = generator.integers(4)
    for _ in range(1 + int(generator.random() < 0.3)):
        if kind == 0:
            _change_facts(generator, facts)
        elif kind == 1:
            _change_arrays(generator, arrays)
        elif kind == 2:
            changes.append(int(generator.integers(2**31)))
    message = packed(written(facts), arrays, lambda head: [_change_head(head, seed) for seed in changes])
    return _change_bytes(generator, message) if kind == 3 else message


def _change_facts(generator: np.random.Generator, facts: dict[str, str]) -> None:
    name = str(generator.choice([*facts, "nothing", "more"]))
    if name in facts and generator.random() < 0.1:
        del facts[name]
    else:
        facts[name] = VALUES[generator.integers(len(VALUES))]


def _change_arrays(generator: np.random.Generator, arrays: dict[str, np.ndarray]) -> None:
    name = str(generator.choice([*arrays]))
    array = arrays[name]
    extremes = [0, -1, 1, 2, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), np.nan, np.inf, -np.inf, -0.0, 3e38]
    with np.errstate(all="ignore"):
        choices = {
            "kind": lambda: array.astype(generator.choice(["<f8", "<f4", "<i8", "<i4", "<i2", "<u1", "<b1"])),
            "shape": lambda: array.reshape(-1)[: generator.integers(array.size + 1)],
            "turned": lambda: array.T,
            "deep": lambda: array.reshape((1,) * int(generator.integers(1, 15)) + array.shape),
            "extreme": lambda: np.where(
                generator.random(array.shape) < 0.5, np.asarray(extremes)[generator.integers(len(extremes))], array
            ).astype(array.dtype),
            "empty": lambda: array[:0],
        }
        what = str(generator.choice([*choices, "gone", "again"]))
        if what == "gone":
            del arrays[name]
            arrays.setdefault("bits", np.array([1]))  # or there is nothing left to change
        elif what == "again":
            arrays[str(generator.choice(["0002", "٣", "00", "facts2", "x" * 300]))] = array
        else:
            arrays[name] = np.ascontiguousarray(choices[what]())


def _change_head(head: dict, seed: int) -> None:
    generator = np.random.default_rng(seed)
    name = str(generator.choice([*head]))
    what = generator.integers(6)
    if what == 0:
        head[name]["dtype"] = DTYPES[generator.integers(len(DTYPES))]
    elif what == 1:
        head[name]["shape"] = SHAPES[generator.integers(len(SHAPES))]
    elif what == 2:
        head[name]["data_offsets"] = [int(generator.integers(-(2**40), 2**40)) for _ in range(generator.integers(4))]
    elif what == 3:
        head["__metadata__"] = {"a": "b" * int(generator.integers(5000))}
    elif what == 4:
        head[name] = head[str(generator.choice([*head]))]
    else:
        for number in range(200):
            head[f"{number + 5:04d}"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def _change_bytes(generator: np.random.Generator, message: bytes) -> bytes:
    found = bytearray(message)
    for _ in range(generator.integers(1, 9)):
        start, end = sorted(generator.integers(len(found) + 1, size=2).tolist()) if found else (0, 0)
        what = generator.integers(6)
        if what == 0 and found:
            found[start - 1] ^= 1 << int(generator.integers(8))
        elif what == 1:
            del found[start:end]
        elif what == 2:
            found[start:start] = found[start:end]
        elif what == 3:
            found[:8] = struct.pack("<Q", int(generator.choice([0, 1, 7, 2**16, 2**20, 2**32, 2**63])))
        elif what == 4:
            found[start:end] = generator.bytes(end - start)
        else:
            found = found[: start or 1]
    return bytes(found)


def honest(generator: np.random.Generator, clipped: bool) -> bytes:
    answer = contribution(generator, clipped)
    return packed(written(answer["facts"]), answer["arrays"])


def sums(aggregator: Aggregator) -> list[np.ndarray]:
    found = aggregator.total()
    return [*jax.tree.leaves(found.total), np.asarray(found.weight), found.bits, np.asarray(found.users)]


@pytest.mark.parametrize("many", [FEW, pytest.param(MANY // 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clipped", [True, False], ids=["clipped", "without a clip"])
def test_whatever_a_device_sends_it_counts_for_nothing_or_for_one_honest_device(clipped, many):
    generator, codes = np.random.default_rng(18), Counter()
    for _ in range(many // ROUND):
        codes += play_a_round(generator, clipped)
    # Nobody met what was not thought of, and every kind of fault was among them.
    assert codes[Code.MALFORMED] > many / 3, codes
    assert {"joined", Code.MALFORMED, Code.BOUNDS, Code.TWICE, Code.VERSION, Code.NOT_DRAWN} == set(codes), codes


def play_a_round(generator: np.random.Generator, clipped: bool) -> Counter:
    """Many hostile devices between two honest ones: how they answered."""
    mechanism, codes = (CLIPPED if clipped else PLAIN), Counter()
    rogues = [f"rogue-{number}" for number in range(ROUND)]
    norms = mechanism.clip_norms(1, mechanism.start())
    aggregator = Aggregator(ASKED, {"first": 1, **dict.fromkeys(rogues, 1), "last": 1}, mechanism, norms, LIKE)
    assert aggregator.take("first", honest(generator, clipped)) == "joined"
    before = sums(aggregator)
    for rogue in rogues:
        message = mutated(generator, clipped)
        code = aggregator.take(rogue, message)
        codes[code] += 1
        after = sums(aggregator)
        if code != "joined":
            assert all((old == new).all() for old, new in zip(before, after, strict=True)), message
        else:  # what was changed may be a number that a device may send
            added = [new - old for old, new in zip(before, after, strict=True)]
            length = np.sqrt(sum(np.sum(np.square(part)) for part in added[:2]))
            assert 0 <= added[2] <= 1, message
            assert added[4] == 1
            assert not clipped or length <= S * (1 + 1e-12), message
            assert all(np.isfinite(part).all() for part in after)
        before = after
    assert aggregator.take("last", honest(generator, clipped)) == "joined"
    assert aggregator.total().users == 2 + codes["joined"]
    return codes


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("weight", "1" + "0" * 400, Code.MALFORMED),  # too large for a float
        ("weight", "9" * 10_000, Code.MALFORMED),  # more digits than Python reads
        ("weight", str(10**17), Code.BOUNDS),
        ("weight", "NaN", Code.MALFORMED),
        ("users", "1.0", Code.MALFORMED),
        ("users", '1,"users":1', Code.MALFORMED),
        ("more", "[" * 100_000 + "]" * 100_000, Code.MALFORMED),
        ("more", "[" * 400 + "]" * 400, Code.MALFORMED),
        ("protocol", "true", Code.VERSION),
        ("nothing", '["nobody"]', Code.MALFORMED),
        ("nothing", r'"\ud800"', Code.MALFORMED),
        ("task", r'"\ud800"', Code.TWICE),
        ("task", "[1]", Code.MALFORMED),
    ],
)
def test_what_a_device_says_is_bounded_before_it_is_used(name, value, code):
    answer = contribution(np.random.default_rng(0), clipped=True)
    message = packed(written({**answer["facts"], name: value}), answer["arrays"])
    norms = CLIPPED.clip_norms(1, CLIPPED.start())
    aggregator = Aggregator(ASKED, {"phone": 1}, CLIPPED, norms, LIKE)
    aggregator.max_answer_bytes = 2**30
    assert aggregator.take("phone", message) == code
    assert aggregator.total().users == 0


def test_an_answer_longer_than_an_honest_one_is_not_even_read(monkeypatch):
    norms = CLIPPED.clip_norms(1, CLIPPED.start())
    leaves = [np.full(leaf.shape, 2**40) for leaf in jax.tree.leaves(LIKE)]
    longest = Contribution(TASK, 1, ONE, np.array([1]), leaves).to_bytes()  # in 64 bits
    aggregator = Aggregator(ASKED, {"one": 1, "two": 1}, CLIPPED, norms, LIKE)
    assert len(longest) <= aggregator.max_answer_bytes < len(longest) + 3000
    assert aggregator.take("one", longest) == "joined"
    monkeypatch.setattr("sottovoce.federation.aggregation.read_answer", None)
    assert aggregator.take("two", b"\0" * (aggregator.max_answer_bytes + 1)) == Code.MALFORMED


def test_any_bytes_are_a_message_or_are_refused():
    """Both kinds: a device reads tasks as the server reads answers."""
    generator = np.random.default_rng(3)
    for _ in range(600):
        message = mutated(generator, clipped=True)
        for read in (read_answer, read_request):
            with suppress(Refused):
                assert isinstance(read(message), Contribution | Nothing | Task)


BOMB = packed(written({"protocol": "1", "more": "[" * 100_000 + "]" * 100_000}), {})
LARGE = packed(
    written({"protocol": "1", "task": '"x"', "users": "1", "weight": "1" + "0" * 400}), {"bits": np.array([1])}
)


def test_a_run_goes_on_with_the_others_and_again_after_resume(tmp_path, store, vocabulary):
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, {"phone": 1, "silo": 7})
    silo = make_device(tmp_path / "devices", store, "silo", 1, 7)

    class Rogue:
        def answer(self, message: bytes) -> bytes:
            return (BOMB, LARGE)[read_request(message).round % 2]

    recipe = tiny_recipe(roster.path, run={"rounds": 4}, privacy={"cohort": 12, "users": 13})
    played = []

    def fleet() -> Coordinator:
        return Coordinator(roster, InProcess({"phone": Rogue(), "silo": silo}), 1.0)  # pyrefly: ignore

    run = tmp_path / "run"
    stopped = sottovoce.train(recipe, run, coordinator=fleet(), stop=lambda: played.append(1) or len(played) > 2)
    assert stopped.round < 4
    assert sottovoce.resume(run, coordinator=fleet()).round == 4
    answers = [line["answers"] for line in Lines(run / "diagnostics.jsonl").read()]
    assert answers == [{"malformed": 1, "joined": 1}] * 4
