"""Create, serve and be a device: what is refused before anything is started."""

from __future__ import annotations

import json
import shutil
import ssl
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from sottovoce.commands import federate
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation import keys
from sottovoce.federation.limits import Limits
from sottovoce.federation.roster import FederationSettings, Roster, check_address
from sottovoce.files import locked
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

WORDS = Vocabulary.from_words(["red", "green"])


def create(folder, *devices, **more) -> Roster:
    settings = {"vocabulary": WORDS, "tokens_per_user": 16, "host": "127.0.0.1", "port": 1234, **more}
    return federate.create_federation(folder, devices, FederationSettings(**settings))


def test_a_recipe_that_devices_cannot_train_is_refused_before_a_process_is_started(tmp_path, monkeypatch):
    roster = create(tmp_path / "f", ("phone", 1))
    monkeypatch.setattr(
        "sottovoce.federation.flower.superlink_server.SuperLinkServer.__init__",
        lambda *_, **__: pytest.fail("a link was made"),
    )
    recipe = Recipe().replace(privacy={"sampling": "fixed"})
    with pytest.raises(SottoError, match="flip their own coins"):
        federate.serve_federation(recipe, roster.path, tmp_path / "run", federate.Serving())


def test_wrong_folders_and_numbers_are_refused(tmp_path):
    roster = create(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match="exists"):
        create(tmp_path / "f", ("phone", 1))
    with pytest.raises(SottoError, match="no federation"):
        Roster.open(tmp_path)
    with pytest.raises(SottoError, match="not the folder of a device"):
        federate.run_device(tmp_path, tmp_path)
    with pytest.raises(SottoError, match="more than the 1 device registered"):
        federate.serve_federation(Recipe(), roster.path, tmp_path / "run", federate.Serving(at_least=2))
    (roster.path / "link").mkdir()
    with locked(roster.path / "link" / ".lock", "busy"), pytest.raises(SottoError, match="served by another process"):
        federate.serve_federation(Recipe(), roster.path, tmp_path / "run", federate.Serving())
    for wrong in ({"host": ""}, {"host": "https://x.org"}, {"host": "a b"}, {"tokens_per_user": 1}):
        with pytest.raises(SottoError, match="must be"):
            create(tmp_path / "g", ("phone", 1), **wrong)
        assert not (tmp_path / "g").exists()
    for wrong in ({"seconds": 0}, {"at_least": 0}):
        with pytest.raises(SottoError, match="must be"):
            federate.Serving(**wrong)


def test_certificates_that_have_ended_are_refused_before_anything_is_started_and_can_be_renewed(tmp_path, monkeypatch):
    """Devices would knock for ever, and a server wait."""
    monkeypatch.setattr(keys, "VALID_DAYS", 0)
    roster = create(tmp_path / "f", ("phone", 4))
    link = tmp_path / "f" / "link"
    with pytest.raises(SottoError, match=r"server.pem is valid from .*sotto federate renew"):
        federate.serve_federation(Recipe(), roster.path, tmp_path / "run", federate.Serving())
    store = prepared(tmp_path, "store")
    with pytest.raises(SottoError, match=r"authority.pem is valid from .*ask for authority.pem"):
        federate.run_device(roster.bundle("phone"), store, stop=lambda: True)
    assert not (roster.bundle("phone") / "host").exists()
    assert not link.exists()

    monkeypatch.setattr(keys, "VALID_DAYS", 30)
    before = (roster.bundle("phone") / keys.NODE_KEY).read_bytes()
    shutil.rmtree(create(tmp_path / "g", ("phone", 4), ("gone", 1)).bundle("gone"))
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
        "sottovoce.federation.flower.superlink_server.SuperLinkServer.__init__",
        lambda *_, **__: pytest.fail("a link was made"),
    )
    with pytest.raises(pytest.fail.Exception):
        federate.serve_federation(Recipe(), roster.path, tmp_path / "run", federate.Serving(notify=said.append))
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
    bundle = create(tmp_path / "f", ("clinic", 4)).bundle("clinic")
    (bundle / "limits.toml").write_text("clip_norm = 0.5\nrounds = 3\n")
    store = prepared(tmp_path, "store")
    device = federate.open_device(bundle, store)
    assert device._limits == Limits(clip_norm=0.5, rounds=3)
    assert device.description == "clinic: 3 users, registered for 4"
    others = Vocabulary.from_words(["blue", "green"])
    for wrong in (prepared(tmp_path, "words", others), prepared(tmp_path, "short", tokens=8)):
        with pytest.raises(SottoError, match="other words or another length"):
            federate.open_device(bundle, wrong)
    with pytest.raises(SottoError, match="its users are no persons"):
        federate.open_device(bundle, prepared(tmp_path, "plain", plain=True))
    with locked(bundle / ".lock", "busy"), pytest.raises(SottoError, match="in use by another process"):
        federate.run_device(bundle, store, stop=lambda: True)


