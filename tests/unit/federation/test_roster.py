"""The folder of a federation, and what is carried to its devices."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr")

from tiny_run import declare, make_store

from sottovoce.commands import federate
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation import keys
from sottovoce.federation.members import MEMBERS, Members
from sottovoce.federation.roster import FederationSettings, Roster
from sottovoce.files import locked
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words(["red", "green"])


def create(folder, *devices, **more) -> Roster:
    settings = FederationSettings(
        **{"vocabulary": WORDS, "tokens_per_user": 16, "host": "127.0.0.1", "port": 1234, **more}
    )
    return federate.create_federation(folder, devices, settings)


def test_a_federation_has_a_roster_keys_and_a_folder_for_each_device(tmp_path):
    roster = create(tmp_path / "f", ("phone", 1), ("clinic", 20))
    assert [(member.name, member.first, member.users) for member in roster.members] == [
        ("phone", 0, 1),
        ("clinic", 1, 20),
    ]
    assert roster.as_store().users == 21
    facts = json.loads((roster.bundle("clinic") / "device.json").read_text())
    assert (facts["first"], facts["users"], facts["server"]) == (1, 20, "127.0.0.1:1234")
    for secret in (roster.keys / keys.SERVER_KEY, roster.bundle("phone") / keys.NODE_KEY):
        assert secret.stat().st_mode & 0o077 == 0
    # The key that could vouch for another server is nowhere.
    assert sorted(path.name for path in roster.keys.iterdir()) == [keys.AUTHORITY, keys.SERVER_KEY, keys.SERVER]
    # The secret of the coins is drawn on the device: it is not among what the server made.
    assert not list((tmp_path / "f").rglob("coin.secret"))
    assert len({member.public_key for member in roster.members}) == 2


@pytest.mark.parametrize("held_out", ["exact", "private"])
def test_the_server_measures_exactly_whom_their_store_declares_so(tmp_path, held_out):
    store = declare(make_store(tmp_path), held_out)
    roster = create(tmp_path / "f", ("phone", 1), vocabulary=Store.open(store).vocabulary, held_out=store)
    assert roster.as_store().held_out == held_out
    assert (roster.held_out_users() is not None) == (held_out == "exact")


def test_devices_are_told_where_the_server_is(tmp_path):
    for number, (host, said) in enumerate(
        (("train.example.org", "train.example.org:1234"), ("fd00::2", "[fd00::2]:1234"))
    ):
        roster = create(tmp_path / str(number), ("phone", 1), host=host)
        assert json.loads((roster.bundle("phone") / "device.json").read_text())["server"] == said


def test_later_devices_come_after_the_others_and_nobody_moves(tmp_path):
    before = create(tmp_path / "f", ("phone", 1), ("clinic", 20))
    federate.enrol(tmp_path / "f", "school", 7)
    after = Roster.open(tmp_path / "f")
    assert after.members[:2] == before.members
    assert (after.members[2].first, after.users) == (21, 28)
    # It is the same store to the ledger of its people.
    assert after.as_store().fingerprint == before.as_store().fingerprint
    # Two at a time would get one place.
    with locked(tmp_path / "f" / ".lock", "busy"), pytest.raises(SottoError, match="changed by another process"):
        federate.enrol(tmp_path / "f", "clinic2", 7)
    assert Roster.open(tmp_path / "f") == after


@pytest.mark.parametrize(
    ("name", "users", "what"),
    [
        ("phone", 1, "already"),
        ("Über", 1, "small"),
        ("x/y", 1, "small"),
        ("z", 0, "1 or"),
        ("z", 10**12, "at most"),
    ],
)
def test_bad_devices_are_refused(tmp_path, name, users, what):
    create(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match=what):
        federate.enrol(tmp_path / "f", name, users)
    assert [member.name for member in Roster.open(tmp_path / "f").members] == ["phone"]


def test_a_roster_that_is_damaged_is_refused(tmp_path):
    """Also where two devices have one place, or one has two: coins and charges belong to places."""
    path = create(tmp_path / "f", ("phone", 1), ("silo", 20)).path / "roster.json"
    whole = json.loads(path.read_text())
    phone, silo = whole["members"]
    flaws = [{"host": 5}, {"host": "a b"}, {"port": "x"}, {"port": 0}, {"tokens_per_user": 1.5}, {"federation": 3}]
    flaws += [{"held_out": 5}, {"members": [silo, phone]}, {"members": [phone, phone]}, {"members": [phone, {}]}]
    for change in ({"users": "x"}, {"users": 0}, {"users": True}, {"first": 2}, {"name": 7}, {"name": "../x"}):
        flaws.append({"members": [phone, silo | change]})
    flaws += [{"members": [phone | {"public_key": key}]} for key in ("x", 5)]
    flaws += [{"members": [phone, silo | {"users": 10**15}]}, {"members": 5}]
    for flaw in flaws:
        path.write_text(json.dumps(whole | flaw))
        with pytest.raises(SottoError, match="damaged"):
            Roster.open(path.parent)
    path.write_text(json.dumps(whole))
    assert Roster.open(path.parent).users == 21


def test_a_device_that_made_its_key_gets_a_folder_without_one(tmp_path):
    create(tmp_path / "f", ("phone", 1))
    public = federate.make_device_key(tmp_path / "own")
    bundle = federate.enrol(tmp_path / "f", "clinic", 20, public_key=public)
    assert not (bundle / keys.NODE_KEY).exists()
    roster = Roster.open(tmp_path / "f")
    assert [(member.name, member.made_by) for member in roster.members] == [("phone", "server"), ("clinic", "device")]
    assert roster.public_keys["clinic"] == keys.public_half(tmp_path / "own" / keys.NODE_KEY)
    # All have the same list, also those that were there before.
    lists = [Members.load(folder) for folder in (roster.path, bundle, roster.bundle("phone"))]
    assert lists == [roster.listed] * 3
    assert lists[0] == federate.federation_members(roster.path) == federate.federation_members(bundle)
    with pytest.raises(SottoError, match="'clinic' is registered with this key"):
        federate.enrol(tmp_path / "f", "school", 20, public_key=public)
    assert not roster.bundle("school").exists()


def test_a_device_gets_another_key_and_its_users_keep_their_places(tmp_path):
    before = create(tmp_path / "f", ("phone", 1), ("clinic", 20), ("school", 7))
    public = federate.make_device_key(tmp_path / "own")
    assert federate.rekey(tmp_path / "f", "clinic", public) == tmp_path / "f" / MEMBERS
    after = Roster.open(tmp_path / "f")
    assert [(each.name, each.first, each.users) for each in after.members] == [
        (each.name, each.first, each.users) for each in before.members
    ]
    assert after.listed.made_by_server == ["phone", "school"]
    assert not (after.bundle("clinic") / keys.NODE_KEY).exists()
    assert Members.load(after.bundle("school")) == after.listed != before.listed
    with pytest.raises(SottoError, match="'clinic' is registered with this key"):
        federate.rekey(tmp_path / "f", "phone", public)
    with pytest.raises(SottoError, match="'cafe' is not registered"):
        federate.rekey(tmp_path / "f", "cafe", public)
