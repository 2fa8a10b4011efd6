"""Commands of a README that check a release, as a shell reads them."""

from __future__ import annotations

import pytest

from sottovoce.reporting.readme_checks import commands, signers_of

KEY = "SHA256:abc+/d"


@pytest.mark.parametrize(
    ("text", "signers"),
    [
        (f"```\nsotto verify 'a model' --signer {KEY}\n```", [{KEY}]),
        (f"    $ sotto verify --signer={KEY} model", [{KEY}]),
        (f"    sotto verify model \\\n      --signer {KEY}", [{KEY}]),
        (f"    sotto verify model --unsigned; echo --signer {KEY}", [set()]),
        (f"    sotto verify model&&echo --signer {KEY}", [set()]),
        (f"    sotto verify 'model --signer {KEY}'", [set()]),
        (f"    sotto verify model # --signer {KEY}", [set()]),
        ("`sotto verify --help` lists the checks\nsotto verify checks all -- all of them", []),
        ("sotto verify doesn't need jax", []),
    ],
)
def test_commands_are_read_as_a_shell_reads_them(text, signers):
    assert [signers_of(words) for _, words in commands(text)] == signers


def test_a_command_that_goes_on_has_the_number_of_its_first_line():
    assert [line for line, _ in commands("one\n    sotto verify \\\n    model\n    sotto verify other")] == [2, 4]
