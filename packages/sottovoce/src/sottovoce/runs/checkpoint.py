"""Checkpoints: one safetensors file each, of which the newest is kept.

A checkpoint is committed in four steps. It lies under the name of a draft, synced. Ledgers get their lines, of which
the last names the SHA-256 of the file. The file gets its name. Only then is anything of its rounds shown.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import make_folder, rename_synced, sync_folder, write_aside
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.hash_chain import damaged
from sottovoce.runs.ledger import NEW_RUN, Commit
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import check_plain, parse_json


@dataclass(frozen=True)
class Checkpoint:
    round: int
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]  # plain JSON values


def save_draft(folder: Path, checkpoint: Checkpoint) -> Commit:
    """Write a checkpoint under the name of a draft. It is on disk before this returns."""
    from safetensors.numpy import save as to_bytes

    make_folder(folder, 0o700)
    facts = {**checkpoint.facts, "round": checkpoint.round}
    contents = to_bytes(checkpoint.arrays, metadata={"facts": json.dumps(facts)})
    commit = Commit(checkpoint.round, hashlib.sha256(contents).hexdigest())
    write_aside(_draft(folder, commit), contents, private=True)
    return commit


def drop_draft(folder: Path, commit: Commit) -> None:
    """Remove a draft that was not committed: a second result of its rounds would stay in copies and backups."""
    _draft(folder, commit).unlink(missing_ok=True)
    sync_folder(folder)


def draft_of_start(folder: Path) -> Commit:
    """The first checkpoint of a run, which lies there as it was made with the folder."""
    file = min(folder.glob(f"{_file(folder, 0).stem}.*"), default=None)
    if file is None:
        raise damaged(f"the ledger of the store of {folder.parent} has no charge for this run, which has done rounds")
    return Commit(0, _hash_of(file))


def give_name(folder: Path, commit: Commit) -> None:
    """Give a committed checkpoint its name, and remove all others: on disk, before anything of it is shown."""
    path, draft = _file(folder, commit.round), _draft(folder, commit)
    if draft.exists() or not path.exists():  # where both are gone, nothing is shown: the rename fails
        rename_synced(draft, path)
    for other in folder.glob("round-*"):
        if other != path:
            other.unlink()
    sync_folder(folder)


def open_committed(run: RunFolder, commits: Sequence[Commit]) -> Checkpoint:
    """The checkpoint that a run committed last. A draft of it gets its name: a crash came between.

    Raises:
        DamagedRun: what lies there fell behind, or is not what was committed; or nothing was.
    """
    if not commits:
        raise damaged(f"the ledger of the store of {run.path} has no commit of this run")
    commit = commits[-1]
    path = _file(run.checkpoints, commit.round)
    for file in (_draft(run.checkpoints, commit), path):
        if file.is_file() and _hash_of(file) == commit.checkpoint:
            give_name(run.checkpoints, commit)
            return _read(path)
    hashes = {_hash_of(file) for file in _files(run.checkpoints)}
    if any(earlier.checkpoint in hashes for earlier in commits[:-1]):
        for draft in run.checkpoints.glob("*.draft"):
            draft.unlink()
        raise DamagedRun(
            f"{run.path} fell behind: it is a copy, and the run went on elsewhere to round {commit.round}", NEW_RUN
        )
    raise DamagedRun(
        f"{run.checkpoints} does not have the checkpoint of round {commit.round} that the run committed: it was edited "
        f"or lost, or the store's ledger is older than the run",
        f"put it back from a copy, or {NEW_RUN}",
    )


def check_room(run: RunFolder) -> None:
    """Refuse a disk without room for the next checkpoint, as large as the last one with its state of the noise.

    Where it cannot be told what is free, nothing is refused.

    Raises:
        OSError: as a full disk does.
    """
    last = max(file.stat().st_size for file in run.checkpoints.glob("round-*"))
    needed = last + Secrets.noise_bytes(run.secrets)
    try:
        disk = shutil.disk_usage(run.checkpoints)
    except OSError:
        return
    if disk.total > 0 and disk.free < needed:
        lack = f"{disk.free / 1e6:,.1f} MB are free, and checkpoints need {needed / 1e6:,.1f} MB more"
        raise OSError(errno.ENOSPC, lack, str(run.path))


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that has its name."""
    files = _files(folder)
    return _read(files[-1]) if files else None


def last_round(folder: Path) -> int | None:
    """The round of the newest checkpoint by its name; None where there is none. Nothing is read."""
    files = _files(folder)
    return int(files[-1].stem.removeprefix("round-")) if files else None


def _file(folder: Path, round_number: int) -> Path:
    return folder / f"round-{round_number:08d}.safetensors"


def _draft(folder: Path, commit: Commit) -> Path:
    """By its hash: a draft of another process is another file."""
    return folder / f"{_file(folder, commit.round).stem}.{commit.checkpoint[:16]}.draft"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(check_plain(path), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = parse_json((file.metadata() or {})["facts"])
        return Checkpoint(facts.pop("round"), arrays, facts)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedRun(f"{path} cannot be read ({error})", "put it back from a copy") from None


def digest(arrays: dict[str, np.ndarray]) -> str:
    """A hash of named arrays, their kinds and shapes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
