"""A folder that its owner signed: a list of its files with their hashes, and a signature of that list.

`SHA256SUMS` lists every file, as `sha256sum` does. `SHA256SUMS.sig` is an OpenSSH signature of the list by an Ed25519
key, and `signer.pub` the public key. So two common programs can check a release without this one:

    sha256sum -c SHA256SUMS
    ssh-keygen -Y check-novalidate -n sottovoce-release -s SHA256SUMS.sig < SHA256SUMS
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import open_plain, read_plain, sha256_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MANIFEST, SIGNATURE, SIGNER = "SHA256SUMS", "SHA256SUMS.sig", "signer.pub"
RELEASE, BASE = "sottovoce-release", "sottovoce-base"  # what a signature is for: one of a base is none of a release
NOT_RELEASED = (".git", ".gitattributes", ".cache")  # git and downloads from Hugging Face leave them at the top

_LINE = re.compile(r"([0-9a-f]{64})  ((?:[\w-][\w.-]*/)*[\w-][\w.-]*)", re.ASCII)
_MAGIC, _TYPE, _HASH = b"SSHSIG", b"ssh-ed25519", b"sha512"
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----", b"-----END SSH SIGNATURE-----"
_DEEPEST = 8  # folders in folders: a deeper one is not entered, and counts as no plain file
_LARGEST = 10**7  # bytes of a list or a signature: a larger one is not read


@dataclass(frozen=True)
class Signed:
    """What the check of a folder found. It is as its signer left it if it has a `signer` and no fault."""

    signer: str | None = None  # fingerprint of the key of a valid signature
    file_faults: tuple[str, ...] = ()
    signature_faults: tuple[str, ...] = ()
    not_signed: tuple[str, ...] = ()  # files that git or a download added
    unsigned: bool = False  # it has neither list nor signature
    hashes: dict[str, str] = field(default_factory=dict, compare=False)  # of every plain file that is not too large
    sizes: dict[str, int] = field(default_factory=dict, compare=False)  # bytes of every plain file
    odd: tuple[str, ...] = field(default=(), compare=False)  # links, pipes, folders in folders in folders


def fingerprint(key: Ed25519PublicKey) -> str:
    """The name of a key, as `ssh-keygen -l` prints it."""
    return _name_of(_blob(key))


def _name_of(blob: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def public_fingerprint(file: Path) -> str:
    """That of a public key in OpenSSH's form, as `signer.pub` of a release has it."""
    match read_plain(file, _LARGEST).split():
        case [kind, encoded, *_] if kind == _TYPE:
            return _name_of(base64.b64decode(encoded))
    raise SottoError(f"{file} is not a public key of the kind {_TYPE.decode()}; name the owner's signer.pub")


def sign_folder(folder: Path, key: Ed25519PrivateKey, purpose: str) -> None:
    """List all files of a finished folder and sign the list. The folder gets its name later, and is synced then."""
    public = key.public_key()
    (folder / SIGNER).write_bytes(b"ssh-ed25519 " + base64.b64encode(_blob(public)) + b"\n")
    found = _walk(folder, _any)
    if found.odd:
        raise SottoError(f"{folder / found.odd[0]} is not a plain file; a signed folder has no others")
    listed = sorted((name, sha256) for name, sha256 in found.hashes.items() if name not in (MANIFEST, SIGNATURE))
    manifest = "".join(f"{sha256}  {name}\n" for name, sha256 in listed).encode()
    if any(not _LINE.fullmatch(line) for line in manifest.decode().removesuffix("\n").split("\n")):
        raise SottoError(f"a file of {folder} has a name with other signs than letters, digits, '.', '_' and '-'")
    signature = key.sign(_signed_bytes(manifest, purpose))
    parts = (_blob(public), purpose.encode(), b"", _HASH, _string(_TYPE) + _string(signature))
    armoured = base64.b64encode(_MAGIC + (1).to_bytes(4) + b"".join(map(_string, parts)))
    lines = [armoured[start : start + 70] for start in range(0, len(armoured), 70)]
    (folder / MANIFEST).write_bytes(manifest)
    (folder / SIGNATURE).write_bytes(b"\n".join([_BEGIN, *lines, _END, b""]))


def _any(name: str) -> float:
    """No file is too large."""
    return math.inf


