"""Every attack is a command."""

from __future__ import annotations

from sottovoce.cli.audit import app


def test_every_attack_is_a_command_with_options_of_its_own():
    options = {
        attack: {name for argument in app[attack].assemble_argument_collection() for name in argument.names}
        for attack in ("rounds", "canaries", "tails", "membership")
    }
    assert "--leave-out" in options["tails"]
    assert not any("--leave-out" in options[attack] for attack in ("rounds", "canaries", "membership"))
    assert "--references" in options["membership"]
    assert "--set" in options["canaries"]
