"""Match the people of silos by keyed pseudonyms, and give each person one home silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.data.some_users import copy_users, user_names
from sottovoce.data.store import Store, store_facts
from sottovoce.federation.pseudonyms import Matching, PseudonymKey, Pseudonyms
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import write_aside


@dataclass(frozen=True)
class Homes:
    """What `choose_homes` found."""

    store: Path  # of the users whose home this silo is
    users: int  # of the silo
    shared: int  # of them, those who are users of another silo too
    at_home: int  # users in the new store
    fingerprint: str  # of all files: the same at every silo


def write_pseudonyms(data: Path, key: Path, out: Path, name: str, *, new_key: bool = False) -> int:
    """Write the pseudonyms of a store's users, for the other silos. Gives their number.

    Args:
        data: the store of the silo.
        key: the file of the key that all silos share, and the server does not have.
        out: the file to write.
        name: of the silo; each has its own.
        new_key: make the key, at the first silo.
    """
    if out.exists():
        raise SottoError(f"{out} exists; name another file, or delete it")
    names = _names(data)
    own = _pseudonyms(data, names, PseudonymKey.make(key) if new_key else PseudonymKey.read(key), name)
    write_aside(out, own.to_bytes(), private=True)
    return len(own.users)


def choose_homes(data: Path, key: Path, others: Sequence[Path], out: Path, name: str) -> Homes:
    """Make a store of the users whose home this silo is: each person is in one silo's, and all silos find the same.

    Args:
        data: the store of the silo.
        key: the file of the key that all silos share.
        others: the files of pseudonyms of all other silos.
        out: the folder of the new store.
        name: of the silo, as in its own file of pseudonyms.
    """
    if not others:
        raise SottoError("give the files of pseudonyms of the other silos: without them nobody is matched")
    secret = PseudonymKey.read(key)
    names = _names(data)
    matching = Matching(_pseudonyms(data, names, secret, name), [Pseudonyms.read(path) for path in others])
    rows = [row for row, user in enumerate(names) if matching.is_home(secret.pseudonym(user))]
    store = copy_users(data, out, rows)
    return Homes(out, len(names), matching.elsewhere, store.users, matching.fingerprint)


def _names(data: Path) -> list[bytes]:
    store = Store.open(data)
    if not store.people:
        raise SottoError(f"{data} was prepared from plain text: its users are no persons; prepare records with users")
    return user_names(store)


def _pseudonyms(data: Path, names: Sequence[bytes], key: PseudonymKey, silo: str) -> Pseudonyms:
    return Pseudonyms.of(silo, names, key, str(store_facts(data).get("split_key", "")))
