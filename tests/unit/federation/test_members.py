"""The list of members: what it holds, how it is compared, and what a device refuses without it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from masked_fleets import membership
from sottovoce.federation import keys
from sottovoce.federation.members import BY_DEVICE, BY_SERVER, MEMBERS, KnownMember, Members
from sottovoce_evidence.errors import SottoError


@pytest.fixture
def members(tmp_path) -> Members:
    folders = [tmp_path / name for name in ("ann", "bob")]
    for folder in folders:
        folder.mkdir()
    ann, bob = map(keys.write_node_key, folders)
    return Members("f1", {"clinic": KnownMember(250, ann, BY_DEVICE), "bob": KnownMember(1, bob, BY_SERVER)})


def test_a_list_is_read_as_it_was_written(members, tmp_path):
    members.save(tmp_path)
    assert Members.load(tmp_path) == members
    facts = json.loads((tmp_path / MEMBERS).read_text())
    assert (facts["format"], facts["federation"], list(facts["members"])) == (1, "f1", ["bob", "clinic"])
    assert members.made_by_server == ["bob"]


def test_two_lists_have_the_same_fingerprint_only_if_all_of_it_is_the_same(members):
    clinic, bob = members.devices["clinic"], members.devices["bob"]
    others = [
        replace(members, federation="f2"),
        replace(members, devices={"clinic": clinic}),
        replace(members, devices={"clinik": clinic, "bob": bob}),
        replace(members, devices={"clinic": replace(clinic, users=251), "bob": bob}),
        replace(members, devices={"clinic": replace(clinic, public_key=bob.public_key), "bob": bob}),
        replace(members, devices={"clinic": replace(clinic, made_by="server"), "bob": bob}),
        members,
    ]
    assert len({other.fingerprint for other in others}) == len(others)
    assert replace(members, devices={"bob": bob, "clinic": clinic}).fingerprint == members.fingerprint
    assert members.to_json()["fingerprint"].startswith("SHA256:")


def test_a_list_that_is_missing_damaged_or_of_another_version_is_refused(members, tmp_path):
    with pytest.raises(SottoError, match=r"has no members.json; copy members.json"):
        Members.load(tmp_path)
    members.save(tmp_path)
    good = json.loads((tmp_path / MEMBERS).read_text())
    bob = good["members"]["bob"]
    wrong = [
        {**good, "members": {**good["members"], "eve": bob}},  # two with one key: one of them signs for both
        {**good, "members": {"bob": {**bob, "users": 0}}},
        {**good, "members": {"bob": {"users": 1, "public_key": bob["public_key"]}}},
        {**good, "members": {"bob": {**bob, "users": True}}},
        {**good, "members": {"bob": {**bob, "public_key": "ssh-ed25519 AAAA"}}},
        {**good, "members": {"bob": {**bob, "made_by": "nobody"}}},
        {**good, "members": [bob]},
        {**good, "federation": 3},
    ]
    for facts in wrong:
        (tmp_path / MEMBERS).write_text(json.dumps(facts))
        with pytest.raises(SottoError, match="damaged"):
            Members.load(tmp_path)
    (tmp_path / MEMBERS).write_text(json.dumps({**good, "format": 2}))
    with pytest.raises(SottoError, match="another version"):
        Members.load(tmp_path)


def test_a_signature_is_that_of_a_known_member():
    one = membership(0, 2)
    signature = one.sign(b"claim")
    assert one.has_signed("d00", signature, b"claim")
    assert not one.has_signed("d01", signature, b"claim")
    assert not one.has_signed("d00", signature, b"another claim")
    assert not one.has_signed("d09", signature, b"claim")
