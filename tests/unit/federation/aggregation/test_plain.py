"""What the server takes from a device: honest answers add up, and hostile ones add no more than a device may."""

from __future__ import annotations

import json
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

import sottovoce
from fleets import InProcess, make_device, make_roster, tiny_recipe
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, Task, digest, read_answer, read_request
from sottovoce.federation.rounds import Coordinator
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import WEIGHT_STEP, ClippedDenominator, FixedDenominator
from sottovoce.privacy.fixed_point import MOST
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.record import Lines
from sottovoce_evidence.errors import SottoError

LIKE = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
S, TASK = 0.5, b"task"
ONE = round(1 / WEIGHT_STEP)


def mechanism(clipping=FlatClip(S)) -> Mechanism:  # noqa: B008
    return Mechanism(Poisson(0.5), clipping, FixedDenominator(4.0), 1.0)


def norms(of: Mechanism) -> np.ndarray:
    return of.clip_norms(1, of.start())


def collected(registered=None, of: Mechanism | None = None) -> Aggregator:
    of = of or mechanism()
    return Aggregator(TASK, registered or {"phone": 1, "silo": 10}, of, norms(of), LIKE)


def contribution(length: float, users: int = 1, weight: float | None = None, grid: float | None = None) -> Contribution:
    """An update of some length, the same in every direction."""
    step = grid or mechanism().grid(np.array([S]))
    coordinate = length / np.sqrt(17)
    leaves = [np.full(leaf.shape, coordinate / step).astype(np.int64) for leaf in jax.tree.leaves(LIKE)]
    whole = round((users if weight is None else weight) * ONE)
    return Contribution(digest(TASK), users, whole, np.full(1, users), leaves)


def length_of(total) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(total))))


def test_honest_contributions_add_up_exactly_in_any_order():
    generator = np.random.default_rng(0)
    sent = {}
    for number in range(20):
        leaves = [generator.integers(-(2**20), 2**20, leaf.shape) for leaf in jax.tree.leaves(LIKE)]
        sent[f"d{number}"] = Contribution(digest(TASK), 1, int(generator.integers(ONE)), np.array([1]), leaves)
    sent = {name: replace(each, weight=ONE) for name, each in sent.items()}
    sums = []
    for names in (list(sent), list(sent)[::-1]):
        one = collected(dict.fromkeys(sent, 1))
        assert {one.take(name, sent[name].to_bytes()) for name in names} == {"joined"}
        sums.append(one.total())
    grid = mechanism().grid(np.array([S]))
    expected = [sum(each.leaves[part] for each in sent.values()) * grid for part in range(2)]
    for summed in sums:
        for total, right in zip(jax.tree.leaves(summed.total), expected, strict=True):
            assert (total == right).all()
        assert (summed.weight, summed.users, summed.bits.tolist()) == (20.0, 20, [10.0])


def test_an_update_within_the_bound_is_not_touched_and_a_longer_one_is_clipped_again():
    for length, users, weight in ((0.4, 1, 1.0), (5.0, 1, 1.0), (0.4, 1, 0.1), (80.0, 10, 7.0), (3.0, 10, 7.0)):
        one = collected()
        sent = contribution(length, users, weight)
        assert one.take("silo" if users > 1 else "phone", sent.to_bytes()) == "joined"
        got, bound = length_of(one.total().total), S * weight
        assert got <= bound
        if length < bound:
            assert got == length_of([leaf * mechanism().grid(np.array([S])) for leaf in sent.leaves])
        else:
            assert got > 0.999 * bound


def test_each_layer_is_clipped_to_its_own_norm():
    of = mechanism(PerLayerClip((0.1, 0.3)))
    grid = of.grid(norms(of))
    one = collected(of=of)
    sent = replace(contribution(1.0, grid=grid), bits=np.ones(2, np.int64))
    assert one.take("phone", sent.to_bytes()) == "joined"
    lengths = [length_of([leaf]) for leaf in jax.tree.leaves(one.total().total)]
    assert 0.0999 < lengths[0] <= 0.1
    assert 0.2999 < lengths[1] <= 0.3


def test_a_clip_that_the_server_does_not_know_is_refused_before_anything_is_asked():
    """As any clip with one norm, it would be taken for a flat one."""

    @dataclass(frozen=True)
    class HalvesClip:
        clip_norms: tuple[float, ...] = (S, S)

    of = mechanism()
    object.__setattr__(of, "clipping", HalvesClip())
    with pytest.raises(SottoError, match="HalvesClip"):
        Aggregator(TASK, {"phone": 1}, of, np.array([S, S]), LIKE)


