"""Checkpoints: one safetensors file each; the last two are kept.

The seal of a checkpoint is with the secrets. It shows that this run made the checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import make_folder, write_aside
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import check_plain, parse_json

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]  # plain JSON values

    def contents(self, noise: dict[str, np.ndarray] | None) -> str:
        """What a seal covers: a hash of everything in it, and one of the state of the noise, if there is any."""
        facts = json.dumps({**self.facts, "round": self.round}, sort_keys=True)
        contents = hashlib.sha256(f"{facts} {digest(self.arrays)}".encode()).hexdigest()
        return f"{contents} {digest(noise)}" if noise else contents


def save_sealed(
    run: RunFolder, checkpoint: Checkpoint, secrets: Secrets, noise: dict[str, np.ndarray] | None = None
) -> Secrets:
    """Save a checkpoint with its seal, and erase the secrets of the rounds before it.

    The state of the noise is saved with the secrets; the seal covers it too. The secrets of the next round are written
    first: a checkpoint without them would be useless.

    Returns:
        The secrets of the round after the checkpoint.
    """
    ahead = secrets.at(checkpoint.round + 1)
    ahead.save(run.secrets, ahead.seal(checkpoint.round, checkpoint.contents(noise)), noise)
    save(run.checkpoints, checkpoint)
    Secrets.forget(run.secrets, KEPT)
    return ahead


def check_origin(run: RunFolder, ledger: Ledger, saved: Checkpoint) -> None:
    """Refuse a checkpoint that this run did not make: an edited one, another run's, or that of a copy that went on."""
    lineage = saved.facts.get("lineage")
    paid = saved.round == 0 or any(entry.lineage == lineage for entry in ledger.of_round(saved.round))
    seal = Secrets.read_seal(run.secrets, saved.round + 1)
    noise = Secrets.read_noise(run.secrets, saved.round + 1)
    made = Secrets.load(run.secrets, saved.round + 1).seal(saved.round, saved.contents(noise))
    if not paid or seal != made:
        raise DamagedRun(
            f"{run.checkpoints}/round-{saved.round:08d}.safetensors is not what this run released in round "
            f"{saved.round} by its ledger: it was edited, or is of another run or copy; put the run's own back, or "
            f"remove it to go on from the one before"
        )


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Atomic: after a crash there is the whole new file or none of it."""
    from safetensors.numpy import save as to_bytes

    make_folder(folder, 0o700)
    facts = {**checkpoint.facts, "round": checkpoint.round, "sha256": digest(checkpoint.arrays)}
    contents = to_bytes(checkpoint.arrays, metadata={"facts": json.dumps(facts)})
    write_aside(folder / f"round-{checkpoint.round:08d}.safetensors", contents)
    for old in _files(folder)[:-KEPT]:
        old.unlink()


def check_room(run: RunFolder) -> None:
    """Refuse a disk without room for the next checkpoints, as large as the last one with its state of the noise.

    One more is written before the oldest of those that are kept is erased. Where it cannot be told what is free,
    nothing is refused.

    Raises:
        OSError: as a full disk does.
    """
    files = _files(run.checkpoints)
    needed = max(KEPT + 1 - len(files), 1) * (files[-1].stat().st_size + Secrets.noise_bytes(run.secrets))
    try:
        disk = shutil.disk_usage(run.checkpoints)
    except OSError:
        return
    if disk.total > 0 and disk.free < needed:
        lack = f"{disk.free / 1e6:,.1f} MB are free, and checkpoints need {needed / 1e6:,.1f} MB more"
        raise OSError(errno.ENOSPC, lack, str(run.path))


def latest(folder: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole, and newer ones that are damaged."""
    damaged: list[Path] = []
    for path in reversed(_files(folder)):
        checkpoint = _read(path)
        if checkpoint is not None:
            return checkpoint, damaged
        damaged.append(path)
    return None, damaged


def last_round(folder: Path) -> int | None:
    """The round of the newest checkpoint by its name; None where there is none. Nothing is read."""
    files = _files(folder)
    return int(files[-1].stem.removeprefix("round-")) if files else None


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def _read(path: Path) -> Checkpoint | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(check_plain(path), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = parse_json((file.metadata() or {})["facts"])
        written, number = facts.pop("sha256"), facts.pop("round")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError):
        return None
    return Checkpoint(number, arrays, facts) if written == digest(arrays) else None


def digest(arrays: dict[str, np.ndarray]) -> str:
    """A hash of named arrays, their kinds and shapes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
