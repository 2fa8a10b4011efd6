"""The server's side of a masked sum: it is the plain sum, or nothing; and what hostile devices can do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest

from masked_fleets import LIKE, MECHANISM, PHASES, MaskedFleet, Stub, is_zero, membership, same, some_task
from sottovoce.federation.masking.messages import Advert, Confirmed, Masked, Revealed, read_advert, read_revealed
from sottovoce.federation.messages import Code, Contribution, Nothing

ROGUE = "d03"


@pytest.mark.parametrize(
    "phase", [pytest.param(each, marks=() if each == "mask" else pytest.mark.slow) for each in PHASES]
)
def test_with_three_of_ten_lost_in_any_phase_the_sum_is_that_of_the_others(phase):
    """Lost before the mask phase they are not in the sum; lost after it, they are."""
    fleet = MaskedFleet(10, survivors=4)
    fleet.lost = {phase: {"d01", "d04", "d08"}}
    summed = fleet.play()
    there = set(fleet.names) - (fleet.lost[phase] if phase in PHASES[:3] else set())
    assert same(summed, fleet.expected(there))
    assert summed.answers["joined"] == len(there)
    assert summed.answers["away"] == 10 - len(there)
    assert not fleet.refusals()


def test_devices_that_are_lost_one_by_one_in_all_phases_leave_the_sum_of_those_whose_vectors_came():
    fleet = MaskedFleet(8, survivors=3)
    fleet.lost = {phase: {f"d{number:02d}"} for number, phase in enumerate(PHASES[1:])}
    summed = fleet.play()
    assert same(summed, fleet.expected(set(fleet.names) - {"d00", "d01"}))


@pytest.mark.slow
def test_a_sparse_graph_gives_the_same_sum():
    fleet = MaskedFleet(36, survivors=4)
    fleet.lost = {"mask": {"d01", "d14"}, "unmask": {"d20"}}
    summed = fleet.play()
    stub = next(iter(fleet.stubs.values()))
    assert len(stub.participant._graph.neighbours["d00"]) < 35
    assert same(summed, fleet.expected(set(fleet.names) - {"d01", "d14"}))


@pytest.mark.parametrize("phase", ["share", "mask", "confirm"])
def test_fewer_than_declared_are_not_unmasked_and_the_round_is_only_noise(phase, caplog):
    fleet = MaskedFleet(5, survivors=4)
    fleet.lost = {phase: {"d00", "d01"} if phase != "confirm" else {"d00", "d01", "d02"}}
    summed = fleet.play()
    assert is_zero(summed)
    assert fleet.asked == list(PHASES[: PHASES.index(phase) + 1])  # nothing more is asked
    assert "nothing is unmasked, and the round is only noise" in caplog.text
    assert jax.tree.structure(summed.total) == jax.tree.structure(LIKE)


def test_too_few_shares_open_nothing(caplog):
    fleet = MaskedFleet(5, survivors=3)
    fleet.lost = {"mask": {"d00"}, "unmask": {"d01", "d02"}}
    assert is_zero(fleet.play())
    assert "shares of a secret are left" in caplog.text


def test_a_device_without_anybody_takes_part_with_zeros():
    """Else the users of one device would decide whether the sum of the others is opened."""
    fleet = MaskedFleet(3, survivors=3)
    nobody = [np.zeros(leaf.shape, np.int64) for leaf in jax.tree.leaves(LIKE)]
    fleet.stubs["d01"].sums = Contribution("", 0, 0, np.zeros(1, np.int64), nobody)
    summed = fleet.play()
    assert same(summed, fleet.expected(set(fleet.names)))
    assert summed.users == 6
    assert summed.answers == {"joined": 3}


def rogue(phase: str, change: Callable[[Stub, bytes], bytes], count: int = 5) -> MaskedFleet:
    """A fleet of which one device answers as it likes in one phase."""
    fleet = MaskedFleet(count, survivors=3)

    def say(now: str, name: str, answer: bytes) -> bytes:
        return change(fleet.stubs[name], answer) if (now, name) == (phase, ROGUE) else answer

    fleet.say = say
    return fleet


def signed_keys(stub: Stub, mask_key: bytes, seal_key: bytes) -> bytes:
    context = stub.participant.context
    advert = Advert(context, mask_key, seal_key, bytes(32), b"")
    signature = membership(3, 5).sign(Advert.claim(context, ROGUE, advert.entry))
    return replace(advert, signature=signature).to_bytes()


def its_own(stub: Stub, answer: bytes) -> Advert:
    return read_advert(answer, stub.participant.context)


HOSTILE = {
    "keys that it did not sign": (
        "join", lambda stub, answer: replace(its_own(stub, answer), signature=b"no").to_bytes(), Code.SIGNATURE
    ),
    "a key of low order": (
        "join", lambda stub, answer: signed_keys(stub, bytes(32), its_own(stub, answer).seal_key), Code.MALFORMED
    ),
    "one key twice": (
        "join", lambda stub, answer: signed_keys(stub, *[its_own(stub, answer).seal_key] * 2), Code.MALFORMED
    ),
    "noise on the wire": ("share", lambda stub, answer: b"\0" * 99, Code.MALFORMED),
    "shares for too few": ("share", lambda stub, answer: Masked(stub.participant.context, b"").to_bytes(), "malformed"),
    "a vector of another length": (
        "mask", lambda stub, answer: Masked(stub.participant.context, bytes(8)).to_bytes(), Code.MALFORMED
    ),
    "an answer to another round": ("mask", lambda stub, answer: Masked("0" * 64, bytes(80)).to_bytes(), Code.AWAY),
    "a code": ("mask", lambda stub, answer: Nothing(Code.LIMITS).to_bytes(), Code.LIMITS),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_device_that_sends_what_is_wrong_is_left_out_and_the_others_go_on(what):
    phase, change, code = HOSTILE[what]
    fleet = rogue(phase, change)
    summed = fleet.play()
    assert same(summed, fleet.expected(set(fleet.names) - {ROGUE}))
    assert summed.answers == {"joined": 4, code: 1}


def test_a_wrong_signature_of_the_survivors_does_not_stop_the_others():
    fleet = rogue("confirm", lambda stub, answer: Confirmed(stub.participant.context, b"no").to_bytes())
    assert same(fleet.play(), fleet.expected(set(fleet.names)))


def test_a_wrong_share_of_a_mask_key_is_noticed(caplog):
    def change(stub: Stub, answer: bytes) -> bytes:
        revealed = read_revealed(answer, stub.participant.context, 5)
        return Revealed(revealed.context, revealed.seed, (b"\1" * 16,) * 5).to_bytes()

    fleet = rogue("unmask", change, count=6)
    fleet.lost = {"mask": {"d00", "d05"}}
    assert is_zero(fleet.play())
    assert "wrong share of the mask key" in caplog.text


def with_wrong_seed(stub: Stub, answer: bytes) -> bytes:
    return replace(read_revealed(answer, stub.participant.context, 4), seed=b"\1" * 16).to_bytes()


def test_a_wrong_seed_of_a_self_mask_is_noticed_and_its_shares_open_it():
    """A device signed what it commits to. Its neighbours have shares of the right one."""
    fleet = rogue("unmask", with_wrong_seed)
    assert same(fleet.play(), fleet.expected(set(fleet.names)))


def test_a_wrong_share_of_a_self_mask_is_noticed_and_nothing_is_unmasked(caplog):
    """Else the sum would be any numbers of the whole range, and the server would step by them."""

    def change(stub: Stub, answer: bytes) -> bytes:
        revealed = read_revealed(answer, stub.participant.context, 4)
        return replace(revealed, shares=(b"\1" * 16,) * 4).to_bytes()

    fleet = rogue("unmask", change)
    fleet.lost = {"unmask": {"d00"}}
    assert is_zero(fleet.play())
    assert "nothing is unmasked" in caplog.text
    assert "a device gave a wrong share of the self-mask of d00" in caplog.text


def test_the_sum_with_a_hostile_device_is_within_what_all_users_can_have(caplog):
    """The server cannot clip what one device sends; it cuts each number of the sum to that of all registered users."""
    fleet = MaskedFleet(5, survivors=3)
    huge = [np.full(leaf.shape, 2**35) for leaf in jax.tree.leaves(LIKE)]
    fleet.stubs[ROGUE].sums = Contribution("", -7, -(2**20), np.array([500]), huge)
    summed = fleet.play()
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(summed.total))
    assert largest == 15 * 2**27 * MECHANISM.grid(some_task().clip_norms)
    assert 0 <= summed.users <= 15
    assert 0 <= summed.weight <= 15
    assert np.abs(summed.bits).max() <= 7.5
    assert "a device spoiled the round" in caplog.text


@pytest.mark.parametrize("hostile", [2**29, 2**37, 2**38, 2**38 - 2**26, 2**39 - 2**26, 15 * 2**27, 15 * 2**27 - 2**26])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_user_moves_a_spoiled_sum_by_no_more_than_their_contribution(hostile, sign):
    """At the ends of all ranges: where a sum wraps round, is folded back, or is cut."""
    sums = []
    for own in (0, 2**27):
        fleet = MaskedFleet(5, survivors=3)
        for stub in fleet.stubs.values():
            stub.sums = replace(stub.sums, leaves=[np.zeros(leaf.shape, np.int64) for leaf in jax.tree.leaves(LIKE)])
        fleet.stubs[ROGUE].sums.leaves[0][0, 0] = sign * hostile
        fleet.stubs["d00"].sums.leaves[0][0, 0] = sign * own
        sums.append(fleet.play().total["a"][0, 0])
    moved = abs(sums[1] - sums[0]) / MECHANISM.grid(some_task().clip_norms)
    assert moved <= 2**27


def test_a_user_whose_device_is_away_changes_no_bound():
    """The modulus and the cut follow from all registered users, not from those whose devices take part."""
    widths = []
    for lost in ({}, {"join": {"d00"}}):
        fleet = MaskedFleet(5, survivors=3)
        fleet.lost = lost
        huge = [np.full(leaf.shape, 2**35) for leaf in jax.tree.leaves(LIKE)]
        fleet.stubs[ROGUE].sums = replace(fleet.stubs[ROGUE].sums, leaves=huge)
        total = fleet.play().total
        widths.append(next(len(answer) for phase, _, answer in fleet.view if phase == "mask"))
        assert np.max(np.abs(total["a"])) == 15 * 2**27 * MECHANISM.grid(some_task().clip_norms)
    assert len(set(widths)) == 1


def test_a_late_vector_is_thrown_away():
    fleet = MaskedFleet(5, survivors=3)
    aggregator, late = fleet.aggregator(), b""
    for number, phase in enumerate(aggregator.phases()):
        for name, message in phase.messages.items():
            answer = fleet.stubs[name].answer(message)
            if (PHASES[number], name) == ("mask", ROGUE):
                late = answer
            else:
                assert phase.take(name, answer) == "joined"
        if PHASES[number] == "confirm":
            assert ROGUE not in phase.messages
            assert phase.take(ROGUE, late) == Code.MALFORMED
    assert same(aggregator.total(), fleet.expected(set(fleet.names) - {ROGUE}))


def test_a_device_counts_once_and_a_stranger_never():
    fleet = MaskedFleet(3, survivors=2)
    aggregator = fleet.aggregator()
    first = aggregator.first
    answers = {name: stub.answer(first.messages[name]) for name, stub in fleet.stubs.items()}
    assert [first.take(name, answer) for name, answer in answers.items()] == ["joined"] * 3
    assert first.take("d00", answers["d00"]) == Code.TWICE
    assert first.take("nobody knows", answers["d00"]) == Code.STRANGER
    assert first.take("d01", answers["d00"]) == Code.TWICE


def test_a_device_cannot_answer_under_the_name_of_another():
    fleet = MaskedFleet(3, survivors=2)
    first = fleet.aggregator().first
    answer = fleet.stubs["d00"].answer(first.messages["d00"])
    assert first.take("d01", answer) == Code.SIGNATURE


def test_an_answer_longer_than_an_honest_one_is_not_read():
    fleet = MaskedFleet(3, survivors=2)
    first = fleet.aggregator().first
    assert first.take("d00", b"\0" * (first.max_answer_bytes + 1)) == Code.MALFORMED
