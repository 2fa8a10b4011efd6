"""One way to fail: status 2, one line, in the words of the command line."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys

import pytest

from examples import first_of
from sottovoce.cli import main as entry
from sottovoce.cli.main import app, main
from sottovoce_evidence.errors import LostProcess, SettingError, SottoError


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(entry, "app", type("App", (), {"__call__": raise_it, "parse_commands": app.parse_commands})())


def status_of(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_setting_is_named_by_the_option_that_the_command_has(monkeypatch, capsys):
    failing(
        monkeypatch,
        SettingError("{min_tokens} is above {user_rate}; lower {min_tokens.name}", min_tokens=3, user_rate=1),
    )
    assert status_of(["prepare", "corpus.jsonl"]) == 2
    assert capsys.readouterr().err == "error: --min-tokens 3 is above user_rate=1; lower --min-tokens\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare", "c.csv"], "--out is missing (folder of the new store); see `sotto prepare --help`"),
        (["base", "train", "store"], "--out is missing (folder of the new base); see `sotto base train --help`"),
        (["verify"], "FOLDER is missing (folder of a release"),
        (["prepare", "c.csv", "--out"], "--out requires an argument"),
        (["init", "store", "--epsilon", "-3"], "Unknown option: --epsilon; set privacy.epsilon in the recipe"),
        (["train", "demo", "--noise-multiplier=1"], "; give --set privacy.noise_multiplier=VALUE"),
        (["init", "store", "--learning-rate", "1"], "Unknown option: --learning-rate."),
        (["verify", "release", "--rounds", "3"], "Unknown option: --rounds."),
        (["init", "store", "--jsn"], "Did you mean --json?"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_is_missing_or_unknown_is_named_with_its_cure(arguments, said, capsys):
    assert status_of(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_lost_process_is_no_wrong_input(monkeypatch):
    failing(monkeypatch, LostProcess("process 1 is gone"))
    assert status_of(["train", "demo"]) == 1


def test_a_command_whose_reader_is_gone_ends_without_a_word():
    """As `sotto --help | head -1`, in a shell: 141 is what it says of other programs there."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "sottovoce", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_endless_value_does_not_make_an_endless_line(monkeypatch, capsys):
    failing(monkeypatch, SottoError("first " + "9" * 100_000 + " last"))
    assert status_of(["plan"]) == 2
    err = capsys.readouterr().err
    assert len(err) < 1300
    assert err.startswith("error: first 9")
    assert err.endswith("9 last\n")


def test_lines_of_both_kinds_in_one_file_are_in_the_order_in_which_they_were_printed(monkeypatch, tmp_path):
    """As `sotto demo > log 2>&1` writes them."""

    def command(*_: object, **__: object) -> None:
        print("plan")
        print("round 1", file=sys.stderr)
        print("report")

    monkeypatch.setattr(entry, "app", command)
    log = tmp_path / "log"
    with log.open("a") as out, log.open("a", buffering=1) as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        main(["demo"])
        written = log.read_text()
    assert written == "plan\nround 1\nreport\n"


def test_an_error_is_one_line_whatever_signs_its_values_have(monkeypatch, capsys):
    """Names of files and columns are somebody's choice: none moves the cursor of a terminal, or ends a line."""
    failing(monkeypatch, SottoError("no column 'a\x1b[2K\x1b[1Gall is well\x9b\u202e\x7f\nb\udcff'; name another"))
    assert status_of(["prepare", "c.csv"]) == 2
    line = capsys.readouterr().err
    assert line == "error: no column 'a\\x1b[2K\\x1b[1Gall is well\\x9b\\u202e\\x7f b\\udcff'; name another\n"


def test_an_argument_that_is_not_utf_8_is_refused(capsys):
    assert status_of(["verify", os.fsdecode(b"caf\xe9")]) == 2
    assert capsys.readouterr().err.startswith(r"error: 'caf\udce9' is not UTF-8")


def test_what_an_output_cannot_write_is_an_escape(monkeypatch):
    """As `PYTHONIOENCODING=ascii sotto plan`, which stopped at the first ε."""

    def command(*_: object, **__: object) -> None:
        print("ε = 2")
        print("δ", file=sys.stderr)

    monkeypatch.setattr(entry, "app", command)
    written = {}
    for name in ("stdout", "stderr"):
        written[name] = io.BytesIO()
        monkeypatch.setattr(sys, name, io.TextIOWrapper(written[name], encoding="ascii"))
    main(["plan"])
    sys.stderr.flush()
    assert [written[name].getvalue() for name in written] == [b"\\u03b5 = 2\n", b"\\u03b4\n"]


def test_commands_are_grouped_by_what_a_person_does(capsys):
    assert status_of(["--help"]) == 0
    page = capsys.readouterr().out
    places = [page.index(f"─ {title} ") for title in (*entry.VERBS, "Options")]
    assert places == sorted(places)
    verbs = [verb for verbs in entry.VERBS.values() for verb in verbs]
    assert sorted(verbs) == sorted(name for name in app if not name.startswith("-"))
    found = [page.index(f"│ {verb} ") for verb in verbs]
    assert found == sorted(found)


@pytest.mark.parametrize("shell", first_of(["bash", "zsh", "fish"]))
def test_a_shell_can_complete_commands_and_options(shell, tmp_path, capsys):
    script = tmp_path / "sotto"
    assert status_of(["--install-completion", "--shell", shell, "--output", str(script)]) == 0
    assert "--tokens-per-user" in script.read_text().replace("-l 'tokens-per-user'", "--tokens-per-user")


def test_the_package_can_be_run_without_its_script(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sotto", "prepare", "nowhere.csv", "--out", "store"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sottovoce", run_name="__main__")
    assert ended.value.code == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_a_command_that_needs_more_than_is_installed_says_so_in_one_line(monkeypatch, capsys):
    failing(monkeypatch, ModuleNotFoundError("No module named 'jax.numpy'", name="jax.numpy"))
    assert status_of(["train", "mine.toml"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        "error: this command needs jax.numpy, which is not installed; `pip install sottovoce` adds it"
    )
    assert printed.count("\n") == 1