def test_what_a_hostile_device_adds_is_within_the_sensitivity_of_both_estimators():
    """A phone can do no more than one user: the estimate moves by at most what the noise is for."""
    generator = np.random.default_rng(1)
    for estimator in (FixedDenominator(2.0), ClippedDenominator(2.0)):
        of = Mechanism(Poisson(0.5), FlatClip(S), estimator, 1.0)
        for _ in range(50):
            without, beside = (collected({f"d{n}": 1 for n in range(6)}, of) for _ in range(2))
            for number in range(6):
                leaves = [generator.integers(-(2**31), 2**31, leaf.shape) for leaf in jax.tree.leaves(LIKE)]
                weight = int(generator.integers(ONE + 1))
                message = Contribution(digest(TASK), 1, weight, np.array([1]), leaves).to_bytes()
                beside.take(f"d{number}", message)
                if number < 5:
                    without.take(f"d{number}", message)
            a, b = (of.estimate(s.total, s.weight, s.bits).update for s in (without.total(), beside.total()))
            moved = length_of(jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), a, b))
            assert moved <= of.sensitivity(norms(of))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"users": 2}, Code.BOUNDS),
        ({"users": 0}, Code.BOUNDS),  # nobody has no weight
        ({"users": -1, "weight": 0, "bits": np.array([0])}, Code.BOUNDS),
        ({"weight": ONE + 1}, Code.BOUNDS),
        ({"weight": -1}, Code.BOUNDS),
        ({"weight": 2**59}, Code.BOUNDS),
        ({"weight": 2**200}, Code.MALFORMED),
        ({"bits": np.array([2])}, Code.BOUNDS),
        ({"bits": np.array([-(2**63)])}, Code.BOUNDS),
        ({"bits": np.array([1, 1])}, Code.MALFORMED),
        ({"bits": np.array([1.0])}, Code.MALFORMED),
        ({"task": "an earlier one"}, Code.TWICE),
        ({"leaves": [np.zeros((3, 4), np.int64)]}, Code.MALFORMED),
        ({"leaves": [np.zeros((4, 3), np.int64), np.zeros(5, np.int64)]}, Code.MALFORMED),
        ({"leaves": [np.full((3, 4), np.nan, np.float32), np.zeros(5, np.float32)]}, Code.MALFORMED),
        ({"leaves": [np.zeros((3, 4), np.float64), np.zeros(5, np.float64)]}, Code.MALFORMED),
        ({"users": 1.0}, Code.MALFORMED),
        ({"users": True}, Code.MALFORMED),
    ],
)
def test_what_is_wrong_counts_for_nothing(change, code):
    one = collected()
    assert one.take("phone", replace(contribution(0.4), **change).to_bytes()) == code
    summed = one.total()
    assert (length_of(summed.total), summed.weight, summed.users) == (0, 0, 0)
    assert summed.answers == {code: 1, Code.AWAY: 1}


def test_more_users_than_a_sum_holds_exactly_are_not_added():
    one = collected({"tier": MOST, "phone": 1})
    assert one.take("tier", contribution(0.4, users=MOST).to_bytes()) == "joined"
    assert one.take("phone", contribution(0.4).to_bytes()) == Code.BOUNDS
    assert one.total().users == MOST


def test_noise_on_the_wire_counts_for_nothing():
    one = collected()
    message = contribution(0.4).to_bytes()
    for number, broken in enumerate((b"", b"{}", message[:-3], message.replace(b'"protocol": 1', b'"protocol": 2'))):
        one = collected({"phone": 1})
        assert one.take("phone", broken) == (Code.MALFORMED if number < 3 else Code.VERSION)


def test_a_device_counts_once_and_a_stranger_never():
    one = collected()
    message = contribution(0.4).to_bytes()
    assert one.take("phone", message) == "joined"
    assert one.take("phone", message) == Code.TWICE
    assert one.take("nobody knows", message) == Code.STRANGER
    assert one.total().users == 1
    assert one.total().answers == {"joined": 1, Code.AWAY: 1}
    assert one.take("silo", Nothing(Code.FAILED).to_bytes()) == Code.FAILED
    assert one.total().answers == {"joined": 1, Code.FAILED: 1}


def test_a_contribution_of_nobody_counts_and_moves_nothing():
    one = collected()
    assert one.take("silo", replace(contribution(0.4), users=0, weight=0, bits=np.array([0])).to_bytes()) == "joined"
    summed = one.total()
    assert (length_of(summed.total), summed.weight, summed.users) == (0, 0, 0)
    assert summed.answers == {"joined": 1, Code.AWAY: 1}


