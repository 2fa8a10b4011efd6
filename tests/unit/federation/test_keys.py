"""Signatures of devices, as Flower makes and names them."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from sottovoce.errors import SottoError
from sottovoce.federation import keys


def test_a_key_and_a_signature_are_those_of_flower(tmp_path):
    public = keys.write_node_key(tmp_path)
    private = load_ssh_private_key((tmp_path / keys.NODE_KEY).read_bytes(), None)
    key = keys.public_key_pem(public)
    assert key == public_key_to_bytes(private.public_key())
    signature = sign_message(private, b"now")
    assert keys.is_signed_by(key, signature, b"now")
    assert not keys.is_signed_by(key, signature, b"later")
    assert not keys.is_signed_by(key, signature[:-1], b"now")


def test_any_bytes_are_a_key_that_did_not_sign():
    other = ed25519.Ed25519PrivateKey.generate()
    pem = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for key in (b"", b"AAAA", b"-----BEGIN PUBLIC KEY-----", pem):
        assert not keys.is_signed_by(key, other.sign(b"now"), b"now")


def test_a_device_signs_with_its_key_and_a_damaged_key_is_refused(tmp_path):
    public = keys.public_key_pem(keys.write_node_key(tmp_path))
    signature = keys.sign(tmp_path / keys.NODE_KEY, b"a claim")
    assert keys.is_signed_by(public, signature, b"a claim")
    assert not keys.is_signed_by(public, signature, b"another claim")
    (tmp_path / "other").mkdir()
    assert not keys.is_signed_by(keys.public_key_pem(keys.write_node_key(tmp_path / "other")), signature, b"a claim")
    (tmp_path / keys.NODE_KEY).write_text("no key")
    with pytest.raises(SottoError, match="cannot read the key"):
        keys.sign(tmp_path / keys.NODE_KEY, b"a claim")
