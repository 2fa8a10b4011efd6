"""Checkpoints: one safetensors file each, written aside and renamed, the last two kept."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]  # plain JSON values


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Atomic: after a crash there is the whole new file or none of it."""
    from safetensors.numpy import save as to_bytes

    folder.mkdir(exist_ok=True)
    facts = {**checkpoint.facts, "round": checkpoint.round, "sha256": _digest(checkpoint.arrays)}
    contents = to_bytes(checkpoint.arrays, metadata={"facts": json.dumps(facts)})
    path = folder / f"round-{checkpoint.round:08d}.safetensors"
    write_aside(path, contents)
    for old in _files(folder)[:-KEPT]:
        old.unlink()


def latest(folder: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole, and the newer ones that are not."""
    damaged: list[Path] = []
    for path in reversed(_files(folder)):
        checkpoint = _read(path)
        if checkpoint is not None:
            return checkpoint, damaged
        damaged.append(path)
    return None, damaged


def write_aside(path: Path, contents: bytes) -> None:
    """Write a file under another name, flush it to disk, then give it its name."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def _read(path: Path) -> Checkpoint | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {})["facts"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None
    if facts.pop("sha256") != _digest(arrays):
        return None
    return Checkpoint(facts.pop("round"), arrays, facts)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
