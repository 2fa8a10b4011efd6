"""`sotto release`."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.cli.main import main
from sottovoce.commands.release import Release
from sottovoce.commands.release_folder import Publication
from sottovoce_evidence.statement import AuditOutcome

RELEASE = "sottovoce.commands.release.release_run"
AUDITS = (AuditOutcome("rounds", "passed", would_notice=0.9), AuditOutcome("canaries", "not run"))
RELEASED = Release("run", True, "out", (), AUDITS, ("canaries",), "sotto verify out")
PLAN = Release(
    "run", False, "out", (), AUDITS, epsilon=2.0, delta=1e-6, files=("README.md",), signer="SHA256:a",
    notes=("no ONNX",),
)  # fmt: skip
KEPT = Release("run", False, "out", ("no audit", "no guarantee"), (), (), "")


@pytest.fixture
def release(monkeypatch):
    """A run that passes the gate: a rehearsal gives the plan. The calls are kept."""
    calls = []

    def answer(*places, dry_run, **names):
        calls.append((places, dry_run, names))
        return PLAN if dry_run else RELEASED

    monkeypatch.setattr(RELEASE, answer)
    return calls


@pytest.fixture
def terminal(monkeypatch):
    """A person at a terminal, who types this."""

    def type_in(answer):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr("sys.stderr", Terminal(""))

    return type_in


class Terminal(StringIO):
    def isatty(self):
        return True


def test_a_release_shows_its_plan_its_check_and_its_audits(sotto, release, capsys):
    given = ["--most-exposure", "8", "--require-audit", "--license", "mit", "--language", "de", "--key", "k"]
    sotto(["release", "run", "--out", "out", "--yes", *given])
    names = {"most_exposure": 8.0, "require_audit": True, "publication": Publication("mit", "de", Path("k"))}
    assert release == [((Path("run"), Path("out")), rehearsal, names) for rehearsal in (True, False)]
    out = capsys.readouterr().out
    for words in (
        "with ε = 2 at δ = 1e-6",
        "files: README.md",
        "checks it with: sotto verify out",
        "canaries: not run",
    ):
        assert words in out


@pytest.mark.parametrize(("typed", "calls"), [("y\n", 2), ("yes\n", 2), ("\n", 1), ("no\n", 1), ("", 1)])
def test_a_person_at_a_terminal_is_asked(sotto, release, terminal, capsys, typed, calls):
    terminal(typed)
    sotto(["release", "run", "--out", "out"])
    assert len(release) == calls
    assert ("nothing was released" in capsys.readouterr().out) == (calls == 1)


@pytest.mark.parametrize("given", [[], ["--json"]])
def test_where_nobody_can_be_asked_yes_is_needed(release, refusal, given):
    said = refusal("release", "run", "--out", "out", *given)
    assert said == "error: releasing run cannot be undone, and nobody is asked here: give --yes, or --dry-run\n"
    assert [rehearsal for _, rehearsal, _ in release] == [True]


@pytest.mark.parametrize("json", [False, True])
def test_what_is_not_released_has_all_reasons_and_status_1(stub, capsys, json):
    stub(RELEASE, KEPT)
    with pytest.raises(SystemExit, match="1"):
        main(["release", "run", "--out", "out", *(["--json"] if json else [])])
    out = capsys.readouterr().out
    if json:
        assert '"reasons": ["no audit", "no guarantee"]' in out
    else:
        assert out == "not released: run\n- no audit\n- no guarantee\n"


ERASED = "nothing was released, but the secrets of run are erased; give the same command again"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (("run/secrets/salt",), "nothing was released, and run is as it was; the same command begins anew"),
        (("run/secrets/round-000007.key",), ERASED),
        ((), ERASED),
        (("out/weights",), "released before it was stopped: out"),
    ],
)
def test_ctrl_c_in_a_release_says_what_was_done(left, told, sotto, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def stopped(*places, dry_run, **names):
        if dry_run:
            return PLAN
        for each in left:
            Path(each).mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(RELEASE, stopped)
    monkeypatch.setattr("sottovoce.runs.folder.RunFolder.open", lambda path: SimpleNamespace(secrets=path / "secrets"))
    with pytest.raises(SystemExit) as exit:
        main(["release", "run", "--out", "out", "--yes"])
    assert exit.value.code == 130
    assert capsys.readouterr().err.endswith(f"{told}\ninterrupted\n")
