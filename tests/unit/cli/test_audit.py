"""The old spelling of audits is understood, with a hint."""

from __future__ import annotations

import pytest

from sottovoce.cli.audit import app, modern
from sottovoce_evidence.errors import SottoError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("audit run --rounds 400 --json", "audit rounds run --rounds 400 --json"),
        ("audit run --rounds=400", "audit rounds run --rounds=400"),
        ("audit run other --tails --texts 9", "audit tails run other --texts 9"),
        ("audit --canaries run --set audit.users=40", "audit canaries run --set audit.users=40"),
        ("audit run --membership --references 4", "audit membership run --references 4"),
    ],
)
def test_the_old_spelling_is_understood_with_a_hint_of_one_line(old, new, capsys):
    assert modern(old.split()) == new.split()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hint: ")
    assert f"sotto audit {new.split()[1]}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    ["", "plan --rounds 4", "audit run", "audit run --json", "audit rounds run --rounds 4"],
)
def test_the_new_spelling_and_other_commands_are_left_alone(arguments, capsys):
    assert modern(arguments.split()) == arguments.split()
    assert capsys.readouterr().err == ""


def test_two_attacks_at_once_are_refused():
    with pytest.raises(SottoError, match="one of these at a time: rounds, canaries, tails, membership"):
        modern(["audit", "run", "--tails", "--canaries"])


def test_every_attack_is_a_command_with_options_of_its_own():
    options = {
        attack: {name for argument in app[attack].assemble_argument_collection() for name in argument.names}
        for attack in ("rounds", "canaries", "tails", "membership")
    }
    assert "--leave-out" in options["tails"]
    assert not any("--leave-out" in options[attack] for attack in ("rounds", "canaries", "membership"))
    assert "--references" in options["membership"]
    assert "--set" in options["canaries"]
