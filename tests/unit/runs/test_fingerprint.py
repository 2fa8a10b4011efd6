"""What the sum of a round is recognised by."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from sottovoce.runs import fingerprint as module
from sottovoce.runs.fingerprint import fingerprint
from sottovoce_evidence.recipe import Recipe


def change_cores(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0}, raising=False)


def change_versions(monkeypatch):
    monkeypatch.setattr(module, "_versions", lambda: ["optax 99"])


def change_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--another=flag")


def change_threads(monkeypatch):
    """XLA's pool has so many threads, and one of them adds up in another order than two."""
    monkeypatch.setenv("NPROC", "1")


def change_precision(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")


def change_driver(monkeypatch):
    real = jax.devices()[0]
    updated = SimpleNamespace(
        platform=real.platform, device_kind=real.device_kind, client=SimpleNamespace(platform_version="another driver")
    )
    monkeypatch.setattr(module.jax, "devices", lambda: [updated] * len(jax.local_devices()))


@pytest.mark.parametrize(
    "change", [change_cores, change_versions, change_flags, change_threads, change_precision, change_driver]
)
def test_whatever_may_change_a_sum_changes_the_fingerprint(store, monkeypatch, change):
    if change is change_cores and getattr(module.os, "sched_getaffinity", lambda _: None)(0) == {0}:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1})
    for name in ("NPROC", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)
    before = fingerprint(Recipe().sha256(), store.fingerprint, "4")
    assert before == fingerprint(Recipe().sha256(), store.fingerprint, "4")
    change(monkeypatch)
    assert fingerprint(Recipe().sha256(), store.fingerprint, "4") != before


def test_recipe_store_block_and_jax_settings_are_in_the_fingerprint(store, vocabulary):
    before = fingerprint(Recipe().sha256(), store.fingerprint, "4")
    assert fingerprint(Recipe().replace(run={"seed": 1}).sha256(), store.fingerprint, "4") != before
    assert fingerprint(Recipe().sha256(), store.fingerprint, "5") != before
    assert fingerprint(Recipe().sha256(), type(store).from_users([[5]], vocabulary, 48).fingerprint, "4") != before
    with jax.default_matmul_precision("float32"):
        inside = fingerprint(Recipe().sha256(), store.fingerprint, "4")
    assert inside != before
