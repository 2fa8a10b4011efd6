"""Certificates of the server and keys of the devices, made with `cryptography`, which comes with Flower."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sottovoce.errors import SottoError
from sottovoce.files import work_folder, write_aside

AUTHORITY, SERVER, SERVER_KEY, NODE_KEY = "authority.pem", "server.pem", "server.key", "node.key"
VALID_DAYS = 825
SOON_DAYS = 60  # before the end, at which to be reminded


def needs_flower() -> None:
    """Say what to install, before anything is made."""
    if find_spec("flwr") is None:
        raise SottoError("`sotto federate` needs Flower: pip install -e '.[federation]'")


def write_authority(folder: Path, host: str) -> None:
    """An authority of the federation's own, and the server's certificate by it. The authority's key is not kept."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(mode=0o700)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ours, theirs = _name("sottovoce federation"), _name(host)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = (
        _certificate(ours, ours, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    names = [_address(host), _address("127.0.0.1"), _address("localhost")]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        _certificate(theirs, ours, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_aside(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
    write_aside(folder / SERVER, server.public_bytes(serialization.Encoding.PEM))
    write_aside(
        folder / SERVER_KEY,
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        private=True,
    )


def renew_authority(folder: Path, host: str) -> None:
    """Another authority and another certificate of the server in place of those in a folder."""
    with work_folder(folder, "keys") as draft:
        made = draft / "keys"
        write_authority(made, host)
        for name in (SERVER_KEY, SERVER, AUTHORITY):
            write_aside(folder / name, (made / name).read_bytes(), private=name == SERVER_KEY)


def days_left(path: Path, then: str) -> int:
    """For how long a certificate is valid; one that is not is refused. `then` says how to come by another."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SottoError(f"cannot read the certificate {path} ({error}); {then}") from None
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    if not start <= now <= end:
        raise SottoError(
            f"{path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M} UTC: set the clock if that is wrong; or {then}"
        )
    return (end - now).days


def write_node_key(folder: Path) -> str:
    """The key a device is known by; what is returned is its public half."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_aside(folder / NODE_KEY, private, private=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def _certificate(subject: Any, issuer: Any, public_key: Any) -> Any:
    from cryptography import x509

    start = datetime.now(UTC) - timedelta(hours=1)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=VALID_DAYS))
    )


def _name(text: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _address(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
