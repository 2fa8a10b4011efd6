"""Messages of a masked round: what one side writes, the other reads, and any other bytes are refused."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.federation.masking.messages import (
    ENTRY,
    Advert,
    Confirmed,
    Forwarded,
    KeyList,
    Masked,
    Revealed,
    Shares,
    Signatures,
    Survivors,
    commitment,
    largest,
    read_advert,
    read_confirmed,
    read_later,
    read_revealed,
    read_shares,
    read_vector,
)
from sottovoce.federation.messages import Code, Later, Nothing, Refused, pack, read_request

CONTEXT = "c" * 64
REQUESTS = [
    KeyList(CONTEXT, ("a", "b"), (bytes(96), b"\1" * 96), (b"x", b"yz")),
    Forwarded(CONTEXT, ("a", "b"), (bytes(48), b"\1" * 48)),
    Survivors(CONTEXT, ("a", "b")),
    Signatures(CONTEXT, ("a", "b"), (b"x", b"")),
]


def later(message: bytes) -> Later:
    request = read_request(message)
    assert isinstance(request, Later)
    return request


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_device_reads_what_the_server_asks(request_):
    read = read_later(later(request_.to_bytes()))
    assert read == request_
    assert read.to_bytes() == request_.to_bytes()


@pytest.mark.parametrize(
    "facts",
    [
        {"names": ["b", "a"]},
        {"names": ["a", "a"]},
        {"names": ["a", 1]},
        {"names": "ab"},
        {"names": ["a", "b"], "signatures": ["00"]},
        {"names": ["a", "b"], "signatures": ["0", "00"]},
        {"names": ["a", "b"], "signatures": [1, 2]},
        {"names": ["a", "b"], "context": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["share", "unmask"])
def test_what_the_server_asks_is_refused_if_it_cannot_be_read(kind, facts):
    arrays = {"keys": np.zeros(192, np.uint8)}
    message = pack({"protocol": 1, "kind": kind, "context": CONTEXT, **facts}, arrays, [])
    with pytest.raises(Refused) as refused:
        read_later(later(message))
    assert refused.value.code is Code.MALFORMED


def test_the_server_reads_what_a_device_answers():
    advert = Advert(CONTEXT, b"m" * 32, b"s" * 32, b"c" * 32, b"signature")
    read = read_advert(advert.to_bytes(), CONTEXT)
    assert (read.entry, read.commitment, read.signature) == (advert.entry, b"c" * 32, b"signature")
    shares = tuple(bytes([number]) * 48 for number in range(3))
    assert read_shares(Shares(CONTEXT, shares).to_bytes(), CONTEXT, 3) == shares
    assert read_vector(Masked(CONTEXT, b"abc").to_bytes(), CONTEXT, 3).tobytes() == b"abc"
    assert read_confirmed(Confirmed(CONTEXT, b"signed").to_bytes(), CONTEXT) == b"signed"
    revealed = Revealed(CONTEXT, b"s" * 16, (b"a" * 16, b"b" * 16))
    assert read_revealed(revealed.to_bytes(), CONTEXT, 2) == revealed


READERS = {
    "keys": lambda message: read_advert(message, CONTEXT),
    "shares": lambda message: read_shares(message, CONTEXT, 2),
    "vector": lambda message: read_vector(message, CONTEXT, 3),
    "confirmed": lambda message: read_confirmed(message, CONTEXT),
    "revealed": lambda message: read_revealed(message, CONTEXT, 2),
}


@pytest.mark.parametrize("kind", READERS)
def test_an_answer_that_is_not_what_was_asked_is_refused(kind):
    read = READERS[kind]
    wrong = {
        b"": Code.MALFORMED,
        Nothing(Code.LIMITS).to_bytes(): Code.LIMITS,
        Survivors(CONTEXT, ()).to_bytes(): Code.MALFORMED,
        pack({"protocol": 1, "kind": kind, "context": "d" * 64}, {}, []): Code.TWICE,
        pack({"protocol": 1, "kind": kind, "context": CONTEXT}, {}, []): Code.MALFORMED,
        pack({"protocol": 1, "kind": kind}, {}, []): Code.MALFORMED,
        pack({"protocol": 2, "kind": kind, "context": CONTEXT}, {}, []): Code.VERSION,
        pack({"protocol": 1, "nothing": "?"}, {}, []): Code.MALFORMED,
    }
    for message, code in wrong.items():
        with pytest.raises(Refused) as refused:
            read(message)
        assert refused.value.code is code


@pytest.mark.parametrize("array", [np.zeros(47, np.uint8), np.zeros((2, 48), np.uint8), np.zeros(2, np.int64)])
def test_arrays_of_another_shape_are_refused(array):
    facts = {"protocol": 1, "context": CONTEXT, "signature": ""}
    names = {"keys": "keys", "shares": "sealed", "vector": "vector", "revealed": "shares"}
    for kind, name in names.items():
        arrays = {name: array, "seed": np.zeros(16, np.uint8)} if kind == "revealed" else {name: array}
        with pytest.raises(Refused) as refused:
            READERS[kind](pack({**facts, "kind": kind}, arrays, []))
        assert refused.value.code is Code.MALFORMED


def test_an_answer_is_within_the_length_that_is_waited_for():
    vector = Masked(CONTEXT, bytes(5000)).to_bytes()
    assert 5000 < len(vector) <= largest(5000)
    assert len(Advert(CONTEXT, bytes(32), bytes(32), bytes(32), bytes(104)).to_bytes()) <= largest(ENTRY)


def test_a_commitment_is_bound_to_its_seed_round_and_device():
    shown = commitment(bytes(16), CONTEXT, "a")
    assert len(shown) == 32
    others = (
        commitment(b"\1" * 16, CONTEXT, "a"),
        commitment(bytes(16), "d" * 64, "a"),
        commitment(bytes(16), CONTEXT, "b"),
    )
    assert len({shown, *others}) == 4
