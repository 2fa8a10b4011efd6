"""What a device gives in a masked round, and what it refuses: whoever lies to it learns nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2

from masked_fleets import PHASES, MaskedFleet, Stub, is_zero, members_of, membership, names_of, node_key, some_task
from sottovoce.federation.masking import masks
from sottovoce.federation.masking.graph import Terms, graph_of, quorum
from sottovoce.federation.masking.messages import (
    Advert,
    Forwarded,
    KeyList,
    Request,
    Signatures,
    Survivors,
    read_confirmed,
    read_later,
    read_revealed,
    read_shares,
    read_vector,
)
from sottovoce.federation.masking.participant import Participant, Place, pair_mask, self_mask
from sottovoce.federation.members import BY_SERVER, Membership
from sottovoce.federation.messages import Code, Later, Refused, read_request

VICTIM = "d02"


def lying(count: int, phase: str, change: Callable[[Request], Request], **terms: int) -> MaskedFleet:
    """A fleet whose server changes what it asks of the victim in one phase, the last one."""
    fleet = MaskedFleet(count, **terms)
    fleet.lost = {later: set(fleet.names) for later in PHASES[PHASES.index(phase) + 1 :][:1]}

    def ask(now: str, name: str, message: bytes) -> bytes:
        if (now, name) != (phase, VICTIM):
            return message
        request = read_request(message)
        assert isinstance(request, Later)
        return change(read_later(request)).to_bytes()

    fleet.ask = ask
    return fleet


def with_entry(found: KeyList, name: str, both: bytes, signature: bytes | None = None) -> KeyList:
    place = found.names.index(name)
    keys, signatures = list(found.keys), list(found.signatures)
    keys[place] = both
    if signature is not None:
        signatures[place] = signature
    return replace(found, keys=tuple(keys), signatures=tuple(signatures))


def without(found: KeyList, *gone: str) -> KeyList:
    stay = [place for place, name in enumerate(found.names) if name not in gone]
    names, keys, signatures = ([row[place] for place in stay] for row in (found.names, found.keys, found.signatures))
    return KeyList(found.context, tuple(names), tuple(keys), tuple(signatures))


def fresh_keys(found: KeyList, name: str, number: int, mask_key: bytes | None = None, context: str = "") -> KeyList:
    """The list with other keys of a device, which it signed itself."""
    keys = [masks.public_bytes(X25519PrivateKey.generate()) for _ in range(2)]
    mask_key, seal_key = mask_key or keys[0], keys[1]
    entry = mask_key + seal_key + found.entry(name).commitment
    claim = Advert.claim(context or found.context, name, entry)
    return with_entry(found, name, entry, membership(number, 5).sign(claim))


# Each lie, the phase it is told in, and the sentence in the device's log.
LIES: dict[str, tuple[str, Callable, str]] = {
    "the device is left out": ("share", lambda found: without(found, VICTIM), "other keys for this device than its"),
    "its keys are others": (
        "share",
        lambda found: with_entry(found, VICTIM, bytes(range(96))),
        "other keys for this device than its own",
    ),
    "a neighbour's keys are others": (
        "share",
        lambda found: with_entry(found, "d00", bytes(range(96))),
        "what d00 signed is not by its key in members.json",
    ),
    "a neighbour's commitment is another": (
        "share",
        lambda found: with_entry(found, "d00", found.keys[0][:64] + bytes(32)),
        "what d00 signed is not by its key in members.json",
    ),
    "another device signed for the neighbour": (
        "share",
        lambda found: fresh_keys(found, "d00", 1),
        "what d00 signed is not by its key in members.json",
    ),
    "the neighbour signed its keys in another round": (
        "share",
        lambda found: fresh_keys(found, "d00", 0, context="0" * 64),
        "what d00 signed is not by its key in members.json",
    ),
    "a key of low order": (
        "share",
        lambda found: fresh_keys(found, "d00", 0, mask_key=bytes(32)),
        "a public key of another device is malformed",
    ),
    "two devices with one key": (
        "share",
        lambda found: with_entry(found, "d00", found.keys[1]),
        "a key is twice in the list of devices",
    ),
    "a stranger": (
        "share",
        lambda found: KeyList(
            found.context, (*found.names, "x"), (*found.keys, bytes(range(96))), (*found.signatures, b"")
        ),
        "x is not in members.json; copy that file again from the server",
    ),
    "too few devices": ("share", lambda found: without(found, "d00", "d01"), "3 devices are in the round, fewer than"),
    "shares of too few": (
        "mask",
        lambda found: replace(found, names=found.names[:2], sealed=found.sealed[:2]),
        "shares of 2 neighbours came, and 3 are needed",
    ),
    "swapped shares": (
        "mask",
        lambda found: replace(found, sealed=(found.sealed[1], found.sealed[0], *found.sealed[2:])),
        "a share was changed on its way, or is meant for another device",
    ),
    "a changed share": (
        "mask",
        lambda found: replace(found, sealed=(bytes(48), *found.sealed[1:])),
        "a share was changed on its way",
    ),
    "shares of no neighbour": (
        "mask",
        lambda found: replace(found, names=(*found.names[:-1], "x")),
        "shares came of a device that is no neighbour",
    ),
    "survivors without the device": (
        "confirm",
        lambda found: replace(found, names=tuple(name for name in found.names if name != VICTIM)),
        "the survivors leave this device out",
    ),
    "a survivor that never was": (
        "confirm",
        lambda found: replace(found, names=(*found.names, "x")),
        "have one that is not in the round",
    ),
    "too few survivors": (
        "confirm",
        lambda found: replace(found, names=("d00", "d01", VICTIM)),
        "3 devices survived, fewer than 4",
    ),
    "signatures of too few": (
        "unmask",
        lambda found: replace(found, names=found.names[:1], signatures=found.signatures[:1]),
        "1 other device signed the survivors, and 2 must",
    ),
    "signatures of another set": (
        "unmask",
        lambda found: replace(found, signatures=(found.signatures[1], found.signatures[0], *found.signatures[2:])),
        "what d00 signed is not by its key in members.json",
    ),
    "signatures by no survivor": (
        "unmask",
        lambda found: replace(found, names=(*found.names[:-1], "x")),
        "signed by a device that is not among them",
    ),
    "another round": ("share", lambda found: replace(found, context="0" * 64), "is of another round"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_is_refused_with_a_sentence(name):
    phase, change, sentence = LIES[name]
    fleet = lying(5, phase, change, survivors=4)
    fleet.play()
    assert any(sentence in line for line in fleet.stubs[VICTIM].refusals), fleet.stubs[VICTIM].refusals
    others = [line for name, stub in fleet.stubs.items() if name != VICTIM for line in stub.refusals]
    assert not others


@pytest.mark.parametrize("colluding", [1, 2])
def test_keys_that_the_server_made_count_among_those_that_collude(colluding):
    """It can sign for their devices, and be them. All devices have one list, and find the same."""
    fleet = MaskedFleet(6, survivors=4, colluding=colluding)
    known = {
        name: replace(each, made_by=BY_SERVER) if name in ("d01", "d04") else each
        for name, each in members_of(6).items()
    }
    for stub in fleet.stubs.values():
        stub.place = replace(stub.place, membership=replace(stub.place.membership, members=known))
    summed = fleet.play()
    assert is_zero(summed) == (colluding < 2)
    sentence = "the server made the keys of 2 devices in the round, and colluding = 1"
    assert [sentence in line for line in fleet.refusals()] == ([True] if colluding < 2 else [])


def played(count: int, upto: str, **terms: int) -> tuple[MaskedFleet, dict[str, Request]]:
    """A fleet after some phase, and what the victim was asked in each."""
    fleet, asked = MaskedFleet(count, **terms), {}

    def ask(phase: str, name: str, message: bytes) -> bytes:
        request = read_request(message)
        if name == VICTIM and isinstance(request, Later):
            asked[phase] = read_later(request)
        return message

    fleet.ask = ask
    stop = {"share": "mask", "mask": "confirm", "confirm": "unmask"}.get(upto)
    if stop:
        fleet.lost = {stop: set(fleet.names)}
    fleet.play()
    return fleet, asked


def code_of(stub: Stub, request: Request) -> Code | None:
    try:
        stub.go_on(request)
    except Refused as refused:
        return refused.code
    return None


def test_a_message_that_is_repeated_gets_the_same_bytes_and_another_is_refused():
    fleet, asked = played(5, "unmask", survivors=3)
    stub = fleet.stubs[VICTIM]
    for request in asked.values():
        assert stub.go_on(request) == stub.go_on(request)
    share, mask, confirm, unmask = asked.values()
    others = [
        fresh_keys(share, "d00", 0),
        replace(mask, names=mask.names[:-1], sealed=mask.sealed[:-1]),
        replace(confirm, names=confirm.names[1:]),
        replace(unmask, names=unmask.names[:-1], signatures=unmask.signatures[:-1]),
    ]
    assert [code_of(stub, other) for other in others] == [Code.TWICE] * 4
    assert stub.left == [share.digest]  # one vector left


def test_a_share_that_comes_back_to_its_sender_is_refused():
    """Sealed for a neighbour, and handed back as if the neighbour had sealed it for the device."""
    fleet, asked = played(5, "share", survivors=3)
    stub, found = fleet.stubs[VICTIM], asked["share"]
    own = read_shares(stub.go_on(found), found.context, 4)
    near = stub.participant._graph.neighbours[VICTIM]
    with pytest.raises(Refused, match="meant for another device"):
        stub.go_on(Forwarded(found.context, near, own))
    assert not stub.left


def test_phases_out_of_their_order_are_refused():
    _, asked = played(5, "unmask", survivors=3)
    _, mask, confirm, unmask = asked.values()
    early = MaskedFleet(5, survivors=3).stubs[VICTIM]
    early.begin(some_task(), some_task().to_bytes())
    assert [code_of(early, request) for request in (mask, confirm, unmask)] == [Code.LOST] * 3
    fleet, asked = played(5, "share", survivors=3)
    assert code_of(fleet.stubs[VICTIM], Survivors(asked["share"].context, asked["share"].names)) is Code.LOST
    fleet, asked = played(5, "mask", survivors=3)
    nobody = Signatures(asked["share"].context, asked["share"].names, (b"",) * 5)
    assert code_of(fleet.stubs[VICTIM], nobody) is Code.LOST


def test_one_secret_of_each_neighbour_is_given_and_never_the_other():
    """The server asks for the self-mask of all, and then, with another set of survivors, for a mask key."""
    fleet, asked = played(5, "unmask", survivors=3)
    stub, confirm, unmask = fleet.stubs[VICTIM], asked["confirm"], asked["unmask"]
    given = read_revealed(stub.go_on(unmask), confirm.context, 4)
    kept = stub.participant._kept
    assert given.shares == tuple(kept[name][0] for name in sorted(kept))
    others = replace(confirm, names=tuple(name for name in confirm.names if name != "d00"))
    assert code_of(stub, others) is Code.TWICE
    assert read_revealed(stub.go_on(unmask), confirm.context, 4) == given


def test_of_a_neighbour_that_is_gone_the_mask_key_is_given_and_not_the_self_mask():
    fleet = MaskedFleet(6, survivors=3)
    fleet.lost = {"mask": {"d00", "d04"}}
    fleet.play()
    for stub in (fleet.stubs[name] for name in ("d01", "d02", "d03", "d05")):
        message = next(answer for phase, name, answer in fleet.view if (phase, name) == ("unmask", stub.place.name))
        kept = stub.participant._kept
        given = dict(zip(sorted(kept), read_revealed(message, stub.participant.context, 5).shares, strict=True))
        for name, share in given.items():
            assert share == kept[name][1 if name in ("d00", "d04") else 0]


@pytest.mark.parametrize("colluding", [0, 1])
def test_a_server_that_names_two_sets_of_survivors_does_not_open_both(colluding):
    """Half of the devices are told of one set, half of another. One that colludes signs both."""
    fleet, asked = played(6, "mask", survivors=3, colluding=colluding)
    names, context = fleet.names, asked["share"].context
    sets = (Survivors(context, tuple(names[:5])), Survivors(context, tuple(names[1:])))
    told = {name: sets[number // 3] for number, name in enumerate(names)}
    signed: dict[Survivors, dict[str, bytes]] = {one: {} for one in sets}
    for name, stub in fleet.stubs.items():
        signed[told[name]][name] = read_confirmed(stub.go_on(told[name]), context)
    if colluding:
        signed[sets[1]]["d01"] = membership(1, 6).sign(sets[1].claim(asked["share"].digest))
    opened = set()
    for name, stub in fleet.stubs.items():
        signers = tuple(sorted(signed[told[name]]))
        request = Signatures(context, signers, tuple(signed[told[name]][other] for other in signers))
        if code_of(stub, request) is None:
            opened.add(told[name])
    assert len(opened) <= colluding  # with the signature that was given twice, one set has enough


# --- what the server sees -------------------------------------------------------------------------------------------

SIZE, USERS = 20_000, 300  # numbers in a vector; with 5 devices of 3 users its numbers have 4 bytes, of 300 users 5
HONEST, COLLUDING = ("d00", "d02", "d04"), ("d01", "d03")


def opened_round(value: int) -> dict[str, np.ndarray]:
    """What is left of each honest device's vector, when all that the server and the colluding know is taken away.

    They know every message, the mask keys of the colluding, and the self-mask seeds of all, which unmasking opens.
    """
    names = names_of(5)
    known = Membership(node_key(0)[0], members_of(5, users=USERS))
    places = {
        name: Place(name, replace(known, key=node_key(number)[0]), Terms(3, 2)) for number, name in enumerate(names)
    }
    devices = {name: Participant(place, "c" * 64, np.full(SIZE, value)) for name, place in places.items()}
    adverts = [devices[name].advert() for name in names]
    entries, signatures = (one.entry for one in adverts), (one.signature for one in adverts)
    found = KeyList("c" * 64, tuple(names), tuple(entries), tuple(signatures))
    graph = graph_of(found.names, found.digest, Terms(3, 2))
    sent = {name: read_shares(devices[name].answer(found, print), found.context, 4) for name in names}
    left = {}
    for name in HONEST:
        near = graph.neighbours[name]
        sealed = tuple(sent[other][graph.place(other, name)] for other in near)
        answer = devices[name].answer(Forwarded(found.context, near, sealed), lambda digest: None)
        view = masks.Modular(SIZE, 5)
        view.add_bytes(read_vector(answer, found.context, 5 * SIZE))
        view.add_masks([self_mask(devices[name]._self_seed, found, name)], sign=-1)
        for other in COLLUDING:
            key = pair_mask(devices[other]._mask_key, found, (other, name))
            view.add_masks([key], sign=-1 if name < other else 1)
        left[name] = view.signed()
    return left


def chance(numbers: np.ndarray) -> float:
    """The chance of such counts of bytes, over all five bytes of the numbers, if they were uniform."""
    split = (numbers.astype(np.int64)[:, None] >> (8 * np.arange(5))) & 255
    counts = np.stack([np.bincount(column, minlength=256) for column in split.T])
    expected = len(numbers) / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 5 * 255))


def test_what_the_server_and_the_colluding_see_of_a_device_is_uniform():
    """Of each honest device, and of any two of the three: only the sum of all three is left."""
    left = opened_round(value=7)
    width = np.int64(2**40)
    for some in (("d00",), ("d02",), ("d04",), ("d00", "d02"), ("d02", "d04"), ("d00", "d04")):
        assert 1e-6 < chance(sum(left[name] for name in some) % width) < 1 - 1e-6
    assert (sum(left[name] for name in HONEST) % width == 21).all()


def test_a_mask_that_is_too_short_is_seen(monkeypatch):
    """The test above has teeth: with masks of 32 bits the upper byte shows."""
    real = masks.Modular.add_masks

    def short(self, keys, sign=1):
        upper = self._planes[1].copy()
        real(self, keys, sign)
        self._planes[1][:] = upper

    monkeypatch.setattr(masks.Modular, "add_masks", short)
    assert chance(opened_round(value=7)["d00"] % np.int64(2**40)) < 1e-9


def test_keys_are_fresh_in_every_round():
    place = Place("d00", membership(0, 3), Terms(2, 0))
    adverts = [Participant(place, "c" * 64, np.zeros(3, np.int64)).advert() for _ in range(3)]
    assert len({key for one in adverts for key in (one.mask_key, one.seal_key)}) == 6


@pytest.mark.parametrize(("count", "colluding"), [(8, 0), (12, 3)])
def test_a_sum_of_a_few_is_not_opened_by_naming_all_as_survivors(count, colluding):
    """The server forwards shares within a group alone, and says that all survived. The noise would be of the group."""
    terms, names, context, size = Terms(count, colluding), names_of(count), "c" * 64, 8
    known = members_of(count)
    devices = {
        name: Participant(Place(name, Membership(node_key(number)[0], known), terms), context, np.zeros(size, np.int64))
        for number, name in enumerate(names)
    }
    adverts = [devices[name].advert() for name in names]
    entries, signatures = tuple(one.entry for one in adverts), tuple(one.signature for one in adverts)
    found = KeyList(context, tuple(names), entries, signatures)
    graph = graph_of(found.names, found.digest, terms)
    group = names[: max(graph.threshold, quorum(count, colluding)) + 1]
    assert len(group) < count
    leaves = lambda digest: None  # noqa: E731
    sent = {name: read_shares(devices[name].answer(found, leaves), context, count - 1) for name in group}
    for name in group:
        near = tuple(other for other in graph.neighbours[name] if other in group)
        shares = tuple(sent[other][graph.place(other, name)] for other in near)
        devices[name].answer(Forwarded(context, near, shares), leaves)
    for name in group:
        with pytest.raises(Refused, match=f"{len(group) - 1} of the survivors hide this device, and {count - 1} must"):
            devices[name].answer(Survivors(context, tuple(names)), leaves)
