"""Certificates of the server, and the keys that devices sign with."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sottovoce.files import make_folder, work_folder, write_aside
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import read_plain

AUTHORITY, SERVER, SERVER_KEY = "authority.pem", "server.pem", "server.key"
NODE_KEY, NODE_PUBLIC = "node.key", "node.pub"
_KIND = "ecdsa-sha2-nistp256"  # of a device's key, as OpenSSH names it
_LARGEST = 2**16  # bytes of a file with a key
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
        certificate = x509.load_pem_x509_certificate(read_plain(path))
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

    key = ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_aside(folder / NODE_KEY, key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain), private=True)
    return _openssh(key.public_key())


def write_own_key(folder: Path) -> Path:
    """Make a device's key on the device. Gives the file with its public half, which is all that the server needs."""
    make_folder(folder, 0o700)
    if (folder / NODE_KEY).exists():
        raise SottoError(f"{folder / NODE_KEY} exists, and a device keeps its key; name another folder or move it away")
    public = write_node_key(folder)
    write_aside(folder / NODE_PUBLIC, public.encode() + b"\n")
    return folder / NODE_PUBLIC


def read_public_key(path: Path) -> str:
    """The public key of a device, from the file that `write_own_key` or `ssh-keygen -t ecdsa` made."""
    make = "make one on the device with `sotto federate key`"
    try:
        contents = read_plain(path, _LARGEST)
    except OSError as error:
        raise SottoError(f"cannot read the public key {path} ({error.strerror}); {make}") from None
    if b"PRIVATE KEY" in contents:
        raise SottoError(f"{path} is a private key, which never leaves its device; give {NODE_PUBLIC}, its public half")
    try:
        key = " ".join(contents.decode().split()[:2])  # a comment may follow
        fingerprint(key)
    except ValueError:
        raise SottoError(f"{path} is no public key of the kind {_KIND}; {make}") from None
    return key


def fingerprint(public_key: str) -> str:
    """As `ssh-keygen -l` prints it. A ValueError if it is no public key of a device."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        loaded = serialization.load_ssh_public_key(public_key.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    kind, _, blob = public_key.partition(" ")
    if kind != _KIND or _openssh(loaded) != public_key:
        raise ValueError(f"not a public key of the kind {_KIND}, as OpenSSH writes it")
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")


def public_half(key: Path) -> str:
    """The public key of a device's private one, as a roster has it."""
    return _openssh(_load(key).public_key())


def _openssh(public: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _load(key: Path) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        return serialization.load_ssh_private_key(read_plain(key), None)
    except (OSError, TypeError, ValueError) as error:  # TypeError: it has a passphrase
        then = "copy the folder again from the server, or your own key back into it"
        raise SottoError(f"cannot read the key {key} ({error}); {then}") from None


def sign(key: Path, message: bytes) -> bytes:
    """A signature (ECDSA with SHA-256) by the key that `write_node_key` made."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return _load(key).sign(message, ec.ECDSA(hashes.SHA256()))


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
