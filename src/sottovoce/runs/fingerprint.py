"""What the un-noised sum of a round depends on, in one name: two rounds of one name have the same sum to the bit."""

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


def fingerprint(recipe: str, store: str, layout: str) -> str:
    """From the hashes of recipe and store, how users are laid out, code, versions, settings and machine."""
    digest = hashlib.sha256()
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    facts = (
        recipe, store, layout, program(), sorted(map(repr, settings.items())),
        _environment(), [(device.platform, device.device_kind) for device in jax.devices()],
        # Drivers and toolkits that lie outside of Python's packages.
        jax.devices()[0].client.platform_version, _processor(),
    )  # fmt: skip
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


def program() -> str:
    """From the code and the versions of all that computes: the same on machines that were set up alike."""
    return hashlib.sha256(repr((_versions(), _code())).encode()).hexdigest()[:16]


def of_all(fingerprints: Sequence[str]) -> str:
    """Of a round whose users are shared out over processes: it depends on the machine of each."""
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@cache  # what was imported does not change
def _code() -> str:
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for source in sorted([*package.rglob("*.py"), *package.rglob("*.cu")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@cache  # reading all metadata takes a fifth of a second
def _versions() -> list[str]:
    """Of all that computes: jax with its plugins, numpy, the generators, the optimiser."""
    names = ("jax", "numpy", "randomgen", "equinox", "optax", "nvidia")
    found = ((item.metadata["Name"] or "", item.version) for item in distributions())
    return sorted(f"{name} {version}" for name, version in found if name.lower().startswith(names))


# Flags of the compiler, numbers of threads, and modes of libraries: by what their names begin with.
_SWITCHES = ("XLA_", "NPROC", "OMP_", "DNNL_", "ONEDNN_", "CUBLAS", "CUDNN", "NVIDIA_")


def _environment() -> list[tuple[str, str]]:
    """What XLA and the libraries under it read from the environment: with NPROC=1 alone, sums differ in their bits."""
    return sorted(item for item in os.environ.items() if item[0].startswith(_SWITCHES))


def _processor() -> list[str]:
    """Which cores this process may use, and of what kind: both change the order in which sums are made."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [os.cpu_count()]
    kinds = set()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        kinds = {line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))}
    return [platform.machine(), repr(cores), *sorted(kinds)]


def is_reproducible() -> bool:
    """A GPU adds up gradients of embedding rows in an order of its own, unless told not to."""
    return jax.default_backend() == "cpu" or "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
