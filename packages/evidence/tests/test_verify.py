"""A release is its recipe, its ledger and its facts: whatever else is changed, and signed anew, is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from releases import (
    HASH,
    KEY,
    PLAIN,
    SIGNER,
    changed,
    evidences,
    leaves,
    other,
    state_again,
    write,
    write_json,
    write_lines,
)

from sottovoce_evidence import accounting, verify
from sottovoce_evidence.accounting import BestOfRuns
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import CHECKSUM, parse_json
from sottovoce_evidence.main import main
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.release import CARD, FACTS, LEDGER, README, RECIPE, RECORD, STATEMENT, WEIGHTS
from sottovoce_evidence.signature import RELEASE, sign_folder
from sottovoce_evidence.statement import (
    AuditOutcome,
    Evidence,
    Registered,
    RunFacts,
    StartFacts,
    Statement,
    VocabularyFacts,
    state,
)
from sottovoce_evidence.statement_text import LOUD
from sottovoce_evidence.verify import FAILED, NOT_PROVED, OWN_CODE, OWNERS_WORD, read_evidence, verify_release

EVIDENCES = evidences()


@pytest.fixture(scope="module")
def releases(tmp_path_factory) -> Path:
    """A release of each kind of run."""
    folder = tmp_path_factory.mktemp("releases")
    for name, evidence in EVIDENCES.items():
        write(folder / name, evidence)
    return folder


@pytest.fixture
def release(releases, tmp_path):
    """A copy of the release of a kind of run, to change."""

    def copy(name: str = "turns") -> Path:
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        return Path(shutil.copytree(releases / name, folder))

    return copy


@pytest.fixture
def quick(monkeypatch):
    """Hundreds of verifications: each ε is computed once, and dp-accounting's second opinion is tested by itself."""
    compute, known = accounting.epsilon, {}

    def epsilon(spent, delta, accountant="pld", *, replaced=False):
        key = (tuple(spent), delta, accountant, replaced)
        if key not in known:
            known[key] = compute(spent, delta, accountant, replaced=replaced)
        return known[key]

    monkeypatch.setattr(accounting, "epsilon", epsilon)
    monkeypatch.setattr(verify, "dp_accounting_epsilon", lambda *args, **more: None)


def failed(folder: Path) -> dict[str, str]:
    found = verify_release(folder, signer=SIGNER)
    assert found.verified == (not any(check.result == FAILED for check in found.checks))
    return {check.name: check.found for check in found.checks if check.result == FAILED}


@pytest.mark.parametrize("name", EVIDENCES)
def test_a_release_is_verified(name, releases):
    found = verify_release(releases / name, signer=SIGNER)
    assert found.verified, found.checks
    assert not found.notes or not any(note.startswith(LOUD) for note in found.notes)
    assert found.claimed >= state(EVIDENCES[name]).epsilon * (1 - 1e-9)


@pytest.mark.parametrize("name", EVIDENCES)
def test_a_statement_is_what_its_file_says(name, releases):
    values = json.loads((releases / name / STATEMENT).read_text())
    statement = Statement.from_json(values)
    assert {**statement.to_json(), CHECKSUM: values[CHECKSUM]} == values
    assert state(read_evidence(releases / name)).to_json() == statement.to_json()


@pytest.mark.parametrize("name", ["turns", "masked", "words", "start", "chosen", "adaptive", "correlated"])
def test_any_leaf_of_the_statement_that_is_changed_fails(name, release, quick):
    folder = release(name)
    values = json.loads((folder / STATEMENT).read_text())
    for path in leaves({key: value for key, value in values.items() if key != CHECKSUM}):
        write_json(folder / STATEMENT, changed(values, path, other))
        sign_folder(folder, KEY, RELEASE)
        assert str(path[0]) in failed(folder)["statement"], path


def test_an_epsilon_that_is_claimed_too_large_is_a_note(release):
    folder = release()
    values = json.loads((folder / STATEMENT).read_text())
    write_json(folder / STATEMENT, {**values, "epsilon": values["epsilon"] * 2})
    sign_folder(folder, KEY, RELEASE)
    found = verify_release(folder)
    assert found.verified
    assert any("epsilon is stated as" in note for note in found.notes)


def test_what_is_left_out_of_a_statement_or_added_to_it_fails(release, quick):
    folder = release("masked")
    values = json.loads((folder / STATEMENT).read_text())
    for name in {*values} - {CHECKSUM}:
        write_json(folder / STATEMENT, {key: value for key, value in values.items() if key != name})
        sign_folder(folder, KEY, RELEASE)
        assert name in failed(folder)["statement"]
    write_json(folder / STATEMENT, {**values, "audited_by": "everybody"})
    sign_folder(folder, KEY, RELEASE)
    assert "audited_by" in failed(folder)["statement"]


