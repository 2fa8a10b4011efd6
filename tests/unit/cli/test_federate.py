"""`sotto federate`: what its commands pass on and print. No device, no server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.cli.federate import _device
from sottovoce.cli.main import main
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


def test_a_server_trains_the_recipe_with_the_devices(stub, result, answer):
    serve = stub(f"{COMMANDS}.serve_federation", result())
    options = ("--seconds", 5, "--at-least", 2, "--bind", "0.0.0.0", "--set", "run.rounds=3")
    assert (
        answer("federate", "server", "demo", "--federation", "folder", "--out", "run", *options)["ended"] == "finished"
    )
    recipe, federation, out, serving = serve.places
    assert (recipe.run.rounds, federation, out) == (3, Path("folder"), Path("run"))
    assert (serving.seconds, serving.at_least, serving.bind, serving.state) == (5.0, 2, "0.0.0.0", None)


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
