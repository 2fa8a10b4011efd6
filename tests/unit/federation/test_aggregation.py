"""What the server takes from a device, whatever it sends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

from sottovoce.errors import SottoError
from sottovoce.federation.aggregation import Aggregator
from sottovoce.federation.messages import Code, Contribution, Nothing, digest
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import WEIGHT_STEP, ClippedDenominator, FixedDenominator
from sottovoce.privacy.fixed_point import MOST
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson

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
        weight_aware: bool = False

    of = mechanism()
    object.__setattr__(of, "clipping", HalvesClip())
    with pytest.raises(SottoError, match="HalvesClip"):
        Aggregator(TASK, {"phone": 1}, of, np.array([S, S]), LIKE)


def test_a_silo_is_bounded_by_its_users_times_S_also_where_weights_are_in_the_clip():
    of = mechanism(FlatClip(S, weight_aware=True))
    one = collected(of=of)
    one.take("silo", contribution(100.0, users=4, weight=0.5).to_bytes())
    assert 0.999 * 4 * S < length_of(one.total().total) <= 4 * S


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
        ({"users": 0}, Code.BOUNDS),
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
    assert one.take("silo", Nothing(Code.NOT_DRAWN).to_bytes()) == Code.NOT_DRAWN
    assert one.total().answers == {"joined": 1, Code.NOT_DRAWN: 1}


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
