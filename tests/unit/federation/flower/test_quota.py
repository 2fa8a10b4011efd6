"""Who sends a request. How much a device may send is in `test_proxy.py`."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from sottovoce.federation.flower import quota


def test_a_device_is_known_by_its_signature(tmp_path, devices):
    held = quota.Quota(tmp_path)
    assert [held.sender(devices[name]) for name in ("phone", "silo", "stranger")] == ["phone", "silo", None]
    forged = {**devices["stranger"], "flwr-public-key": devices["phone"]["flwr-public-key"]}
    for headers in (
        forged, {}, {**devices["phone"], "flwr-timestamp": "2026-01-02"}, {**devices["phone"], "flwr-signature": "é"},
        {**devices["phone"], "flwr-public-key": "AAAA"}, {**devices["phone"], "flwr-timestamp": "\udcff"},
    ):  # fmt: skip
        assert held.sender(headers) is None
