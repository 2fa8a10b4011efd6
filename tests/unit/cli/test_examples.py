"""Every command shows examples, and each of them parses."""

from __future__ import annotations

import shlex

import pytest

from sottovoce.cli.examples import commands
from sottovoce.cli.main import EXAMPLES, app


def test_every_command_has_examples_and_no_other_has():
    assert all(1 <= len(lines) <= 3 for lines in EXAMPLES.values())


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in EXAMPLES.items() for line in lines])
def test_an_example_parses_as_a_call_of_its_command(name, line):
    assert len(line) <= 78
    program, *arguments = shlex.split(line)
    command, _, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    assert program == "sotto"
    assert command is dict(commands(app))[name].default_command
