"""Every attack on a release that its folder can show is a failed check; what cannot be read is one too."""

from __future__ import annotations

import base64
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_statement

from sottovoce.accounting import SampledGaussian, SampledSilos, SampledSkellam, epsilon
from sottovoce.accounting.events import CorrelatedGaussian
from sottovoce.accounting.matrices import Identity, Participation, Tree
from sottovoce.commands import verify
from sottovoce.commands.verify import ABSENT, FAILED, PASSED, verify_release
from sottovoce.errors import SottoError
from sottovoce.files import pretty, sealed, sha256_of
from sottovoce.reporting.adversaries import FederationFacts
from sottovoce.reporting.statement import Adaptive, Correlation, DeviceNoiseFacts, Statement
from sottovoce.runs import signature
from sottovoce.runs.ledger import write_release

ROUND = SampledGaussian(0.8125, "poisson", 0.01)
CHARGED = ((ROUND, 60),)
OURS = epsilon(CHARGED, 1e-6)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("owner", "thief"):
        signature._make_key(folder / name)
    return {name: signature.load_key(folder / name) for name in ("owner", "thief")}


def write(folder: Path, statement: Statement, key) -> None:
    """A release as `sotto release` writes it, around a model of four bytes."""
    folder.mkdir(exist_ok=True)
    (folder / "weights.safetensors").write_bytes(b"1234")
    (folder / "vocabulary.txt").write_bytes(b"a\n")
    files = {name: sha256_of(folder / name) for name in ("weights.safetensors", "vocabulary.txt")}
    written = sealed(replace(statement, files=files).to_json())
    (folder / "privacy.json").write_bytes(pretty(written))
    (folder / "card.json").write_bytes(pretty(sealed({"name": "a model", "privacy": written})))
    write_release(folder / "ledger.jsonl", statement.run, statement.charged)
    if key is not None:
        signature.sign_folder(folder, key, signature.RELEASE)


STATEMENT = make_statement(charged=CHARGED, epsilon=OURS, run="b1946ac9")
# The standard deviation as the mechanism has it: sensitivity times multiplier.
STATEMENT = replace(STATEMENT, mechanism=replace(STATEMENT.mechanism, noise_std=0.075 * 0.8125))


@pytest.fixture
def release(tmp_path, keys):
    write(tmp_path / "release", STATEMENT, keys["owner"])
    return tmp_path / "release"


def results(found):
    return {check.name: check.result for check in found.checks}


def test_a_release_as_it_was_written_passes_and_has_three_epsilons(release, keys):
    owner = signature.fingerprint(keys["owner"].public_key())
    found = verify_release(release, signer=owner)
    assert found.verified
    assert set(results(found).values()) == {PASSED}
    assert found.signer == owner
    ours, theirs, renyi = (one.epsilon for one in found.epsilons)
    assert ours == OURS == found.claimed
    assert theirs == pytest.approx(OURS, rel=0.01)
    assert OURS < renyi < 2 * OURS
    assert found.not_proved
    json.dumps(found.to_json(), allow_nan=False)


def link(path: Path) -> None:
    """The same contents, elsewhere."""
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def store_ledger(folder: Path) -> None:
    (folder / "ledger.jsonl").write_bytes(b'{"run": "x", "count": 1}\n')


def other_card(folder: Path) -> None:
    (folder / "card.json").write_bytes(pretty(sealed({"privacy": {}})))


def swap_ledger(folder: Path) -> None:
    write_release(folder / "ledger.jsonl", "b1946ac9", [(SampledGaussian(2.0, "poisson", 0.01), 60)])


