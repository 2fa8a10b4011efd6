"""A store with some of the users of another."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from sottovoce.data.prepare import new_store
from sottovoce.data.rows import LEDGER, SplitWriter
from sottovoce.data.store import FORMAT, SPLITS, Store, store_facts, write_facts
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce_evidence.errors import SottoError


def user_names(store: Store) -> list[bytes]:
    """The 16 bytes by which the store knows each user, by row. They follow from the id and the split key."""
    _ = store.names  # refuses a store that knows no names
    batches = [batch.names for batch in store.rows.batches if batch.names is not None]
    return [bytes.fromhex(name.decode("ascii")) for names in batches for name in names]


def copy_users(folder: Path, out: Path, rows: Iterable[int]) -> Store:
    """Copy a store, with these rows of its training users alone. Those who are held out are copied too.

    What the people were charged goes with them.
    """
    kept = sorted(rows)
    if not kept:
        raise SottoError(f"none of the users of {folder} would be in {out}; a store has one at least")
    facts, splits = store_facts(folder), {}
    with new_store(out) as draft:
        for split in SPLITS:
            store = Store.open(folder, split, privately=True)
            names = user_names(store)
            with SplitWriter(draft / f"{split}.arrow", store.vocabulary.size) as writer:
                for row in kept if split == "train" else range(store.users):
                    writer.add(names[row].hex(), store[row], store.rows.unknown_letters(row))
            splits[split] = {"users": writer.users, "tokens": writer.tokens}
            save_tokenizer(store.vocabulary, draft)
        for name in ("files", "shards"):
            facts.pop(name, None)
        write_facts(draft, {**facts, "format": FORMAT, "splits": splits})  # one file, also of several shards
        if (folder / LEDGER).exists():
            shutil.copy2(folder / LEDGER, draft / LEDGER)
    return Store.open(out)
