from __future__ import annotations

from sottovoce.runs.secrets import Secrets
from sottovoce.runs.sums import Sums

NAME, TAG = "0123456789abcdef", "5" * 64


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