def check_folder(folder: Path, purpose: str, largest: Callable[[str], float] = _any) -> Signed:
    """Check every file of a folder and the signature. No file is opened because the list names it.

    Args:
        folder: what was signed.
        purpose: what for.
        largest: the most bytes of a file, by its name. A larger one is a fault, and is not opened.

    Guarantee: with a `signer` and no fault, the folder has the files that were signed, with their contents, and no
    others but `not_signed`.
    """
    found = _walk(folder, largest)
    file_faults = [f"{shown(name)} is not a plain file" for name in found.odd]
    file_faults += [f"{shown(name)} is too large" for name in sorted(found.sizes.keys() - found.hashes.keys())]
    if not {MANIFEST, SIGNATURE, SIGNER} & (set(found.sizes) | set(found.odd)):
        return replace(found, file_faults=tuple(file_faults), unsigned=True)
    manifest = _read(folder / MANIFEST) if MANIFEST in found.hashes else None
    if manifest is None:
        missing = f"{MANIFEST} is missing"
        return replace(found, file_faults=(*file_faults, missing), signature_faults=(missing,))
    try:
        listed = _read_manifest(manifest)
    except ValueError as error:
        file_faults.append(f"{MANIFEST} is not a list of files ({error})")
    else:
        there = {name: sha256 for name, sha256 in found.hashes.items() if name not in (MANIFEST, SIGNATURE)}
        file_faults += [f"{name} is missing" for name in sorted(listed.keys() - set(found.sizes) - set(found.odd))]
        file_faults += [f"{shown(name)} was added" for name in sorted(there.keys() - listed.keys())]
        both = sorted(listed.keys() & there.keys())
        file_faults += [f"{name} was changed" for name in both if there[name] != listed[name]]
    signer, signature_faults = None, []
    try:
        if SIGNATURE not in found.hashes:
            raise ValueError(f"{SIGNATURE} is missing")
        key = _verified(_read(folder / SIGNATURE), manifest, purpose)
        signer = fingerprint(key)
        if SIGNER not in found.hashes or _read(folder / SIGNER).split()[1:2] != [base64.b64encode(_blob(key))]:
            signature_faults.append(f"{SIGNER} is not the key that signed")
    except ValueError as error:
        signature_faults.append(str(error))
    return replace(found, signer=signer, file_faults=tuple(file_faults), signature_faults=tuple(signature_faults))


def _walk(folder: Path, largest: Callable[[str], float]) -> Signed:
    """The hash of every plain file in a folder that is not too large. Links are not followed."""
    hashes, sizes, odd = {}, {}, []
    skipped = tuple(name for name in NOT_RELEASED if os.path.lexists(folder / name))
    for name, path in _entries(folder, folder):
        if name.split("/")[0] in NOT_RELEASED:
            continue
        try:
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                if found.st_size <= largest(name):
                    hashes[name] = sha256_of(path)
                sizes[name] = found.st_size
                continue
        except OSError:  # such as a path that is too long: it was not read
            pass
        odd.append(name)
    return Signed(not_signed=skipped, hashes=hashes, sizes=sizes, odd=tuple(sorted(odd)))


def _entries(folder: Path, top: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        if len(path.relative_to(top).parts) <= _DEEPEST and stat.S_ISDIR(path.lstat().st_mode):
            yield from _entries(path, top)
        else:
            yield path.relative_to(top).as_posix(), path


def shown(name: str) -> str:
    """A name that somebody chose, for one line of a terminal."""
    return f"{ascii(name)[1:-1]:.200}"


def _read(path: Path) -> bytes:
    with open_plain(path) as file:
        return file.read(_LARGEST)


def _read_manifest(contents: bytes) -> dict[str, str]:
    listed: dict[str, str] = {}
    for number, line in enumerate(contents.decode("ascii").removesuffix("\n").split("\n"), 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] in listed:
            raise ValueError(f"line {number}")
        listed[found[2]] = found[1]
    return listed


def _verified(armoured: bytes, manifest: bytes, purpose: str) -> Ed25519PublicKey:
    """The key by which a signature is of this list; a ValueError for any other bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    lines = armoured.strip().splitlines()
    try:
        contents = base64.b64decode(b"".join(lines[1:-1]), validate=True)
    except binascii.Error:
        contents = b""
    if (lines[:1], lines[-1:]) != ([_BEGIN], [_END]) or contents[:10] != _MAGIC + (1).to_bytes(4):
        raise ValueError(f"{SIGNATURE} is not an OpenSSH signature")
    public, namespace, _, hashed, inner = _strings(contents[10:], 5)
    kind, raw = _strings(public, 2)
    kind_again, signature = _strings(inner, 2)
    if {kind, kind_again} != {_TYPE} or hashed != _HASH:
        raise ValueError(f"{SIGNATURE} is not by an Ed25519 key with SHA-512")
    if namespace != purpose.encode():
        raise ValueError(f"{SIGNATURE} was made for {namespace.decode('ascii', 'replace')!r}, not for {purpose!r}")
    try:
        key = Ed25519PublicKey.from_public_bytes(raw)
        key.verify(signature, _signed_bytes(manifest, purpose))
    except (InvalidSignature, ValueError):
        raise ValueError(f"{SIGNATURE} is not a signature of this {MANIFEST}") from None
    return key


def _signed_bytes(manifest: bytes, purpose: str) -> bytes:
    """What OpenSSH signs for a file (PROTOCOL.sshsig)."""
    return _MAGIC + b"".join(map(_string, (purpose.encode(), b"", _HASH, hashlib.sha512(manifest).digest())))


def _blob(key: Ed25519PublicKey) -> bytes:
    return _string(_TYPE) + _string(key.public_bytes_raw())


def _string(contents: bytes) -> bytes:
    return len(contents).to_bytes(4) + contents


def _strings(contents: bytes, count: int) -> list[bytes]:
    """Exactly so many strings, each after its length."""
    parts = []
    for _ in range(count):
        length = int.from_bytes(contents[:4])
        parts.append(contents[4 : 4 + length])
        if len(contents) < 4 + length:
            raise ValueError(f"{SIGNATURE} ends too early")
        contents = contents[4 + length :]
    if contents:
        raise ValueError(f"{SIGNATURE} has more than a signature")
    return parts
