"""What a machine has, and what is said of it."""

from __future__ import annotations

import shutil
from importlib import metadata

import pytest

from sottovoce.commands import doctor
from sottovoce.commands.doctor import examine, extras


def test_a_machine_is_looked_at(tmp_path):
    found = examine(tmp_path, lambda: 7.5)
    assert found.versions["sottovoce"] == metadata.version("sottovoce")
    assert found.devices >= 1
    assert found.memory_bytes > 2**28
    assert found.users_per_second == 7.5
    assert "federation" in found.extras
    assert not set(found.extras) & set(doctor.FOR_DEVELOPERS)


def test_little_memory_and_little_disk_are_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LITTLE_MEMORY", 2**60)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2**40, 2**40, 2**30))
    memory, disk = examine(tmp_path).problems
    assert "GiB of memory" in memory
    assert f"1.0 GiB free in {tmp_path}" in disk


def test_a_machine_without_jax_is_still_described(tmp_path, monkeypatch):
    def no_device():
        raise RuntimeError("Unable to initialize\nbackend")

    monkeypatch.setattr("jax.devices", no_device)
    found = examine(tmp_path, lambda: pytest.fail("nothing can be timed"))
    assert (found.device, found.devices, found.users_per_second) == (None, 0, None)
    assert "jax finds no device (Unable to initialize backend)" in found.problems[0]


def test_an_extra_names_what_it_lacks():
    found = extras(
        [
            "numpy>=2",
            "numpy>=2; extra == 'here'",
            "no-such-package<3,>=2; extra == 'gone'",
            "numpy; extra == 'gone'",
            'jax[cuda12]<0.13; extra == "cuda"',
            "no-such-package; extra == 'dev'",
        ]
    )
    assert set(found.pop("cuda")) <= {"jax-cuda12-plugin"}
    assert found == {"gone": ["no-such-package"], "here": []}