ATTACKS = {
    "weights": (lambda f: (f / "weights.safetensors").write_bytes(b"1235"), {"files", "statement"}),
    "swapped ledger": (swap_ledger, {"files", "ledger"}),
    "added": (lambda f: (f / "pytorch_model.bin").write_bytes(b""), {"files"}),
    "removed statement": (lambda f: (f / "privacy.json").unlink(), {"files", "statement"}),
    "removed ledger": (lambda f: (f / "ledger.jsonl").unlink(), {"files", "ledger"}),
    "removed card": (lambda f: (f / "card.json").unlink(), {"files", "statement"}),
    "card of another": (other_card, {"files", "statement"}),
    "torn statement": (lambda f: (f / "privacy.json").write_bytes(b'{"private": tr'), {"files", "statement"}),
    "deep statement": (lambda f: (f / "privacy.json").write_bytes(b"[" * 10**5), {"files", "statement"}),
    "ledger of a store": (store_ledger, {"files", "ledger"}),
    "linked ledger": (lambda f: link(f / "ledger.jsonl"), {"files"}),
    "no signature": (lambda f: (f / signature.SIGNATURE).unlink(), {"signature"}),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_change_after_the_signature_fails(release, attack, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: None)
    change, failed = ATTACKS[attack]
    change(release)
    found = verify_release(release)
    assert not found.verified
    assert {name for name, result in results(found).items() if result == FAILED} >= failed


def mechanism(**changes):
    return replace(STATEMENT, mechanism=replace(STATEMENT.mechanism, **changes))


SKELLAM = SampledSkellam(0.8125, "poisson", 0.01, 2.0**26)
DEVICES = DeviceNoiseFacts(0.5, survivors=10, colluding=2, participations=9, steps=2.0**26)
NOISED = replace(
    STATEMENT,
    charged=((SKELLAM, 60),),
    epsilon=epsilon([(SKELLAM, 60)], 1e-6),
    epsilon_server=epsilon(DEVICES.against_server, 1e-6),
    mechanism=replace(STATEMENT.mechanism, devices=DEVICES),
)


def declared(**changes):
    return replace(NOISED, mechanism=replace(NOISED.mechanism, devices=replace(DEVICES, **changes)))


def test_both_epsilons_of_device_noise_are_computed_again(tmp_path, keys):
    write(tmp_path / "release", NOISED, keys["owner"])
    found = verify_release(tmp_path / "release")
    assert found.verified, found
    assert results(found)["epsilon against the server"] == PASSED
    ours, theirs, renyi = (one.epsilon for one in found.epsilons)
    assert ours == NOISED.epsilon < renyi
    assert theirs == pytest.approx(ours, rel=0.01)


LIES_OF_DEVICES = {
    "an ε below that of the noise": (replace(NOISED, epsilon=0.9 * NOISED.epsilon), "epsilon"),
    "an ε against the server that is too small": (replace(NOISED, epsilon_server=1.0), "epsilon against the server"),
    "none against the server": (replace(NOISED, epsilon_server=None), "epsilon against the server"),
    "less noise": (declared(noise_multiplier=0.4), "epsilon against the server"),
    "more rounds of a user": (declared(participations=10), "epsilon against the server"),
    "more noise of devices than there is": (declared(noise_multiplier=0.9), "ledger"),
    "nobody honest": (declared(colluding=10), "ledger"),
    "another grid": (declared(steps=2.0**27), "ledger"),
}


QUICK_LIES = {"an ε against the server that is too small", "nobody honest"}


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=[] if lie in QUICK_LIES else [pytest.mark.slow]) for lie in LIES_OF_DEVICES]
)
def test_a_lie_about_noise_of_devices_fails(tmp_path, keys, lie):
    statement, check = LIES_OF_DEVICES[lie]
    write(tmp_path / "release", statement, keys["owner"])
    found = verify_release(tmp_path / "release")
    assert {name for name, result in results(found).items() if result == FAILED} == {check}, found


def test_charges_of_gaussian_noise_are_not_those_of_devices(tmp_path, keys):
    write(tmp_path / "release", replace(NOISED, charged=CHARGED, epsilon=OURS), keys["owner"])
    assert results(verify_release(tmp_path / "release"))["ledger"] == FAILED


