"""Bytes in Flower's messages. Those of hostile devices are in `test_mailbox.py` and `test_proxy.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, RecordDict

from sottovoce.federation.flower import payload


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 100_000])
def test_bytes_are_the_same_in_a_message(data):
    assert payload.unpack(SimpleNamespace(content=payload.pack(data))) == data


def test_a_message_that_holds_something_else_has_no_bytes():
    for content in (None, RecordDict(), RecordDict({"sottovoce": ConfigRecord({"bytes": 1})})):
        assert payload.unpack(SimpleNamespace(content=content)) == b""
