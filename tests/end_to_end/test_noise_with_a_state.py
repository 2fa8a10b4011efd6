"""Noise that remembers earlier rounds: what it remembers is a secret, kept and erased with the others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.runs.checkpoint import latest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import DamagedRun


@pytest.fixture
def remembering(monkeypatch):
    """A mechanism that adds a part of the noised estimates of all rounds before."""
    init, add = Mechanism.init_noise, Mechanism.add_noise

    def add_noise(self, estimate, noise, number, clip_norms, key):
        noised, nothing = add(self, estimate, init(self, estimate.update), number, clip_norms, key)
        assert nothing == ()
        update = jax.tree.map(lambda leaf: leaf + 0.5 * noise[0], noised.update)
        return noised._replace(update=update), (noise[0] + jnp.ravel(jax.tree.leaves(noised.update)[0])[0],)

    monkeypatch.setattr(Mechanism, "init_noise", lambda self, update: (jnp.zeros(()),))
    monkeypatch.setattr(Mechanism, "add_noise", add_noise)


@pytest.fixture
def recipe(tmp_path):
    return make_recipe(make_store(tmp_path))


def test_a_run_that_was_stopped_goes_on_with_what_its_noise_remembers(recipe, tmp_path, remembering):
    sottovoce.train(recipe, tmp_path / "whole")
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3))
    assert sottovoce.resume(tmp_path / "run").statement.charged_again == 0
    whole, again = (RunFolder(tmp_path / name).load_weights() for name in ("whole", "run"))
    assert all(np.array_equal(whole[name], again[name]) for name in whole)


def test_what_the_noise_remembers_lies_with_the_secrets_alone_and_goes_with_them(recipe, tmp_path, remembering):
    sottovoce.train(recipe, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    kept = sorted(run.secrets.glob("*.noise"))
    assert [path.stem for path in kept] == ["round-00000005", "round-00000007"]  # those of the two checkpoints
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    remembered = Secrets.read_noise(run.secrets, 7)["0000"]
    saved, _ = latest(run.checkpoints)
    assert saved is not None
    assert all(array.tobytes() != remembered.tobytes() for array in saved.arrays.values())
    Secrets.erase(run.secrets)
    assert not list((tmp_path / "run").rglob("*.noise"))


@pytest.mark.parametrize("damage", ["edited", "lost"])
def test_another_memory_of_the_noise_is_refused(recipe, tmp_path, remembering, damage):
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3))
    run = RunFolder(tmp_path / "run")
    path = run.secrets / "round-00000004.noise"
    if damage == "lost":
        path.unlink()
    else:
        contents = path.read_bytes()
        path.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    with pytest.raises(DamagedRun, match="is not what this run released"):
        sottovoce.resume(tmp_path / "run")


def test_independent_noise_remembers_nothing_and_leaves_no_file(recipe, tmp_path):
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(2))
    assert not list((tmp_path / "run").rglob("*.noise"))
