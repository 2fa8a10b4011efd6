"""`sotto federate`: what its commands pass on and print. No device, no server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.cli.federate import _device
from sottovoce.cli.main import main
from sottovoce.commands.forecast import Declined
from sottovoce.federation.keys import write_own_key
from sottovoce.federation.members import KnownMember, Members
from sottovoce_evidence.errors import LostProcess, SottoError

COMMANDS = "sottovoce.commands.federate"


@pytest.fixture
def roster():
    members = [SimpleNamespace(name=name) for name in ("clinic", "phone")]
    return SimpleNamespace(
        members=members, federation="f1", users=251, server="host:8443", bundle=lambda name: Path("devices") / name
    )


def test_a_federation_is_created_as_asked(sotto, stub, roster, capsys, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("tea\nmilk\n")
    create = stub(f"{COMMANDS}.create_federation", roster)
    options = ["--host", "host", "--port", "9", "--vocabulary", str(words), "--tokens-per-user", "40"]
    sotto(["federate", "init", "folder", "--device", "clinic=250", "--device", "phone", *options])
    folder, shares, settings, limits = create.places
    assert (folder, shares) == (Path("folder"), [("clinic", 250), ("phone", 1)])
    assert (settings.host, settings.port, settings.tokens_per_user, settings.held_out) == ("host", 9, 40, None)
    assert {"tea", "milk"} <= set(settings.vocabulary.words)
    assert limits.private_only
    page = capsys.readouterr().out
    assert "clinic: devices/clinic" in page
    assert page.endswith("next: sotto federate server RECIPE --federation folder --out RUN\n")


def test_devices_may_take_part_without_a_guarantee_only_if_that_is_said(stub, roster, answer):
    create = stub(f"{COMMANDS}.create_federation", roster)
    found = answer("federate", "init", "folder", "--device", "phone", "--allow-not-private", "--vocabulary-size", 500)
    assert not create.places[3].private_only
    assert found == {
        "federation": "folder",
        "id": "f1",
        "devices": {name: f"devices/{name}" for name in ("clinic", "phone")},
    }


@pytest.mark.parametrize("text", ["clinic=", "clinic=many", "clinic=-1"])
def test_a_device_is_a_name_and_a_number_of_users(text):
    with pytest.raises(SottoError, match="must be NAME=USERS"):
        _device(text)


def test_a_device_is_registered_and_certificates_are_renewed(sotto, stub, capsys):
    enrol, renew = stub(f"{COMMANDS}.enrol", Path("bundle")), stub(f"{COMMANDS}.renew", Path("ca.pem"))
    sotto(["federate", "enrol", "folder", "clinic=3"])
    assert enrol.places[:3] == (Path("folder"), "clinic", 3)
    assert enrol.places[3].private_only
    assert enrol.places[4] is None
    sotto(["federate", "renew", "folder"])
    assert renew.places == (Path("folder"),)
    out = capsys.readouterr().out
    assert "carry bundle to the device" in out
    assert "carry ca.pem to every device" in out


def test_a_federation_may_begin_without_devices(sotto, stub, roster, capsys):
    roster.members.clear()
    create = stub(f"{COMMANDS}.create_federation", roster)
    sotto(["federate", "init", "folder", "--vocabulary-size", "500"])
    assert create.places[1] == []
    assert "next: sotto federate enrol folder NAME=USERS --public-key FILE" in capsys.readouterr().out


def test_a_device_makes_its_key_and_is_registered_with_it(sotto, stub, answer, refusal, capsys, tmp_path):
    pytest.importorskip("flwr")
    folder = tmp_path / "own"
    sotto(["federate", "key", str(folder)])
    made = capsys.readouterr().out
    assert f"send {folder / 'node.pub'} to the server" in made
    assert "node.key exists" in refusal("federate", "key", folder)
    found = answer("federate", "key", tmp_path / "other")
    assert found["public_key"] == str(tmp_path / "other" / "node.pub")
    assert found["fingerprint"].startswith("SHA256:")
    enrol, rekey = stub(f"{COMMANDS}.enrol", Path("bundle")), stub(f"{COMMANDS}.rekey", Path("members.json"))
    sotto(["federate", "enrol", "folder", "clinic=3", "--public-key", "node.pub"])
    assert enrol.places[4] == Path("node.pub")
    sotto(["federate", "rekey", "folder", "clinic", "--public-key", "node.pub"])
    assert rekey.places == (Path("folder"), "clinic", Path("node.pub"))
    out = capsys.readouterr().out
    assert "send the files of bundle to the device, beside its key" in out
    assert out.count("copy folder/members.json into the folder of every device") == 2


def test_the_members_are_shown_with_their_fingerprints(sotto, answer, refusal, capsys, tmp_path):
    pytest.importorskip("flwr")
    keys = [write_own_key(tmp_path / name) for name in ("a", "b")]
    clinic, bob = (key.read_text().strip() for key in keys)
    Members("f1", {"clinic": KnownMember(2500, clinic, "device"), "bob": KnownMember(1, bob, "server")}).save(tmp_path)
    sotto(["federate", "members", str(tmp_path)])
    page = capsys.readouterr().out
    found = answer("federate", "members", tmp_path)
    assert f"the list: {found['fingerprint']}\n" in page
    assert all(each["fingerprint"] in page for each in found["members"].values())
    assert "2,500" in page
    assert "the server made the keys of bob, and could sign for them" in page
    Members("f1", {}).save(tmp_path)
    assert "has no devices" in refusal("federate", "members", tmp_path)
    assert "has no members.json" in refusal("federate", "members", tmp_path / "a")


def test_a_server_trains_the_recipe_with_the_devices(stub, result, answer):
    serve = stub(f"{COMMANDS}.serve_federation", result())
    options = ("--seconds", 5, "--at-least", 2, "--bind", "0.0.0.0", "--set", "run.rounds=3")
    assert (
        answer("federate", "server", "demo", "--federation", "folder", "--out", "run", *options)["ended"] == "finished"
    )
    recipe, federation, out, serving = serve.places
    assert (recipe.run.rounds, federation, out) == (3, Path("folder"), Path("run"))
    assert (serving.seconds, serving.at_least, serving.bind, serving.state) == (5.0, 2, "0.0.0.0", None)


def test_a_server_asks_before_users_are_charged_and_a_no_is_no_success(sotto, stub, capsys):
    serve = stub(f"{COMMANDS}.serve_federation", Declined("no"))
    sotto(["federate", "server", "demo", "--federation", "folder", "--out", "run", "--yes"], status=1)
    assert capsys.readouterr().out == "nobody was charged, and no run was made\n"
    assert serve.names["confirm"].keywords == {"yes": True, "json": False}


def test_a_stopped_run_is_resumed_by_a_server(sotto, stub, result, capsys, tmp_path):
    resume = stub(f"{COMMANDS}.resume_federation", result("stopped"))
    sotto(["federate", "resume", "run"], status=130)
    assert resume.places[0] == Path("run")
    assert f"sotto federate resume {tmp_path / 'run'}" in capsys.readouterr().out


@pytest.mark.parametrize("begun", [False, True])
def test_a_lost_server_says_how_to_go_on_if_there_is_a_run(stub, capsys, tmp_path, begun):
    stub(f"{COMMANDS}.resume_federation", LostProcess("the link is gone"))
    if begun:
        (tmp_path / "recipe.toml").touch()
    with pytest.raises(SystemExit, match="1"):
        main(["federate", "resume", str(tmp_path)])
    err = capsys.readouterr().err
    assert (f"go on with: sotto federate resume {tmp_path}" in err) is begun
    assert err.endswith("error: the link is gone\n")


def test_a_device_runs_with_its_users(sotto, stub):
    device = stub(f"{COMMANDS}.run_device")
    sotto(["federate", "device", "bundle", "--data", "store", "--server", "host:1"])
    assert device.places == (Path("bundle"), Path("store"))
    assert device.names["server"] == "host:1"


def test_a_demo_shows_its_report_or_that_it_was_stopped(sotto, stub, result, refusal, capsys, tmp_path):
    demo = stub("sottovoce.commands.federate_demo.run_federation_demo", result())
    sotto(["federate", "demo", "--users", "80"])
    assert (demo.places, demo.names["users"]) == ((Path("federation-demo"),), 80)
    assert capsys.readouterr().out.endswith(f"report: {tmp_path / 'run' / 'report.html'}\n")
    stub("sottovoce.commands.federate_demo.run_federation_demo", result("stopped"))
    sotto(["federate", "demo"], status=130)
    assert (
        capsys.readouterr().out
        == "stopped after round 30; delete federation-demo and run `sotto federate demo` again\n"
    )
    assert "--users 59 must be 60 or more" in refusal("federate", "demo", "--users", 59)


def test_a_server_that_would_wait_for_nothing_is_refused(refusal):
    server = ("federate", "server", "demo", "--federation", "folder", "--out", "run")
    assert "--seconds 0 must be above 0" in refusal(*server, "--seconds", 0)
    assert "--at-least 0 must be 1 or more" in refusal(*server, "--at-least", 0)
