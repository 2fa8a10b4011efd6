"""Devices that sign their requests."""

from __future__ import annotations

from base64 import b64encode

import pytest

from sottovoce.federation import keys
from sottovoce.federation.flower import quota


@pytest.fixture
def devices(tmp_path) -> dict[str, dict[str, str]]:
    """Headers by which two devices with a quota in the folder sign, and a stranger without."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import sign_message

    headers, public = {}, {}
    for name in ("phone", "silo", "stranger"):
        (tmp_path / name).mkdir()
        public[name] = keys.write_node_key(tmp_path / name)
        private = load_ssh_private_key((tmp_path / name / keys.NODE_KEY).read_bytes(), None)
        headers[name] = {
            "flwr-public-key": b64encode(keys.public_key_pem(public[name])).decode(), "flwr-timestamp": "2026-01-01",
            "flwr-signature": b64encode(sign_message(private, b"2026-01-01")).decode(),
        }  # fmt: skip
    del public["stranger"]
    quota.write_quota(tmp_path, public, 1000)
    return headers
