"""Signatures of devices, as Flower makes and names them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from sottovoce.federation import keys
from sottovoce_evidence.errors import SottoError


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


def test_a_key_made_on_the_device_is_kept_there_and_its_public_half_is_for_the_server(tmp_path):
    public = keys.write_own_key(tmp_path / "d")
    assert (tmp_path / "d" / keys.NODE_KEY).stat().st_mode & 0o077 == 0
    key = keys.read_public_key(public)
    assert key == keys.public_half(tmp_path / "d" / keys.NODE_KEY)
    public.write_text(key + " owner@clinic\n")  # OpenSSH adds who made it
    assert keys.read_public_key(public) == key
    before = (tmp_path / "d" / keys.NODE_KEY).read_bytes()
    with pytest.raises(SottoError, match=r"node.key exists, and a device keeps its key"):
        keys.write_own_key(tmp_path / "d")
    assert (tmp_path / "d" / keys.NODE_KEY).read_bytes() == before


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH")
def test_a_fingerprint_is_what_ssh_keygen_prints(tmp_path):
    public = keys.write_own_key(tmp_path)
    shown = subprocess.run(["ssh-keygen", "-l", "-f", public], capture_output=True, text=True, check=True).stdout
    assert keys.fingerprint(keys.read_public_key(public)) == shown.split()[1]


def test_what_is_no_public_key_of_a_device_is_refused(tmp_path):
    keys.write_own_key(tmp_path)
    with pytest.raises(SottoError, match="private key, which never leaves its device"):
        keys.read_public_key(tmp_path / keys.NODE_KEY)
    with pytest.raises(SottoError, match="cannot read the public key"):
        keys.read_public_key(tmp_path / "gone.pub")
    other = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    good = (tmp_path / keys.NODE_PUBLIC).read_bytes()
    path = tmp_path / "wrong.pub"
    longer = ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    damaged = (b"\xff" * 9, good[:-20], good.replace(b" ", b"-"))
    for contents in (b"", longer, b"ecdsa-sha2-nistp256 AAAA", other, *damaged):
        path.write_bytes(contents)
        with pytest.raises(SottoError, match="no public key of the kind ecdsa-sha2-nistp256"):
            keys.read_public_key(path)
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(SottoError, match="bytes, and such a file at most"):
        keys.read_public_key(path)
