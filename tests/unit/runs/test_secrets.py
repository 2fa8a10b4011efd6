from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.runs.secrets import Secrets, Sums
from sottovoce_evidence.errors import DamagedRun

NAME, TAG = "0123456789abcdef", "5" * 64


def test_every_round_attempt_and_use_has_a_key_of_its_own():
    secrets = Secrets.seeded(1)
    keys = [key for number in range(1, 20) for release in "abc" for key in secrets.keys(number, release)]
    assert len(set(keys)) == len(keys) == 19 * 3 * 2


def test_a_ratcheted_chain_gives_the_same_keys_and_no_earlier_ones():
    secrets = Secrets.seeded(1)
    later = secrets.at(8)
    assert later.keys(9, "a") == secrets.keys(9, "a")
    assert later.link != secrets.link
    with pytest.raises(DamagedRun, match="round 7 are gone"):
        later.keys(7, "a")


def test_fresh_secrets_differ_and_owe_nothing_to_the_seed():
    assert Secrets.fresh().link != Secrets.fresh().link
    assert Secrets.seeded(1).link == Secrets.seeded(1).link != Secrets.seeded(2).link


def test_seeded_runs_that_differ_in_anything_share_no_noise():
    assert Secrets.seeded(1, "recipe A").link != Secrets.seeded(1, "recipe B").link


def test_what_must_be_compared_later_is_blinded():
    one, other = Secrets.fresh(), Secrets.fresh()
    assert one.blind("the people of a store") == one.at(9).blind("the people of a store")
    assert one.blind("the people of a store") != other.blind("the people of a store")


def test_seeds_above_32_bits_are_different_seeds():
    assert Secrets.seeded(5).link != Secrets.seeded(2**33 + 5).link


def test_only_the_last_links_are_kept(tmp_path):
    secrets = Secrets.seeded(1)
    for number in (1, 4, 7):
        secrets.at(number).save(tmp_path, b"")
    Secrets.forget(tmp_path, 2)
    assert Secrets.load_any(tmp_path).salt == secrets.salt
    assert Secrets.load(tmp_path, 7).keys(9, "a") == secrets.keys(9, "a")
    assert Secrets.load(tmp_path, 4).round == 4
    with pytest.raises(DamagedRun, match="start another run"):
        Secrets.load(tmp_path, 1)


def test_a_damaged_link_is_refused(tmp_path):
    Secrets.seeded(1).save(tmp_path, b"")
    (tmp_path / "round-00000001.key").write_bytes(b"short")
    with pytest.raises(DamagedRun, match="damaged"):
        Secrets.load(tmp_path, 1)


def test_erased_secrets_are_those_of_a_released_run(tmp_path):
    folder = tmp_path / "run" / "secrets"
    folder.parent.mkdir()
    Secrets.seeded(1).save(folder, b"")
    Secrets.erase(folder)
    with pytest.raises(DamagedRun, match=r"/run was released, and its secrets were erased; start another run"):
        Secrets.load_any(folder)


def test_secrets_that_are_partly_erased_are_not_whole(tmp_path, monkeypatch):
    """Ctrl-C after the first file that is erased."""
    Secrets.seeded(1).save(tmp_path, b"seal")
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


def test_a_link_is_not_printed():
    secrets = Secrets.fresh()
    assert secrets.link.hex() not in repr(secrets)
    assert str(secrets.link) not in f"{secrets}"


def test_a_tag_is_on_disk_for_its_owner_alone(tmp_path):
    Sums(tmp_path).keep(5, NAME, TAG)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert Sums(tmp_path).tag_of(NAME) == TAG
    assert Sums(tmp_path).tag_of("f" * 16) is None


def test_a_torn_tag_is_none_and_spoils_no_other(tmp_path):
    Sums(tmp_path).keep(5, NAME, TAG)
    with open(tmp_path / "round-00000005.sums", "a") as file:
        file.write("\n" + "a" * 16 + " 123")
    sums = Sums(tmp_path)
    assert sums.tag_of("a" * 16) is None
    sums.keep(5, "b" * 16, TAG)
    again = Sums(tmp_path)
    assert (again.tag_of(NAME), again.tag_of("b" * 16)) == (TAG, TAG)


def test_tags_go_with_the_links_they_lie_beside(tmp_path):
    secrets = Secrets.seeded(1)
    for number in (1, 4, 7):
        secrets.at(number).save(tmp_path, b"seal")
        Sums(tmp_path).keep(number, f"{number:016x}", TAG)
    Secrets.forget(tmp_path, 2)
    kept = Sums(tmp_path)
    assert [kept.tag_of(f"{number:016x}") for number in (1, 4, 7)] == [None, TAG, TAG]
    assert not (tmp_path / "round-00000001.seal").exists()
    Secrets.erase(tmp_path)
    assert not tmp_path.exists()


def test_a_noise_key_is_of_one_round_one_release_and_one_sum():
    secrets = Secrets.seeded(1)
    asked = [(number, name, digest) for number in (1, 2) for name in "ab" for digest in (bytes(32), b"\1" * 32)]
    keys = {secrets.noise_key(*each) for each in asked}
    assert len(keys) == len(asked)
    assert {len(key) for key in keys} == {32}
    assert secrets.at(2).noise_key(2, "a", b"s") == secrets.noise_key(2, "a", b"s")
    assert Secrets.seeded(2).noise_key(1, "a", b"s") != secrets.noise_key(1, "a", b"s")