def test_without_a_clip_sums_are_plain_and_not_a_number_counts_for_nothing():
    of = Mechanism(Poisson(0.5), NoClip(), FixedDenominator(4.0), 0.0)
    one = collected(of=of)
    leaves = [np.full(leaf.shape, 2.5, np.float32) for leaf in jax.tree.leaves(LIKE)]
    sent = Contribution(digest(TASK), 1, ONE, np.array([1]), leaves)
    assert one.take("phone", sent.to_bytes()) == "joined"
    spoiled = [leaf.copy() for leaf in leaves]
    spoiled[1][2] = np.inf
    assert one.take("silo", replace(sent, leaves=spoiled).to_bytes()) == Code.MALFORMED
    assert {float(leaf.min()) for leaf in jax.tree.leaves(one.total().total)} == {2.5}


# --- hostile answers: thousands that no honest device sends ----------------------------------------------------------

NAME = digest(TASK)
CLIPPED = Mechanism(Poisson(0.5), FlatClip(S), FixedDenominator(4.0), 1.0)
PLAIN = Mechanism(Poisson(0.5), NoClip(), FixedDenominator(4.0), 0.0)
MANY, FEW, ROUND = 10_400, 1_000, 20

# Written in place of a value: some of these are no JSON, some no number.
VALUES = [
    "0", "-0", "-1", "1.0", "true", "false", "null", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "0.0", '""',
    "[]", "{}", '"1"', r'"\ud800"', r'"\u0000"', '"limits"', '"joined"', "9" * 18, "9" * 19, "9" * 400, "9" * 5000,
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


def answer_parts(generator: np.random.Generator, clipped: bool) -> dict:
    kind = (np.int32, np.int64)[generator.integers(2)] if clipped else np.float32
    scale = 10.0 ** generator.integers(0, 9)
    leaves = [(generator.standard_normal(leaf.shape) * scale).astype(kind) for leaf in jax.tree.leaves(LIKE)]
    facts = {"protocol": "1", "task": f'"{NAME}"', "users": "1", "weight": str(int(generator.integers(ONE + 1)))}
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
    answer = answer_parts(generator, clipped)
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
    answer = answer_parts(generator, clipped)
    return packed(written(answer["facts"]), answer["arrays"])


def sums_of(aggregator: Aggregator) -> list[np.ndarray]:
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
    assert {"joined", Code.MALFORMED, Code.BOUNDS, Code.TWICE, Code.VERSION, Code.LIMITS} == set(codes), codes


def play_a_round(generator: np.random.Generator, clipped: bool) -> Counter:
    """Many hostile devices between two honest ones: how they answered."""
    of, codes = (CLIPPED if clipped else PLAIN), Counter()
    rogues = [f"rogue-{number}" for number in range(ROUND)]
    aggregator = Aggregator(TASK, {"first": 1, **dict.fromkeys(rogues, 1), "last": 1}, of, norms(of), LIKE)
    assert aggregator.take("first", honest(generator, clipped)) == "joined"
    before = sums_of(aggregator)
    for rogue in rogues:
        message = mutated(generator, clipped)
        code = aggregator.take(rogue, message)
        codes[code] += 1
        after = sums_of(aggregator)
        if code != "joined":
            assert all((old == new).all() for old, new in zip(before, after, strict=True)), message
        else:  # what was changed may be a number that a device may send
            added = [new - old for old, new in zip(before, after, strict=True)]
            length = np.sqrt(sum(np.sum(np.square(part)) for part in added[:2]))
            assert 0 <= added[2] <= 1, message
            assert added[4] in (0, 1)
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
        ("nothing", '["limits"]', Code.MALFORMED),
        ("nothing", r'"\ud800"', Code.MALFORMED),
        ("task", r'"\ud800"', Code.TWICE),
        ("task", "[1]", Code.MALFORMED),
    ],
)
def test_what_a_device_says_is_bounded_before_it_is_used(name, value, code):
    answer = answer_parts(np.random.default_rng(0), clipped=True)
    message = packed(written({**answer["facts"], name: value}), answer["arrays"])
    aggregator = Aggregator(TASK, {"phone": 1}, CLIPPED, norms(CLIPPED), LIKE)
    aggregator.max_answer_bytes = 2**30
    assert aggregator.take("phone", message) == code
    assert aggregator.total().users == 0


def test_an_answer_longer_than_an_honest_one_is_not_even_read(monkeypatch):
    leaves = [np.full(leaf.shape, 2**40) for leaf in jax.tree.leaves(LIKE)]
    longest = Contribution(NAME, 1, ONE, np.array([1]), leaves).to_bytes()  # in 64 bits
    aggregator = Aggregator(TASK, {"one": 1, "two": 1}, CLIPPED, norms(CLIPPED), LIKE)
    assert len(longest) <= aggregator.max_answer_bytes < len(longest) + 3000
    assert aggregator.take("one", longest) == "joined"
    monkeypatch.setattr("sottovoce.federation.aggregation.plain.read_answer", None)
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


@pytest.mark.slow
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
