"""Pseudonyms of silos: one home for each person, the same at every silo, and files that do not fit are refused."""

from __future__ import annotations

import hmac
from itertools import combinations

import pytest

from sottovoce.federation.pseudonyms import Matching, PseudonymKey, Pseudonyms
from sottovoce_evidence.errors import SottoError

KEY = PseudonymKey(bytes(range(32)))


def people(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def silo(name: str, *numbers: int, key: PseudonymKey = KEY, split_key: str = "sottovoce") -> Pseudonyms:
    return Pseudonyms.of(name, people(*numbers), key, split_key)


def test_every_person_has_one_home_which_all_silos_agree_on():
    silos = [silo("north", *range(300)), silo("south", *range(200, 500)), silo("west", *range(250, 700, 2))]
    homes = {
        own.silo: {user for user in own.users if Matching(own, [o for o in silos if o is not own]).is_home(user)}
        for own in silos
    }
    assert not any(homes[one] & homes[other] for one, other in combinations(homes, 2)), "a person has two homes"
    assert set().union(*homes.values()) == set().union(*(each.users for each in silos)), "a person has no home"
    for own in silos:
        assert homes[own.silo] <= own.users
    shared = silos[0].users & silos[1].users - silos[2].users
    assert 20 < len(homes["north"] & shared) < 55  # of 75, about half
    assert Matching(silos[0], silos[1:]).elsewhere == 100


def test_the_order_of_files_does_not_matter_and_a_missing_one_shows():
    north, south, west = silo("north", 1, 2), silo("south", 2, 3), silo("west", 3, 4)
    found = {Matching(own, others).fingerprint for own, others in (
        (north, [south, west]), (north, [west, south]), (west, [north, south]),
    )}  # fmt: skip
    assert len(found) == 1
    assert Matching(north, [south]).fingerprint not in found


def test_a_pseudonym_is_keyed_and_known_by_its_vector():
    name = people(7)[0]
    assert KEY.pseudonym(name) == hmac.new(bytes(range(32)), b"user " + name, "sha256").hexdigest()[:32]
    assert PseudonymKey(bytes(32)).pseudonym(name) != KEY.pseudonym(name)
    assert name.hex() not in silo("north", 7).to_bytes().decode()


def test_files_go_to_disk_and_back(tmp_path):
    found = silo("north", 3, 1, 2)
    (tmp_path / "north").write_bytes(found.to_bytes())
    assert Pseudonyms.read(tmp_path / "north") == found
    made = PseudonymKey.make(tmp_path / "keys" / "key")
    assert PseudonymKey.read(tmp_path / "keys" / "key") == made
    assert (tmp_path / "keys" / "key").stat().st_mode & 0o077 == 0
    with pytest.raises(SottoError, match="exists; all silos use one key"):
        PseudonymKey.make(tmp_path / "keys" / "key")


def test_other_keys_split_keys_and_names_that_are_taken_are_refused():
    own = silo("north", 1)
    for other in (silo("south", 1, key=PseudonymKey(bytes(32))), silo("south", 1, split_key="another")):
        with pytest.raises(SottoError, match="another key, or from a store with another --split-key"):
            Matching(own, [other])
    with pytest.raises(SottoError, match="two files are those of a silo 'north'"):
        Matching(own, [silo("north", 2)])
    with pytest.raises(SottoError, match="small letters"):
        silo("North Pole")


def test_a_file_that_is_no_whole_file_of_pseudonyms_is_refused(tmp_path):
    whole, path = silo("north", 1, 2, 3).to_bytes(), tmp_path / "north"
    lines = whole.splitlines(keepends=True)
    for broken in (b"", whole[:-5], b"".join(lines[:-1]), lines[0] + b"".join(reversed(lines[1:])), b"\xff" + whole):
        path.write_bytes(broken)
        with pytest.raises(SottoError, match=r"no whole file of pseudonyms|cannot read"):
            Pseudonyms.read(path)
    with pytest.raises(SottoError, match="there is no file of pseudonyms"):
        Pseudonyms.read(tmp_path / "nowhere")
    for text in ("", "abc", "zz" * 32):
        path.write_text(text)
        with pytest.raises(SottoError, match="not a key of pseudonyms"):
            PseudonymKey.read(path)
    with pytest.raises(SottoError, match="there is no key"):
        PseudonymKey.read(tmp_path / "nowhere")
