"""Certificates of the server, and the keys that devices sign with."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sottovoce.errors import SottoError
from sottovoce.files import work_folder, write_aside

AUTHORITY, SERVER, SERVER_KEY, NODE_KEY = "authority.pem", "server.pem", "server.key", "node.key"
VALID_DAYS = 825
SOON_DAYS = 60  # before the end: then the server reminds its owner


def write_authority(folder: Path, host: str) -> None:
    """Make a certificate authority and the server's certificate. The authority's key is not kept."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def address(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ours, theirs = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]) for name in ("sottovoce federation", host)
    )
    start = datetime.now(UTC) - timedelta(hours=1)  # clocks differ
    dates = {"not_valid_before": start, "not_valid_after": start + timedelta(days=VALID_DAYS)}
    issuer = authority_key.public_key()
    authority = (
        x509.CertificateBuilder(ours, ours, issuer, x509.random_serial_number(), **dates)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    names = dict.fromkeys(address(name) for name in (host, "127.0.0.1", "localhost"))
    server = (
        x509.CertificateBuilder(ours, theirs, server_key.public_key(), x509.random_serial_number(), **dates)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    folder.mkdir(mode=0o700)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_aside(folder / AUTHORITY, authority.public_bytes(pem))
    write_aside(folder / SERVER, server.public_bytes(pem))
    private = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    write_aside(folder / SERVER_KEY, private, private=True)


def renew_authority(folder: Path, host: str) -> None:
    """Replace the authority and the server's certificate in a folder."""
    with work_folder(folder, "keys") as draft:
        made = draft / "keys"
        write_authority(made, host)
        for name in (SERVER_KEY, SERVER, AUTHORITY):
            write_aside(folder / name, (made / name).read_bytes(), private=name == SERVER_KEY)


def days_left(path: Path, then: str) -> int:
    """The days until a certificate ends. One that is not valid now is refused; `then` says how to get another."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SottoError(f"cannot read the certificate {path} ({error}); {then}") from None
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    if not start <= now <= end:
        valid = f"is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and this clock says {now:%Y-%m-%d %H:%M} UTC"
        raise SottoError(f"{path} {valid}: set the clock if it is wrong, or {then}")
    return (end - now).days


def write_node_key(folder: Path) -> str:
    """Make the key that a device signs with; give its public half, as OpenSSH writes it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_aside(folder / NODE_KEY, key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain), private=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def sign(key: Path, message: bytes) -> bytes:
    """A signature (ECDSA with SHA-256) by the key that `write_node_key` made."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        loaded: Any = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SottoError(f"cannot read the key {key} ({error}); copy the folder again from the server") from None
    return loaded.sign(message, ec.ECDSA(hashes.SHA256()))


def public_key_pem(public_key: str) -> bytes:
    """A key of the roster, in the form in which devices name it."""
    from cryptography.hazmat.primitives import serialization

    loaded: Any = serialization.load_ssh_public_key(public_key.encode())
    return loaded.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def is_signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Does a signature (ECDSA with SHA-256) of a message belong to a public key in PEM? False for any other bytes."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key: Any = serialization.load_pem_public_key(public_key)
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError, AttributeError):
        return False
    return True
