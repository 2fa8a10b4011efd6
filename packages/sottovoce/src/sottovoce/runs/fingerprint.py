"""A hash of all that the un-noised sum of a round depends on: with the same hash, the sum is the same to the bit."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import jax

from sottovoce_evidence import files


def fingerprint(recipe: str, store: str, layout: str) -> str:
    """From the hashes of recipe and store, the layout of users, code, versions, settings and machine."""
    settings = sorted(repr(item) for item in jax.config.values.items() if "cache" not in item[0])
    devices = [(device.platform, device.device_kind) for device in jax.devices()]
    drivers = jax.devices()[0].client.platform_version  # and toolkits outside of Python's packages
    facts = (recipe, store, layout, program(), settings, _environment(), devices, drivers, _processor())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def program() -> str:
    """From the code and the versions of libraries: the same on machines with the same installation."""
    return hashlib.sha256(repr((_versions(), _code())).encode()).hexdigest()[:16]


def of_all(fingerprints: Sequence[str]) -> str:
    """For a round whose users are divided over processes: it depends on the machine of each."""
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@cache  # what was imported does not change
def _code() -> str:
    digest, packages = hashlib.sha256(), [Path(__file__).parents[1], Path(files.__file__).parent]
    for source in sorted(path for package in packages for path in [*package.rglob("*.py"), *package.rglob("*.cu")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@cache  # reading all metadata takes a fifth of a second
def _versions() -> list[str]:
    """Versions of jax with its plugins, numpy, the generators and the optimiser."""
    names = ("jax", "numpy", "randomgen", "equinox", "optax", "nvidia")
    found = ((item.metadata["Name"] or "", item.version) for item in distributions())
    return sorted(f"{name} {version}" for name, version in found if name.lower().startswith(names))


# Prefixes of variables with compiler flags, numbers of threads, and modes of libraries.
_SWITCHES = ("XLA_", "NPROC", "OMP_", "DNNL_", "ONEDNN_", "CUBLAS", "CUDNN", "NVIDIA_")


def _environment() -> list[tuple[str, str]]:
    """What XLA and its libraries read from the environment: NPROC=1 alone changes the bits of sums."""
    return sorted(item for item in os.environ.items() if item[0].startswith(_SWITCHES))


def _processor() -> list[str]:
    """The cores of this process and their kind: both change the order of additions."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [os.cpu_count()]
    kinds = set()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        kinds = {line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))}
    return [platform.machine(), repr(cores), *sorted(kinds)]


def is_reproducible() -> bool:
    """A GPU adds gradients of embedding rows in any order, unless a flag forbids it."""
    return jax.default_backend() == "cpu" or "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
