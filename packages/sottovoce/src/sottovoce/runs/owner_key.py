"""The owner's key, which signs releases: Ed25519, in a file that its owner alone may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.files import make_folder, sync_folder, write_aside
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import read_plain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def owner_key_file() -> Path:
    """Where the owner's key lies unless another is named."""
    try:
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise SottoError("there is no home folder for the key that signs releases; name one with --key") from None
    return Path(config) / "sottovoce" / "owner.key"


def load_key(path: Path) -> Ed25519PrivateKey:
    """A private key in OpenSSH's or in PEM form: Ed25519, without passphrase, and readable by its owner alone."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    other = "name another with --key, or make one with `ssh-keygen -t ed25519 -N '' -f FILE`"
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SottoError(f"others may read or write the key {path}; forbid it with `chmod 600 {path}`")
        contents = read_plain(path)
        read = serialization.load_ssh_private_key if b"OPENSSH" in contents else serialization.load_pem_private_key
        key = read(contents, password=None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        reason = " ".join(str(error).split()) if isinstance(error, OSError) else "no private key without passphrase"
        raise SottoError(f"cannot read the key {path} ({reason}); {other}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SottoError(f"the key {path} is not of kind Ed25519; {other}")
    return key


def owner_key(path: Path | None = None) -> Ed25519PrivateKey:
    """The key at `path`, or else the owner's, which is made on first use."""
    if path is not None:
        return load_key(path)
    path = owner_key_file()
    if not path.exists():
        try:
            _make_key(path)
        except OSError as error:
            raise SottoError(f"cannot write the new key {path} ({error.strerror}); name a key with --key") from None
    return load_key(path)


def _make_key(path: Path) -> None:
    """Write a new key. If another process writes one at the same time, the first stays."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    make_folder(path.parent, 0o700)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    write_aside(draft, Ed25519PrivateKey.generate().private_bytes(*form), private=True)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    sync_folder(path.parent)
