"""`sotto doctor`: what this machine has for training, and what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sottovoce.cores import cores
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts

PACKAGES = ("sottovoce", "jax", "jaxlib", "equinox", "optax", "numpy", "pyarrow", "dp-accounting")
FOR_DEVELOPERS = ("dev", "docs", "browser")
LITTLE_MEMORY, LITTLE_DISK = 4 * 2**30, 5 * 2**30
_OF_EXTRA = re.compile(r"^([\w.-]+)(?:\[cuda12\])?.*extra == ['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Checkup(Facts):
    """What a machine has. Without a device, nothing can be trained."""

    versions: dict[str, str]  # empty: not installed
    system: str
    device: str | None
    devices: int
    cores: int
    memory_bytes: int
    free_disk_bytes: int
    folder: str
    extras: dict[str, list[str]]  # packages that only some commands need: what of them is not installed
    users_per_second: float | None
    problems: list[str]


def examine(folder: Path, rate: Callable[[], float] | None = None) -> Checkup:
    """Look at this machine.

    Args:
        folder: whose disk runs would fill.
        rate: measures users a second; without it, none is measured.
    """
    if not folder.is_dir():
        raise SottoError(f"{str(folder)!r} is no folder; name the one that runs will be written to")
    problems, device, devices = [], None, 0
    try:
        import jax

        device, devices = jax.devices()[0].device_kind, jax.device_count()
        if jax.default_backend() == "cpu" and Path("/dev/nvidia0").exists():
            problems.append("there is an NVIDIA GPU, and jax does not use it: pip install 'sottovoce[cuda]'")
    except (ImportError, RuntimeError) as error:
        problems.append(f"jax finds no device ({' '.join(str(error).split())[:200]}); install sottovoce again")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = shutil.disk_usage(folder).free
    for found, needed, what in ((memory, LITTLE_MEMORY, "of memory"), (disk, LITTLE_DISK, f"free in {folder}")):
        if found < needed:
            problems.append(f"there are {found / 2**30:.1f} GiB {what}; training may need more")
    return Checkup(
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        device=device,
        devices=devices,
        cores=cores(),
        memory_bytes=memory,
        free_disk_bytes=disk,
        folder=str(folder.resolve()),
        extras=extras(metadata.requires("sottovoce") or ()),
        users_per_second=rate() if rate is not None and device is not None else None,
        problems=problems,
    )


def extras(requirements: Iterable[str]) -> dict[str, list[str]]:
    """The extras that these requirements name, those for developers left out, and what each lacks here."""
    lacks: dict[str, list[str]] = {}
    for package, extra in (found.groups() for found in map(_OF_EXTRA.search, requirements) if found):
        missing = lacks.setdefault(extra, [])
        needed = "jax-cuda12-plugin" if package == "jax" else package  # jax itself is always there
        if not _version(needed):
            missing.append(needed)
    return {extra: missing for extra, missing in sorted(lacks.items()) if extra not in FOR_DEVELOPERS}


def _version(package: str) -> str:
    """Of an installed package; empty where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
