"""`sotto doctor`: what this machine has for training, and what is missing."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sottovoce.cores import cores
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts

PACKAGES = ("sottovoce", "jax", "jaxlib", "equinox", "optax", "numpy", "pyarrow", "dp-accounting")
FOR_DEVELOPERS = ("dev", "docs", "browser")
LITTLE_MEMORY, LITTLE_DISK = 4 * 2**30, 5 * 2**30
_NAME = re.compile(r"[\w.-]+")
_OF_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Extra(Facts):
    """Packages that only some commands need."""

    name: str
    missing: list[str]

    @property
    def command(self) -> str:
        """How to install it."""
        return f"pip install 'sottovoce[{self.name}]'"


@dataclass(frozen=True)
class Checkup(Facts):
    """What a machine has. What cannot be found out is None."""

    versions: dict[str, str]
    system: str
    device: str | None
    devices: int
    cores: int
    memory_bytes: int | None
    free_memory_bytes: int | None
    free_disk_bytes: int
    folder: str
    extras: list[Extra]
    users_per_second: float | None
    problems: list[str]
    keyboard_page: str | None = None  # how to get what its page runs models by; None where it is there


def examine(folder: Path, rate: Callable[[], float] | None = None) -> Checkup:
    """Look at this machine.

    Args:
        folder: whose disk runs would fill.
        rate: measures users a second; without it, none is measured.
    """
    if not folder.is_dir():
        raise SottoError(f"{str(folder)!r} is no folder; name the one that runs will be written to")
    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    problems = []
    device, devices = None, 0
    try:
        import jax

        device, devices = jax.devices()[0].device_kind, jax.device_count()
        if jax.default_backend() == "cpu" and Path("/dev/nvidia0").exists():
            problems.append(f"there is an NVIDIA GPU, and jax does not use it: {Extra('cuda', []).command}")
    except (ImportError, RuntimeError) as error:
        problems.append(f"jax finds no device ({' '.join(str(error).split())[:200]}); install sottovoce again")
    memory, free = _memory("MemTotal"), _memory("MemAvailable")
    if free is not None and free < LITTLE_MEMORY:
        problems.append(f"{free / 2**30:.1f} GiB of memory are free; training may need more")
    disk = shutil.disk_usage(folder).free
    if disk < LITTLE_DISK:
        problems.append(f"{disk / 2**30:.1f} GiB are free on the disk of {folder}; a store and its runs may need more")
    return Checkup(
        versions=versions,
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        device=device,
        devices=devices,
        cores=cores(),
        memory_bytes=memory,
        free_memory_bytes=free,
        free_disk_bytes=disk,
        folder=str(folder.resolve()),
        extras=extras(metadata.requires("sottovoce") or []),
        users_per_second=rate() if rate is not None and device is not None else None,
        problems=problems,
    )


def extras(requirements: list[str]) -> list[Extra]:
    """The extras that these requirements name, those for developers left out, and what each lacks here."""
    needed: dict[str, list[str]] = {}
    for requirement in requirements:
        extra, package = _OF_EXTRA.search(requirement), _NAME.match(requirement)
        if package and extra and extra[1] not in FOR_DEVELOPERS:
            # jax itself is always there.
            name = "jax-cuda12-plugin" if requirement.startswith("jax[cuda12]") else package[0]
            needed.setdefault(extra[1], []).append(name)
    return [Extra(name, [each for each in packages if not _version(each)]) for name, packages in sorted(needed.items())]


def _version(package: str) -> str:
    """Of an installed package; empty where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _memory(name: str) -> int | None:
    """Bytes, by the name that Linux has for them."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