@pytest.mark.parametrize("name", ["turns", "words", "chosen"])
def test_any_leaf_of_the_ledger_that_is_changed_fails(name, release, quick):
    folder = release(name)
    lines = [parse_json(line) for line in (folder / LEDGER).read_bytes().splitlines()]
    for path in leaves(lines):
        if path[-1] == "check":
            continue
        write_lines(folder / LEDGER, changed(lines, path, other))
        sign_folder(folder, KEY, RELEASE)
        assert failed(folder), path


def test_any_leaf_of_the_recipe_that_is_changed_fails(release, quick):
    folder = release()
    values = tomllib.loads((folder / RECIPE).read_text())
    tried = 0
    for path in leaves(values):
        try:
            recipe = Recipe.from_dict(changed(values, path, other))
        except SottoError:
            continue
        tried += 1
        (folder / RECIPE).write_text(recipe.to_toml())
        sign_folder(folder, KEY, RELEASE)
        assert failed(folder), path
    assert tried > 20


def test_any_leaf_of_record_and_card_that_is_changed_fails(release, quick):
    folder = release()
    lines = [parse_json(line) for line in (folder / RECORD).read_bytes().splitlines()]
    for path in leaves(lines):
        write_lines(folder / RECORD, changed(lines, path, other))
        sign_folder(folder, KEY, RELEASE)
        assert "record.jsonl" in failed(folder)["model"], path
    write_lines(folder / RECORD, lines)
    card = json.loads((folder / CARD).read_text())
    for path in leaves(card):
        if path != (CHECKSUM,):
            write_json(folder / CARD, changed(card, path, other))
            sign_folder(folder, KEY, RELEASE)
            assert "card.json" in failed(folder)["model"], path


@pytest.mark.parametrize("line", range(0, 60, 3))
def test_a_readme_that_is_edited_is_named(line, release, quick):
    folder = release()
    lines = (folder / README).read_text().split("\n")
    lines[line] += " This model is perfectly safe."
    (folder / README).write_text("\n".join(lines))
    sign_folder(folder, KEY, RELEASE)
    found = verify_release(folder)
    assert [note for note in found.notes if note.startswith(f"{LOUD}: {README} was edited")]


def test_the_readme_of_another_version_is_not_compared(release):
    folder = release()
    evidence = read_evidence(folder)
    software = {**evidence.facts.software, "sottovoce-evidence": "9.9"}
    state_again(folder, replace(evidence, facts=replace(evidence.facts, software=software)))
    (folder / README).write_text("hello")
    sign_folder(folder, KEY, RELEASE)
    found = verify_release(folder)
    assert found.verified
    assert any("'9.9'" in note and README in note for note in found.notes)


@pytest.mark.parametrize("name", ["turns", "masked", "words", "start"])
def test_any_leaf_of_the_facts_that_is_changed_alone_fails_by_its_name(name, release, quick):
    folder = release(name)
    values = json.loads((folder / FACTS).read_text())
    for path in leaves({key: value for key, value in values.items() if key != CHECKSUM}):
        write_json(folder / FACTS, changed(values, path, other))
        sign_folder(folder, KEY, RELEASE)
        assert failed(folder), path


def test_facts_that_nobody_can_check_are_listed(release, quick):
    """A fact that is changed with all that follows from it: either something contradicts it, or it is listed."""
    uncontradicted = set()
    for name in ("turns", "masked", "words", "start", "chosen"):
        evidence = read_evidence(release(name))
        values = evidence.facts.to_json()
        for path in leaves(values):
            folder = release(name)
            try:
                facts = RunFacts.from_json(changed(values, path, other))
                state_again(folder, replace(evidence, facts=facts))
            except (SottoError, ValueError, TypeError, KeyError):
                continue
            if verify_release(folder).verified:
                uncontradicted.add(path[0])
    assert uncontradicted <= {*OWNERS_WORD, "chosen"}
    assert {"vocabulary", "epsilon_store", "software"} <= uncontradicted
    assert {each.name for each in fields(RunFacts)} >= set(OWNERS_WORD)
    assert not uncontradicted & {"rounds_done", "rounds_planned", "files"}
    assert any("epsilon store" in line for line in NOT_PROVED)


def _lie(evidence: Evidence, recipe: dict | None = None, **facts: object) -> Evidence:
    changed = evidence.recipe.replace(**(recipe or {}))
    return replace(evidence, recipe=changed, facts=replace(evidence.facts, **facts))