ADDRESSES = (
    "",
    "HOST:nan",
    "HOST",
    "HOST:",
    "HOST:0",
    "HOST:99999",
    ":80",
    "a:80/x",
    "http://a:80",
    "[::1:80",
    "::1:80",
)
PLACES = [
    {"users": "x"}, {"users": 3.5}, {"users": True}, {"users": 2}, {"users": 0}, {"first": -1}, {"name": "../x"},
    {"federation": None}, {"server": "h:nan"}, {"server": 5}, {"tokens_per_user": "a"},
]  # fmt: skip


def test_a_device_that_is_refused_leaves_nothing_behind(tmp_path):
    """No secret of a device that never was: a folder that is used later would take it for its own."""
    bundle, store = create(tmp_path / "f", ("clinic", 4)).bundle("clinic"), prepared(tmp_path, "store")
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    facts = json.loads(files["device.json"])
    flaws = [("device.json", json.dumps(facts | place).encode(), None) for place in PLACES]
    flaws += [
        ("authority.pem", b"=", None),
        ("limits.toml", b"=", None),
        ("device.json", files["device.json"][:-3], None),
    ]
    for name, contents, server in [*flaws, *(("device.json", files["device.json"], each) for each in ADDRESSES)]:
        (bundle / name).write_bytes(contents)
        with pytest.raises(SottoError):
            federate.run_device(bundle, store, server=server, stop=lambda: True)
        assert {path.name for path in bundle.iterdir()} - {".lock"} == set(files), (contents, server)
        (bundle / name).write_bytes(files[name])


def test_an_address_may_be_a_name_or_a_number():
    for address in ("train.example.org:8443", "192.0.2.7:1", "[2001:db8::7]:65535"):
        assert check_address(address, "--server") == address


def test_a_device_whose_users_have_no_text_is_there_all_the_same(tmp_path):
    """Also one of a run that asks for users by their names."""
    device = federate.open_device(create(tmp_path / "f", ("phone", 1)).bundle("phone"), None)
    assert device.description == "phone: 0 users, registered for 1"
    assert device._store.names.size == 0


def test_a_device_knows_its_own_writers_where_the_federation_has_contexts(tmp_path):
    bundle = create(tmp_path / "f", ("clinic", 4), vocabulary=WORDS.with_contexts(["de"])).bundle("clinic")
    rows = [{"user": user, "text": "red", "lang": lang} for user, lang in (("ann", "de"), ("bob", "fr"))]
    words = Vocabulary.from_file(bundle / "vocabulary.txt", WORDS.size)
    for field, begins in (("lang", [0, WORDS.size]), (None, [0, 0])):
        store = tmp_path / f"of {field}"
        prepare(rows, store, words, Grouping(tokens_per_user=16, test_users=0, context_field=field))
        device = federate.open_device(bundle, store)
        assert sorted(int(device._store[row][0]) for row in range(2)) == begins


def test_a_device_has_the_key_that_it_is_listed_with(tmp_path):
    create(tmp_path / "f", ("phone", 4))
    public = federate.make_device_key(tmp_path / "own")
    bundle, store = federate.enrol(tmp_path / "f", "clinic", 4, public_key=public), prepared(tmp_path, "store")
    with pytest.raises(SottoError, match=r"no node.key; if this device made its own .* copy that in"):
        federate.open_device(bundle, store)
    shutil.copy(tmp_path / "f" / "devices" / "phone" / keys.NODE_KEY, bundle)
    with pytest.raises(SottoError, match=r"is SHA256:.*, and clinic is listed with SHA256:.*; copy the right node.key"):
        federate.open_device(bundle, store)
    shutil.copy(tmp_path / "own" / keys.NODE_KEY, bundle)
    federate.open_device(bundle, store)
    shutil.copy(create(tmp_path / "g", ("phone", 4)).path / "members.json", bundle)
    with pytest.raises(SottoError, match=r"members.json is of another federation"):
        federate.open_device(bundle, store)
    listed = Roster.open(tmp_path / "f").listed
    replace(listed, devices={"phone": listed.devices["phone"]}).save(bundle)
    with pytest.raises(SottoError, match=r"members.json does not list clinic"):
        federate.open_device(bundle, store)
    (bundle / "members.json").unlink()
    with pytest.raises(SottoError, match=r"has no members.json; copy members.json again"):
        federate.open_device(bundle, store)