LIES = {
    "an ε below the ledger's": (replace(STATEMENT, epsilon=0.9 * OURS), "epsilon"),
    "no guarantee": (replace(STATEMENT, private=False), "statement"),
    "seeded noise": (replace(STATEMENT, secrets="seeded"), "statement"),
    "less noise than charged": (mechanism(noise_multiplier=0.4), "ledger"),
    "noise that is no number": (mechanism(noise_multiplier=math.nan), "ledger"),
    "a smaller standard deviation": (mechanism(noise_std=0.03), "ledger"),
    "a higher rate than charged": (
        replace(STATEMENT, declared=replace(STATEMENT.declared, user_rate=0.05)),
        "ledger",
    ),
    "rounds that were not charged": (replace(STATEMENT, rounds_done=61), "ledger"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_that_its_owner_signed_fails_too(tmp_path, keys, lie, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: None)
    statement, check = LIES[lie]
    write(tmp_path / "release", statement, keys["owner"])
    found = verify_release(tmp_path / "release")
    assert {name for name, result in results(found).items() if result == FAILED} == {check}, found


def test_a_claim_that_dp_accounting_does_not_confirm_fails(release, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: 1.1 * OURS)
    found = verify_release(release)
    assert results(found)["epsilon"] == FAILED
    assert "dp-accounting computes" in found.checks[-1].found


def test_the_file_of_a_public_key_names_the_signer_unless_it_came_with_the_release(release, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: None)
    (tmp_path / "owner.pub").write_bytes((release / "signer.pub").read_bytes())
    assert results(verify_release(release, signer=str(tmp_path / "owner.pub")))["signature"] == PASSED
    for file, words in (
        (release / "signer.pub", "came with the release"),
        (tmp_path / "none.pub", "or a file with a public key"),
        (Path(__file__), "is not a public key"),
    ):
        with pytest.raises(SottoError, match=words):
            verify_release(release, signer=str(file))
    (tmp_path / "owner.pub").write_bytes(b"ssh-ed25519 " + base64.b64encode(b"another key"))
    assert results(verify_release(release, signer=str(tmp_path / "owner.pub")))["signature"] == FAILED


def test_another_signer_or_none_fails_where_one_is_named(release, keys, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: None)
    owner, thief = (signature.fingerprint(keys[name].public_key()) for name in ("owner", "thief"))
    signature.sign_folder(release, keys["thief"], signature.RELEASE)
    assert verify_release(release).signer == thief
    assert any("who the signer is" in one for one in verify_release(release).not_proved)
    assert not any("who the signer is" in one for one in verify_release(release, signer=thief).not_proved)
    found = verify_release(release, signer=owner)
    assert any("who the signer is" in one for one in found.not_proved)
    assert [check.found for check in found.checks if check.result == FAILED] == [
        f"it was signed by {thief}, not by {owner}"
    ]
    for name in (signature.MANIFEST, signature.SIGNATURE, signature.SIGNER):  # stripped
        (release / name).unlink()
    unsigned = verify_release(release)
    assert unsigned.verified
    assert unsigned.signer is None
    assert (results(unsigned)["files"], results(unsigned)["signature"]) == (ABSENT, ABSENT)
    assert not verify_release(release, signer=owner).verified


def test_what_is_no_release_is_bad_input(tmp_path, release):
    for path in (tmp_path, tmp_path / "nowhere", release / "card.json"):
        with pytest.raises(SottoError, match="is not a release"):
            verify_release(path)
    with pytest.raises(SottoError, match="must be a fingerprint"):
        verify_release(release, signer="my key")


def test_a_large_delta_and_audits_that_were_not_run_are_noted(tmp_path, keys, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta: None)
    write(tmp_path / "release", replace(STATEMENT, delta=1e-3), None)
    (tmp_path / "release" / ".gitattributes").write_bytes(b"")
    notes = " ".join(verify_release(tmp_path / "release").notes)
    assert "it is too large" in notes
    assert "not signed: .gitattributes" in notes


@pytest.mark.slow
def test_neither_jax_nor_the_training_code_is_imported(release):
    """In a process of its own, by the command."""
    code = (
        "import sys; from sottovoce.cli.main import main\n"
        "try: main(['verify', sys.argv[1], '--json'])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "rooms = ('training', 'local', 'models', 'privacy', 'build', 'kernels', 'federation', 'multiprocess')\n"
        "names = ('jax', 'jaxlib', 'equinox', 'optax', *(f'sottovoce.{room}' for room in rooms))\n"
        "found = [name for name in names if name in sys.modules]\n"
        "assert not found, found"
    )
    shutil.copytree(release, release.parent / "copy")
    done = subprocess.run(
        [sys.executable, "-c", code, str(release.parent / "copy")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verified"] is True


@pytest.mark.parametrize(
    ("lie", "fault"),
    [
        ({}, None),
        ({"matrix": Identity()}, "it charges a run of noise independent"),
        ({"noise_multiplier": 2.0}, "it charges a run of noise multiplier 2"),
        ({"participation": Participation(9, 3, 2)}, "a run of fewer rounds than the 12"),
        ({"participation": Participation(12, 3, 1)}, "a run of sensitivity"),
        (None, "correlated in its charges or in the statement, and not in both"),
    ],
)
def test_the_charge_of_correlated_noise_is_the_one_described(lie, fault):
    true = CorrelatedGaussian(1.5, Tree(), Participation(12, 3, 2))
    mechanism = replace(make_statement().mechanism, correlation=Correlation.of(true), noise_multiplier=1.5)
    statement = make_statement(mechanism=mechanism, rounds_done=12)
    spent = [] if lie is None else [(replace(true, **lie), 1)]
    found = list(verify._correlation_faults(statement, spent))
    assert found == [] if fault is None else any(fault in one for one in found)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (SampledSilos(1.5, 0.01, 3), None),
        (SampledSilos(1.5, 0.01, 2), "it charges 2 silos of a person, and the statement declares 3"),
        (SampledGaussian(1.5, "poisson", 0.01), "it charges 1 silos of a person, and the statement declares 3"),
        (SampledSkellam(1.5, "poisson", 0.01, 2.0**26, 3), None),
        (SampledSkellam(1.5, "poisson", 0.01, 2.0**26), "it charges 1 silos of a person, and the statement declares 3"),
    ],
)
def test_a_person_in_several_silos_is_charged_for_as_many_as_are_declared(event, fault):
    statement = make_statement()
    statement = replace(statement, declared=replace(statement.declared, silos=3))
    assert list(verify._silo_faults(statement, [(event, 5)])) == ([] if fault is None else [fault])


def test_late_answers_are_for_rounds_whose_clip_norm_was_known():
    late = make_statement(federation=FederationFacts(5, staleness=2), rounds_planned=12)
    assert list(verify._late_faults(late)) == []
    assert list(verify._late_faults(make_statement())) == []
    adapting = replace(late, mechanism=replace(late.mechanism, adaptive=Adaptive(0.5, 0.2, 5.0, 1)))
    assert "before it was known" in next(verify._late_faults(adapting))
    assert "up to 2 rounds late" in next(verify._late_faults(replace(late, rounds_planned=2)))