def _charging(evidence: Evidence, share: int) -> Evidence:
    return replace(evidence, charged=[(event, count // share) for event, count in evidence.charged])


NAMED_LIES = {
    "half of the noise is described": lambda e: _lie(e, {"privacy": {"noise_multiplier": 2.0}}),
    "half of the rounds are charged": lambda e: _charging(e, 2),
    "fewer rounds were planned": lambda e: _lie(e, rounds_planned=3, rounds_done=3),
    "more rounds were done": lambda e: _lie(e, rounds_done=7),
    "another sampler": lambda e: _lie(e, {"privacy": {"sampling": "fixed"}}),
    "a larger population": lambda e: _lie(e, {"privacy": {"users": 500_000}}),
    "a smaller cohort": lambda e: _lie(e, {"privacy": {"cohort": 5.0}}),
    "no clip": lambda e: _lie(e, {"privacy": {"clipping": "none"}}),
    "no bound": lambda e: _lie(e, {"privacy": {"estimator": "true_average"}}),
    "an experiment": lambda e: _lie(e, {"privacy": {"mode": "experiment"}}),
    "no noise": lambda e: _lie(e, {"privacy": {"mode": "none"}}),
    "secrets from the seed": lambda e: _lie(e, {"privacy": {"secrets": "seeded"}}),
    "examples are drawn, and users charged for a Poisson cohort": lambda e: _lie(
        e, {"run": {"algorithm": "els"}, "local": {"tokens": 20}, "privacy": {"examples_per_user": 100}}
    ),
    "a start that is hidden": lambda e: _lie(e, {"model": {"initial": "secret"}}),
    "a start of which nothing is known": lambda e: _lie(e, start=StartFacts(HASH, "unknown")),
    "a private start of no run": lambda e: _lie(e, start=StartFacts(HASH, "private")),
    "words that cost less": lambda e: replace(
        EVIDENCES["words"],
        facts=replace(
            EVIDENCES["words"].facts,
            vocabulary=VocabularyFacts(HASH, "private", epsilon=1e-4, delta=1e-7),
        ),
    ),
    "fewer devices than a sum is over": lambda e: replace(
        EVIDENCES["masked"], facts=replace(EVIDENCES["masked"].facts, registered=Registered(1))
    ),
    "a server that saw several runs": lambda e: replace(
        EVIDENCES["masked"],
        charged=[(BestOfRuns(1000.0, "geometric", tuple(EVIDENCES["masked"].charged)), 1)],
        facts=replace(EVIDENCES["masked"].facts, chosen=EVIDENCES["chosen"].facts.chosen),
    ),
    "it never began": lambda e: _lie(e, starts=0),
    "a name that is a page": lambda e: _lie(
        e, published=replace(e.facts.published, name="x\n\n**Correction: ε = 0.01.** <!--")
    ),
    "text of all users is pooled": lambda e: _lie(e, {"run": {"algorithm": "central"}}),
    "examples are drawn, and users charged": lambda e: _lie(e, {"run": {"algorithm": "els"}}),
    "noise of devices in a sum over one honest device": lambda e: _lie(
        e, {"federation": {"noise": "devices", "survivors": 8, "colluding": 7, "server_noise_multiplier": 0.8}}
    ),
    "weights that no total is declared for": lambda e: _lie(e, {"privacy": {"weight_cap": 9.0}}),
    "words of users that cost nothing": lambda e: _lie(e, vocabulary=replace(e.facts.vocabulary, source="private")),
    "a start that cost its people nothing": lambda e: _lie(
        e, start=StartFacts(HASH, "private", charged=tuple(EVIDENCES["words"].charged))
    ),
    "a store that was charged less": lambda e: _lie(e, epsilon_store=0.1),
    "an audit that failed": lambda e: _lie(e, audits=(AuditOutcome("rounds", "failed"),)),
    "an audit that contradicts": lambda e: _lie(e, audits=(AuditOutcome("rounds", "passed", claimed=1.0, shown=2.0),)),
    "held-out people are private, and measured exactly": lambda e: _lie(e, held_out="private"),
    "a choice that was not paid for": lambda e: _lie(e, chosen=EVIDENCES["chosen"].facts.chosen),
}


@pytest.mark.parametrize("lie", NAMED_LIES)
def test_a_lie_with_all_that_follows_from_it_fails(lie, tmp_path, quick):
    evidence = NAMED_LIES[lie](EVIDENCES["poisson"])
    assert failed(write(tmp_path / "lie", evidence))


def test_own_code_is_not_checked(tmp_path):
    privacy = {"clipping": "mine", "estimator": "ours"}
    evidence = EVIDENCES["poisson"]
    own = replace(evidence, recipe=PLAIN.replace(privacy=privacy), facts=replace(evidence.facts, own_sensitivity=0.01))
    values = own.recipe.to_dict()
    assert values["privacy"]["clipping"] == "mine"
    found = verify_release(_write_own(tmp_path / "own", own))
    assert not found.verified
    assert [check.name for check in found.checks if check.result == "not checked"] == [OWN_CODE]
    assert not [check for check in found.checks if check.result == FAILED]


def _write_own(folder: Path, evidence: Evidence) -> Path:
    """`write` asks the mechanism of the recipe, which knows no blocks of the owner's own."""
    write(folder, EVIDENCES["poisson"])
    (folder / RECIPE).write_text(evidence.recipe.to_toml())
    (folder / RECORD).write_bytes(b"")
    from sottovoce_evidence.files import sha256_of
    from sottovoce_evidence.release import DERIVED

    write_lines(folder / RECORD, [{"round": number, "epsilon": 1.0} for number in range(7)])
    files = {path.name: sha256_of(path) for path in folder.iterdir() if path.name not in DERIVED}
    state_again(folder, replace(evidence, facts=replace(evidence.facts, files=files)))
    return folder


def test_files_of_others_and_hostile_files_are_refused(release):
    folder = release()
    (folder / "diary.txt").write_text("private")
    sign_folder(folder, KEY, RELEASE)
    assert "diary.txt" in failed(folder)["files"]
    folder = release()
    (folder / WEIGHTS).write_bytes(b"\xff" * 100)
    sign_folder(folder, KEY, RELEASE)
    assert "header" in failed(folder)["model"]
    folder = release()
    (folder / RECIPE).unlink()
    (folder / RECIPE).symlink_to("/etc/passwd")
    found = verify_release(folder)
    assert not found.verified
    assert {check.name: check.result for check in found.checks}["statement"] == "not checked"


def test_the_signer_that_is_named_must_have_signed(release):
    folder = release()
    assert failed(folder) == {}
    found = verify_release(folder, signer="SHA256:" + "a" * 43)
    assert not found.verified
    assert found.signer == SIGNER
    for name in ("SHA256SUMS", "SHA256SUMS.sig", "signer.pub"):
        (folder / name).unlink()
    assert not verify_release(folder).verified
    assert verify_release(folder, unsigned=True).verified
    with pytest.raises(SottoError, match="came with the release"):
        verify_release(release(), signer=str(folder / "signer.pub"))


def test_the_command_ends_with_a_status_for_each_outcome(release, tmp_path, capsys):
    assert main([str(release()), "--signer", SIGNER]) == 0
    out = capsys.readouterr().out
    assert "no check failed" in out
    assert "claimed by the statement" in out
    assert main([str(release()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    folder = release()
    (folder / README).write_text("perfectly safe")
    sign_folder(folder, KEY, RELEASE)
    assert main([str(folder)]) == 0
    assert "\nThis run satisfies" in capsys.readouterr().out
    (folder / WEIGHTS).write_bytes(b"")
    assert main([str(folder)]) == 1
    assert "FAILED: files" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
@pytest.mark.slow
def test_a_reader_who_leaves_and_a_terminal_without_greek_are_no_errors(releases):
    command = f"{sys.executable} -m sottovoce_evidence.main {releases / 'turns'}"
    for text, environment in ((f"{command} | head -c 1", {}), (command, {"PYTHONIOENCODING": "ascii"})):
        ended = subprocess.run(text, shell=True, capture_output=True, env={**os.environ, **environment})
        assert b"Traceback" not in ended.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, facts=replace(e.facts, clipped_parts=10**12)),
        lambda e: replace(e, recipe=e.recipe.replace(run={"rounds": 10**12})),
        lambda e: replace(e, recipe=e.recipe.replace(privacy={"noise_coefficients": (1.0,) * 10**5})),
    ],
    ids=["parts", "rounds", "numbers"],
)
def test_a_release_that_asks_for_endless_work_is_refused_at_once(change, release):
    folder = release("correlated")
    evidence = change(read_evidence(folder))
    write_json(folder / FACTS, evidence.facts.to_json())
    (folder / RECIPE).write_text(evidence.recipe.to_toml())
    sign_folder(folder, KEY, RELEASE)
    assert re.search("takes too long|at most", failed(folder)["statement"])


@pytest.mark.timeout(60)
def test_a_name_that_is_there_twice_among_many_is_found_at_once():
    names = ",".join(f'"{number}":1' for number in range(200_000))
    with pytest.raises(ValueError, match="'z' is there twice"):
        parse_json(f'{{{names},"z":1,"z":1}}')


def test_a_record_that_leaves_out_its_last_round_fails(release):
    folder = release()
    lines = [parse_json(line) for line in (folder / RECORD).read_bytes().splitlines()][:-1]
    write_lines(folder / RECORD, [{**line, **({"epsilon": 1e-9} if line["round"] else {})} for line in lines])
    sign_folder(folder, KEY, RELEASE)
    assert "ends with round" in failed(folder)["record"]


def test_facts_that_are_no_facts_are_a_failed_check(release):
    folder = release()
    for name in (FACTS, STATEMENT):
        write_json(folder / name, {**json.loads((folder / name).read_text()), "software": []})
    sign_folder(folder, KEY, RELEASE)
    assert "no table of texts" in failed(folder)["statement"]
