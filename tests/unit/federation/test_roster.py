"""The folder of a federation, and what is carried to its devices."""

from __future__ import annotations

import json
import shutil
import ssl

import pytest

pytest.importorskip("flwr")

from sottovoce.commands import federate
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.federation import keys
from sottovoce.federation.flower.tmpfs import in_memory
from sottovoce.federation.limits import Limits
from sottovoce.federation.roster import Roster
from sottovoce.files import locked
from sottovoce.recipe import Recipe

WORDS = Vocabulary.from_words(["red", "green"])


def found(folder, *devices, **more) -> Roster:
    more = {"vocabulary": WORDS, "tokens_per_user": 16, "host": "127.0.0.1", "port": 1234, **more}
    return federate.found_federation(folder, devices, **more)


def test_a_federation_has_a_roster_keys_and_a_folder_for_each_device(tmp_path):
    roster = found(tmp_path / "f", ("phone", 1), ("clinic", 20))
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


def test_devices_are_told_where_the_server_is(tmp_path):
    for number, (host, said) in enumerate(
        (("train.example.org", "train.example.org:1234"), ("fd00::2", "[fd00::2]:1234"))
    ):
        roster = found(tmp_path / str(number), ("phone", 1), host=host)
        assert json.loads((roster.bundle("phone") / "device.json").read_text())["server"] == said


def test_a_recipe_that_devices_cannot_train_is_refused_before_a_process_is_started(tmp_path, monkeypatch):
    roster = found(tmp_path / "f", ("phone", 1))
    monkeypatch.setattr(
        "sottovoce.federation.flower.superlink_server.Link.__init__", lambda *_, **__: pytest.fail("a link was made")
    )
    recipe = Recipe().replace(privacy={"sampling": "fixed"})
    with pytest.raises(SottoError, match="flip their own coins"):
        federate.serve(recipe, roster.path, tmp_path / "run", federate.Serving())


def test_later_devices_come_after_the_others_and_nobody_moves(tmp_path):
    before = found(tmp_path / "f", ("phone", 1), ("clinic", 20))
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
    [("phone", 1, "already"), ("Über", 1, "small letters"), ("x/y", 1, "small"), ("z", 0, "1 or")],
)
def test_bad_devices_are_refused(tmp_path, name, users, what):
    found(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match=what):
        federate.enrol(tmp_path / "f", name, users)
    assert [member.name for member in Roster.open(tmp_path / "f").members] == ["phone"]


def test_wrong_folders_and_numbers_are_refused(tmp_path):
    roster = found(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match="exists"):
        found(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match="no federation"):
        Roster.open(tmp_path)
    with pytest.raises(SottoError, match="not the folder of a device"):
        federate.run_device(tmp_path, tmp_path)
    with pytest.raises(SottoError, match="more than the 1 devices"):
        federate.serve(Recipe(), roster.path, tmp_path / "run", federate.Serving(at_least=2))
    (roster.path / "link").mkdir()
    with locked(roster.path / "link" / ".lock", "busy"), pytest.raises(SottoError, match="served by another process"):
        federate.serve(Recipe(), roster.path, tmp_path / "run", federate.Serving())
    for wrong in ({"host": ""}, {"host": "https://x.org"}, {"host": "a b"}, {"tokens_per_user": 1}):
        with pytest.raises(SottoError, match="must be"):
            found(tmp_path / "g", ("phone", 1), **wrong)
        assert not (tmp_path / "g").exists()
    for wrong in ({"seconds": 0}, {"at_least": 0}):
        with pytest.raises(SottoError, match="must be"):
            federate.Serving(**wrong)


