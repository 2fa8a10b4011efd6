from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.runs.secrets import Salt, Secrets
from sottovoce_evidence.errors import DamagedRun

STATE = {"0000": np.arange(6.0).reshape(2, 3)}


def test_every_round_and_use_has_a_key_of_its_own():
    secrets = Secrets.seeded(1)
    rounds = range(1, 20)
    keys = [key for number in rounds for key in (*secrets.keys(number), secrets.noise_key(number))]
    assert len(set(keys)) == len(keys) == 19 * 3
    assert {len(key) for key in keys} == {32}


def test_a_stretch_that_is_done_again_has_the_same_keys_and_the_next_one_others():
    secrets = Secrets.fresh()
    assert secrets.keys(5) == secrets.keys(5)
    ahead = secrets.next()
    assert ahead.salt == secrets.salt
    assert ahead.keys(5) != secrets.keys(5)


def test_a_noise_key_is_given_once_and_follows_from_nothing_that_is_kept(tmp_path):
    secrets = Secrets.fresh()
    keys = {secrets.noise_key(1) for _ in range(5)}
    assert len(keys) == 5
    secrets.save(tmp_path)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(key in kept for key in keys)


def test_seeded_keys_follow_from_seed_and_round_alone():
    secrets = Secrets.seeded(1)
    assert secrets.next() == secrets
    assert secrets.noise_key(4) == Secrets.seeded(1).noise_key(4) != Secrets.seeded(2).noise_key(4)


def test_fresh_secrets_differ_and_owe_nothing_to_the_seed():
    assert Secrets.fresh().stretch != Secrets.fresh().stretch
    assert Secrets.seeded(1).stretch == Secrets.seeded(1).stretch != Secrets.seeded(2).stretch


def test_seeded_runs_that_differ_in_anything_share_no_noise():
    assert Secrets.seeded(1, "recipe A").stretch != Secrets.seeded(1, "recipe B").stretch
    assert Secrets.seeded(5).stretch != Secrets.seeded(2**33 + 5).stretch


def test_what_must_be_compared_later_is_blinded(tmp_path):
    one, other = Secrets.fresh(), Secrets.fresh()
    one.save(tmp_path)
    assert one.blind("the people of a store") == Salt.load(tmp_path).blind("the people of a store")
    assert one.blind("the people of a store") != other.blind("the people of a store")


def test_only_the_keys_of_the_last_checkpoint_are_kept(tmp_path):
    secrets = Secrets.fresh()
    first, second, third = (secrets.next().save(tmp_path, STATE) for _ in range(3))
    Secrets.forget(tmp_path, second)  # the commit of the third never came
    name = second["secrets"]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.key", f"{name}.noise", "salt"}
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
    for gone in (first, third):
        with pytest.raises(DamagedRun, match="start another run"):
            Secrets.of(tmp_path, gone, is_seeded=False)


def test_the_state_of_the_noise_is_the_one_that_its_checkpoint_names(tmp_path):
    secrets = Secrets.fresh()
    named = secrets.save(tmp_path, STATE)
    found = Secrets.of(tmp_path, named, is_seeded=False).read_noise(tmp_path, named)
    np.testing.assert_array_equal(found["0000"], STATE["0000"])
    assert secrets.save(tmp_path).keys() == {"secrets"}  # independent noise has none
    other = secrets.save(tmp_path, {"0000": np.zeros(3)})
    with pytest.raises(DamagedRun, match="is not the state of the noise that the checkpoint names"):
        secrets.read_noise(tmp_path, {**named, "secrets": other["secrets"]})


def test_a_damaged_key_is_refused(tmp_path):
    named = Secrets.fresh().save(tmp_path)
    (tmp_path / f"{named['secrets']}.key").write_bytes(b"short")
    with pytest.raises(DamagedRun, match="damaged"):
        Secrets.of(tmp_path, named, is_seeded=False)


def test_erased_secrets_are_those_of_a_released_run(tmp_path):
    folder = tmp_path / "run" / "secrets"
    folder.parent.mkdir()
    Secrets.fresh().save(folder)
    Secrets.erase(folder)
    with pytest.raises(DamagedRun, match=r"/run was released, and its secrets were erased; start another run"):
        Salt.load(folder)


def test_secrets_that_are_partly_erased_are_not_whole(tmp_path, monkeypatch):
    """Ctrl-C after the first file that is erased."""
    Secrets.fresh().save(tmp_path)
    assert Secrets.are_whole(tmp_path)
    unlink, gone = Path.unlink, []

    def once(path):
        if gone:
            raise KeyboardInterrupt
        gone.append(path)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt):
        Secrets.erase(tmp_path)
    assert list(tmp_path.iterdir())
    assert not Secrets.are_whole(tmp_path)


def test_a_key_is_not_printed():
    secrets = Secrets.fresh()
    for key in (secrets.stretch, secrets.salt):
        assert key.hex() not in repr(secrets)
        assert str(key) not in f"{secrets}"
