"""Bytes in Flower's messages. Those of hostile devices are in `test_mailbox.py` and `test_proxy.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sottovoce.federation.flower import payload


@pytest.mark.parametrize(
    "data", [b"", b"x", b"x" * payload.SMALL, b"x" * (payload.SMALL + 1), bytes(range(256)) * 100_000]
)
def test_bytes_are_the_same_in_a_message(data):
    assert payload.unpack(SimpleNamespace(content=payload.pack(data))) == data


def test_a_small_message_has_fewer_objects_and_each_fits_what_may_be_sent():
    small, large = (get_all_nested_objects(payload.pack(b"x" * size)) for size in (payload.SMALL, payload.SMALL + 1))
    assert len(small) == 2 < len(large)
    assert all(len(each.deflate()) <= payload.MAX_HEAD for each in small.values())


def test_a_message_that_holds_something_else_has_no_bytes():
    for content in (None, RecordDict(), RecordDict({"sottovoce": ConfigRecord({"bytes": 1})})):
        assert payload.unpack(SimpleNamespace(content=content)) == b""