def test_certificates_that_have_ended_are_refused_before_anything_is_started_and_can_be_renewed(tmp_path, monkeypatch):
    """Devices would knock for ever, and a server wait."""
    monkeypatch.setattr(keys, "VALID_DAYS", 0)
    roster = found(tmp_path / "f", ("phone", 4))
    link = tmp_path / "f" / "link"
    with pytest.raises(SottoError, match=r"server.pem is valid from .*sotto federate renew"):
        federate.serve(Recipe(), roster.path, tmp_path / "run", federate.Serving())
    store = prepared(tmp_path, "store")
    with pytest.raises(SottoError, match=r"authority.pem is valid from .*ask for authority.pem"):
        federate.run_device(roster.bundle("phone"), store, stop=lambda: True)
    assert not (roster.bundle("phone") / "host").exists()
    assert not link.exists()

    monkeypatch.setattr(keys, "VALID_DAYS", 30)
    before = (roster.bundle("phone") / keys.NODE_KEY).read_bytes()
    shutil.rmtree(found(tmp_path / "g", ("phone", 4), ("gone", 1)).bundle("gone"))
    for name in ("f", "g"):
        authority = federate.renew(tmp_path / name)
        assert (tmp_path / name / "devices" / "phone" / keys.AUTHORITY).read_bytes() == authority.read_bytes()
    assert (roster.bundle("phone") / keys.NODE_KEY).read_bytes() == before
    assert sorted(path.name for path in roster.keys.iterdir()) == [keys.AUTHORITY, keys.SERVER_KEY, keys.SERVER]
    assert (roster.keys / keys.SERVER_KEY).stat().st_mode & 0o077 == 0
    issuer = ssl.create_default_context(cafile=roster.keys / keys.AUTHORITY)
    ssl.create_default_context().load_cert_chain(roster.keys / keys.SERVER, roster.keys / keys.SERVER_KEY)
    assert issuer.cert_store_stats()["x509_ca"] == 1
    said = []
    monkeypatch.setattr(
        "sottovoce.federation.flower.superlink_server.Link.__init__", lambda *_, **__: pytest.fail("a link was made")
    )
    with pytest.raises(pytest.fail.Exception):
        federate.serve(Recipe(), roster.path, tmp_path / "run", federate.Serving(), say=said.append)
    assert said == [f"the certificate of {roster.path} ends in 29 days; make another with `sotto federate renew`"]
    with locked(link / ".lock", "busy"), pytest.raises(SottoError, match="served by another process"):
        federate.renew(roster.path)
    with locked(roster.path / ".lock", "busy"), pytest.raises(SottoError, match="changed by another process"):
        federate.renew(roster.path)  # a device that is enrolled just then would carry the old one away


def prepared(folder, name: str, words: Vocabulary = WORDS, tokens: int = 16, plain: bool = False):
    corpus = folder / ("corpus.txt" if plain else "corpus.jsonl")
    rows = [json.dumps({"user": user, "text": "red green red"}) for user in ("ann", "bob", "cleo")]
    corpus.write_text("red green\n" * 9 if plain else "\n".join(rows) + "\n")
    prepare([corpus], folder / name, words, Grouping(tokens_per_user=tokens, test_users=0, plain_text=plain))
    return folder / name


def test_a_device_has_its_owners_limits_the_words_of_the_federation_and_people(tmp_path):
    bundle = found(tmp_path / "f", ("clinic", 4)).bundle("clinic")
    (bundle / "limits.toml").write_text("clip_norm = 0.5\nrounds = 3\n")
    store = prepared(tmp_path, "store")
    device, server = federate.open_device(bundle, store)
    assert device._limits == Limits(clip_norm=0.5, rounds=3)
    assert (device.description, server) == ("clinic: 3 users, registered for 4", "127.0.0.1:1234")
    others = Vocabulary.from_words(["blue", "green"])
    for wrong in (prepared(tmp_path, "words", others), prepared(tmp_path, "short", tokens=8)):
        with pytest.raises(SottoError, match="other words or another length"):
            federate.open_device(bundle, wrong)
    with pytest.raises(SottoError, match="its users are no persons"):
        federate.open_device(bundle, prepared(tmp_path, "plain", plain=True))
    with locked(bundle / ".lock", "busy"), pytest.raises(SottoError, match="in use by another process"):
        federate.run_device(bundle, store, stop=lambda: True)


def test_the_state_of_a_link_is_kept_in_memory_only(tmp_path, monkeypatch):
    """A folder on a disk is refused: updates in it are not noised."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nmemory {tmp_path}/shm tmpfs rw 0 0\n")
    monkeypatch.setattr("sottovoce.federation.flower.tmpfs.MOUNTS", mounts)
    (tmp_path / "shm" / "state").mkdir(parents=True)
    assert in_memory(tmp_path / "shm" / "state")
    with pytest.raises(SottoError, match="must not reach a disk"):
        in_memory(tmp_path)
    with pytest.raises(SottoError, match="not a folder"):
        in_memory(tmp_path / "nowhere")
    (tmp_path / "shm" / "a disk").mkdir()
    with mounts.open("a") as more:
        more.write(f"disk {tmp_path}/shm/a\\040disk ext4 rw 0 0\n")
    with pytest.raises(SottoError, match="is on ext4"):
        in_memory(tmp_path / "shm" / "a disk")
    mounts.unlink()
    with pytest.raises(SottoError, match="must not reach a disk"):
        in_memory(tmp_path / "shm")
