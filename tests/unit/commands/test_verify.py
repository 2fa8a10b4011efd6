"""Every attack on a release that its folder can show is a failed check; what cannot be read is one too."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_statement
from safetensors.numpy import save

from sottovoce.audit.registry import Registry
from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.commands import verify
from sottovoce.commands.prepare import PrivateVocabulary
from sottovoce.commands.verify import ABSENT, FAILED, OWN_CODE, PASSED, UNCHECKED, verify_release
from sottovoce.data.prompts import prompts_for
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.private_accuracy import PrivateAccuracy, Terms, loss_bound
from sottovoce.privacy.clipping import CLIPS, FlatClip, joint_norm
from sottovoce.reporting.adversaries import FederationFacts
from sottovoce.reporting.derived import record_faults
from sottovoce.reporting.model_card import Described, model_card
from sottovoce.reporting.statement import (
    EXACT_ACCURACY,
    FORM,
    NOT_COVERED,
    REHEARSED,
    RELEASED,
    STARTED_FROM,
    Charges,
    Correlation,
    RunFacts,
    Statement,
    VocabularyFacts,
)
from sottovoce.reporting.statement import REGISTRY as LISTED
from sottovoce.reporting.statement import make_statement as statement_of
from sottovoce.reporting.statement_text import prose
from sottovoce.runs.card import Card
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.exported import GRAPHS
from sottovoce_evidence import accounting, signature
from sottovoce_evidence.accounting import SampledGaussian, SampledSilos, SampledSkellam, ThresholdedHistogram, epsilon
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.accounting.matrices import Identity, Participation, Tree
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import INFINITY, pretty, sealed, sha256_of
from sottovoce_evidence.hash_chain import chained
from sottovoce_evidence.ledger import write_release
from sottovoce_evidence.recipe import Recipe

ROUND = SampledGaussian(0.8125, "poisson", 0.01)
CHARGED = ((ROUND, 60),)
OURS = epsilon(CHARGED, 1e-6)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("owner", "thief"):
        signature._make_key(folder / name)
    return {name: signature.load_key(folder / name) for name in ("owner", "thief")}


WORDS = Vocabulary(("<bos>", "<eos>", "<unk>", "a"))
PUBLIC_WORDS = VocabularyFacts.of(WORDS.fingerprint, {"source": "public"})
CARD = Card(
    name="a model", code="lstm of the recipe", kind="lstm", model={"kind": "lstm"}, trained_on="people", parameters=12,
    trained_parameters=12, vocabulary=4, rounds=60,
).to_json()  # fmt: skip
PLANNED = resolve(
    Recipe().replace(
        privacy={"users": 20000, "cohort": 200.0, "noise_multiplier": 0.8125, "delta": 1e-6, "accountant": "pld"},
        run={"rounds": 60},
    )
)


def stated(recipe: Recipe, **about: Any) -> Statement:
    """What a run of this recipe states after 60 of 60 rounds."""
    mechanism = build_mechanism(recipe, ["one"])
    spent, facts = mechanism.events(60), RunFacts("b1946ac9", 60, 60, PUBLIC_WORDS, **about)
    return statement_of(recipe, mechanism, "pld", Charges(spent, spent, store=spent), facts)


def write_model(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(save({"table": np.zeros((4, 3), np.float32)}))
    (folder / "vocabulary.txt").write_bytes(WORDS.contents)


def write(
    folder: Path,
    values: dict[str, Any],
    key: Any,
    recipe: Recipe = PLANNED,
    *,
    after: Callable[[Path], object] | None = None,
    **card: Any,
) -> None:
    """A release around a model of twelve numbers, with these facts; sentences, card and ledger follow from them."""
    folder.mkdir()
    write_model(folder)
    values = {name: value for name, value in values.items() if value is not None}
    values.setdefault("files", {name: sha256_of(folder / name) for name in ("weights.safetensors", WORDS.file_name)})
    statement = Statement.from_json({**values, "rounds_done": int(values["rounds_done"])})
    values.setdefault("prose", prose(statement))
    written = sealed(values)
    (folder / "privacy.json").write_bytes(pretty(written))
    card = {**CARD, "rounds": values["rounds_done"], **card}
    (folder / "card.json").write_bytes(pretty(sealed({**card, "privacy": written})))
    lines = values["charged"]
    header = {"ledger": "release", "run": statement.run, "charges": len(lines)}
    (folder / "ledger.jsonl").write_bytes(chained([header, *lines]))
    (folder / "training.toml").write_text(recipe.to_toml())
    signer = signature.fingerprint(key.public_key())
    (prompt,) = prompts_for(WORDS, listed=True)
    told, model = Card.from_json({**card, "rounds": statement.rounds_done}), card["model"] or {}
    about = Described("a model", told, statement, model, "apache-2.0", signer, prompt=prompt)
    (folder / "README.md").write_text(model_card(about))
    if after is not None:
        after(folder)
    signature.sign_folder(folder, key, signature.RELEASE)


STATEMENT = stated(PLANNED)


@pytest.fixture
def release(tmp_path, keys):
    write(tmp_path / "release", STATEMENT.to_json(), keys["owner"])
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
    "weights": (lambda f: (f / "weights.safetensors").write_bytes(b"1235"), {"files", "statement", "model"}),
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
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    change, failed = ATTACKS[attack]
    change(release)
    found = verify_release(release)
    assert not found.verified
    assert {name for name, result in results(found).items() if result == FAILED} >= failed


def mechanism(**changes):
    return replace(STATEMENT, mechanism=replace(STATEMENT.mechanism, **changes))


WITH_NOISE_OF_DEVICES = resolve(
    PLANNED.replace(
        federation={
            "aggregation": "masked", "noise": "devices", "survivors": 10, "colluding": 2,
            "server_noise_multiplier": 0.5, "participations": 9,
        }
    )
)  # fmt: skip
NOISED = stated(WITH_NOISE_OF_DEVICES)


def declared(**changes):
    return replace(NOISED, mechanism=replace(NOISED.mechanism, devices=replace(NOISED.mechanism.devices, **changes)))


def test_both_epsilons_of_device_noise_are_computed_again(tmp_path, keys):
    write(tmp_path / "release", NOISED.to_json(), keys["owner"], WITH_NOISE_OF_DEVICES)
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


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES_OF_DEVICES)
def test_a_lie_about_noise_of_devices_fails(tmp_path, keys, lie):
    statement, check = LIES_OF_DEVICES[lie]
    write(tmp_path / "release", statement.to_json(), keys["owner"], WITH_NOISE_OF_DEVICES)
    found = verify_release(tmp_path / "release")
    assert results(found)[check] == FAILED, found


@pytest.mark.slow
def test_charges_of_gaussian_noise_are_not_those_of_devices(tmp_path, keys):
    lie = replace(NOISED, charged=CHARGED, epsilon=OURS)
    write(tmp_path / "release", lie.to_json(), keys["owner"], WITH_NOISE_OF_DEVICES)
    assert results(verify_release(tmp_path / "release"))["ledger"] == FAILED


LIES = {
    "an ε below the ledger's": (replace(STATEMENT, epsilon=0.9 * OURS), "epsilon"),
    "no guarantee": (replace(STATEMENT, private=False), "statement"),
    "seeded noise": (replace(STATEMENT, secrets="seeded"), "statement"),
    "less noise than charged": (mechanism(noise_multiplier=0.4), "ledger"),
    "noise that is no number": (mechanism(noise_multiplier=math.nan), "recipe"),
    "a smaller standard deviation": (mechanism(noise_std=0.03), "recipe"),
    "a higher rate than charged": (
        replace(STATEMENT, declared=replace(STATEMENT.declared, user_rate=0.05)),
        "ledger",
    ),
    "rounds that were not charged": (replace(STATEMENT, rounds_done=61, rounds_planned=61), "ledger"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_that_its_owner_signed_fails_too(tmp_path, keys, lie, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    statement, check = LIES[lie]
    write(tmp_path / "release", statement.to_json(), keys["owner"])
    found = verify_release(tmp_path / "release")
    assert results(found)[check] == FAILED, found


@pytest.mark.parametrize(("replaced", "name"), [(False, "epsilon"), (True, "other epsilons")])
def test_a_claim_that_dp_accounting_does_not_confirm_fails(release, monkeypatch, replaced, name):
    asked = replaced

    def theirs(spent, delta, *, replaced=False):
        return 1.1 * epsilon(spent, delta, replaced=replaced) if replaced == asked else None

    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", theirs)
    found = verify_release(release)
    assert [check.name for check in found.checks if check.result == FAILED] == [name]
    assert "dp-accounting computes" in said(found, name)


def test_the_file_of_a_public_key_names_the_signer_unless_it_came_with_the_release(release, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
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
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    owner, thief = (signature.fingerprint(keys[name].public_key()) for name in ("owner", "thief"))
    signature.sign_folder(release, keys["thief"], signature.RELEASE)
    assert verify_release(release).signer == thief
    assert any("who the signer is" in one for one in verify_release(release).not_proved)
    assert not any("who the signer is" in one for one in verify_release(release, signer=thief).not_proved)
    found = verify_release(release, signer=owner)
    assert any("who the signer is" in one for one in found.not_proved)
    assert said(found, "signature") == f"it was signed by {thief}, not by {owner}"
    for name in (signature.MANIFEST, signature.SIGNATURE, signature.SIGNER):  # stripped
        (release / name).unlink()
    assert results(verify_release(release))["signature"] == FAILED
    unsigned = verify_release(release, unsigned=True)
    assert unsigned.verified
    assert not unsigned.signed
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
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    write(tmp_path / "release", replace(STATEMENT, delta=1e-3).to_json(), keys["owner"])
    (tmp_path / "release" / ".gitattributes").write_bytes(b"")
    for name in (signature.MANIFEST, signature.SIGNATURE, signature.SIGNER):
        (tmp_path / "release" / name).unlink()
    found = verify_release(tmp_path / "release", unsigned=True)
    assert found.notes[0].startswith(verify.LOUD)
    assert "not signed: .gitattributes" in " ".join(found.notes)
    assert "it is too large" in " ".join(check.found for check in found.checks)
    assert not found.verified


@pytest.mark.slow
def test_neither_jax_nor_the_training_code_is_imported(release):
    """In a process of its own, by the command: `docs/how-to/release.md` installs only what it needs."""
    code = (
        "import sys; from sottovoce.cli.main import main\n"
        "try: main(['verify', sys.argv[1], '--json'])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "rooms = ('training', 'local', 'models', 'privacy.mechanism', 'privacy.noise', 'build.mechanism', 'kernels',"
        " 'federation', 'multiprocess')\n"
        "heavy = ('jax', 'jaxlib', 'equinox', 'optax', 'pyarrow', 'wordfreq', 'matplotlib', 'jinja2', 'randomgen')\n"
        "names = (*heavy, 'tomli_w', *(f'sottovoce.{room}' for room in rooms))\n"
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
        (SampledGaussian(1.5, "poisson", 0.01), "it charges 1 silo of a person, and the statement declares 3"),
        (SampledSkellam(1.5, "poisson", 0.01, 2.0**26, 3), None),
        (SampledSkellam(1.5, "poisson", 0.01, 2.0**26), "it charges 1 silo of a person, and the statement declares 3"),
    ],
)
def test_a_person_in_several_silos_is_charged_for_as_many_as_are_declared(event, fault):
    statement = make_statement()
    statement = replace(statement, declared=replace(statement.declared, silos=3))
    assert list(verify._silo_faults(statement, [(event, 5)])) == ([] if fault is None else [fault])


# --- a release with some facts changed ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def look_up():
    """Each ε is computed once."""
    known, compute = {}, accounting.epsilon

    def look_up(spent, delta, accountant="pld", *, replaced=False):
        key = (tuple(spent), delta, accountant, replaced)
        if key not in known:
            known[key] = compute(spent, delta, accountant, replaced=replaced)
        return known[key]

    return look_up


@pytest.fixture
def remembered(look_up, monkeypatch):
    """Each ε is computed once, and dp-accounting is not asked. Tests of one process may come in any order."""
    monkeypatch.setattr(accounting, "epsilon", look_up)
    monkeypatch.setattr(verify, "dp_accounting_epsilon", lambda spent, delta, **_: None)


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """The statement that its run writes."""
    return STATEMENT.to_json()


@pytest.fixture
def whole(tmp_path, keys, facts, remembered):
    """Write a release with some facts changed, and some of its card."""

    def make(
        changed: Mapping[str, Any] | None = None, after: Callable[[Path], object] | None = None, **card: Any
    ) -> Path:
        folder = tmp_path / "release"
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, put(json.loads(json.dumps(facts)), changed or {}), keys["thief"], after=after, **card)
        return folder

    return make


def put(values: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with others at some places: `mechanism.noise_std`."""
    for path, value in changed.items():
        *sections, name = path.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[name] = value
    return values


def test_a_release_of_today_passes_with_its_recipe_and_readme(whole):
    found = verify_release(whole())
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    assert found.signed
    assert {"recipe", "model", "other epsilons", "sentences"} <= set(results(found))


def charges(**changed: Any) -> list[dict[str, Any]]:
    event = {"kind": "sampled-gaussian", "noise_multiplier": 0.8125, "sampling": "poisson", "user_rate": 0.01}
    return [{"event": event | changed, "count": changed.pop("count", 60)}]


COVERED = [{"event": {"kind": "covered", "noise_multiplier": 0.8125}, "count": 60}]
TABLE = [{"who": "the server", "sees": "nothing", "epsilon": 0.1}]
DEVICES_OF = {"devices": 10, "aggregation": "plain", "epsilon_server": 0.1}
OWN_WORDS = "found in the users' own text with ε = 8.0 at δ = 1e-6, which is part of this run's ε"
SHOWN_BY_THE_FOLDER = {
    "covered rounds alone": ({"turns": 1, "epsilon": 0.0, "charged": COVERED}, "ledger"),
    "turns where coins are drawn": ({"turns": 1}, "recipe"),
    "one round of many": ({"charged": [{**charges()[0], "count": 1}], "epsilon": 9.0}, "ledger"),
    "a plan of one round": ({"rounds_done": 1, "rounds_planned": 1}, "recipe"),
    "another relation": ({"relation": "replace-one-user"}, "recipe"),
    "another sampling": ({"sampling": "fixed"}, "recipe"),
    "another unit": ({"unit": "household"}, "recipe"),
    "more people": ({"declared.users": 10**9}, "recipe"),
    "no people": ({"declared.users": -5}, "recipe"),
    "a smaller cohort": ({"declared.cohort": 1.0}, "recipe"),
    "a smaller rate": ({"declared.user_rate": 1e-6}, "recipe"),
    "another weight": ({"declared.total_weight": 1.0}, "recipe"),
    "another δ": ({"delta": 1e-4}, "recipe"),
    "a sensitivity and noise that are tiny": (
        {"mechanism.sensitivity": 2e-9, "mechanism.noise_std": 2e-9},
        "recipe",
    ),
    "another clip": ({"mechanism.clip_norm": 300.0}, "recipe"),
    "noise that is not charged": ({"mechanism.noise_multiplier": 100.0, "mechanism.noise_std": 7.5}, "recipe"),
    "a schedule of the ledger": (
        {"mechanism.noise_schedule": [[1, 1.0], [2, 10.0]], "charged": charges(noise_multiplier=8.125), "epsilon": 0.5},
        "ledger",
    ),
    "no mode": ({"mechanism.mode": "none"}, "recipe"),
    "one user replaced": ({"epsilon_replaced": 1.0}, "other epsilons"),
    "what was spent": ({"epsilon_spent": 0.1}, "other epsilons"),
    "training alone": ({"epsilon_training": 0.1}, "other epsilons"),
    "the total of the store": ({"epsilon_store": 0.1}, "other epsilons"),
    "who took part": ({"epsilon_realised": 0.01}, "sentences"),
    "no ε for one user replaced": ({"epsilon_replaced": None}, "other epsilons"),
    "no ε of training": ({"epsilon_training": None}, "other epsilons"),
    "no charges": ({"charged": []}, "ledger"),
    "no generator of cohorts": ({"sampling_generator": None}, "recipe"),
    "adversaries without devices": ({"adversaries": TABLE}, "other epsilons"),
    "an ε against the server": (
        {"across_devices": True, "federation": DEVICES_OF, "adversaries": TABLE},
        "other epsilons",
    ),
    "prose": ({"prose": "This run satisfies (0.1, 1e-12)-differential privacy for everyone."}, "sentences"),
    "whom it protects": ({"protects": "everyone"}, "sentences"),
    "what is not covered": ({"not_covered": []}, "sentences"),
    "a fact that no statement has": ({"certified": True}, "sentences"),
    "an accountant that there is not": ({"accountant": "PLD, certified: the true cost is a tenth"}, "sentences"),
    "another accountant": ({"accountant": "RDP (dp-accounting 0.6.0)"}, "recipe"),
    "another list of what is released": ({"released": ["the last model"]}, "sentences"),
    "other software": ({"software.certified": "1.0"}, "sentences"),
    "a source of words that there is not": ({"vocabulary.source": "public: checked by a regulator"}, "model"),
    "a version that is a sentence": ({"software.numpy": "2.0, certified"}, "sentences"),
    "too much that is not covered": ({"not_covered": [*NOT_COVERED, "nothing else: all are safe"]}, "sentences"),
    "the same twice": ({"not_covered": [*NOT_COVERED, NOT_COVERED[0]]}, "sentences"),
    "seeded, in other letters": ({"secrets": "Seeded"}, "statement"),
    "a practice": ({"practice": True}, "statement"),
    **{f"form {form}": ({"statement": form}, "statement") for form in (*range(FORM), FORM + 1)},
    "no form": ({"statement": None}, "sentences"),
    "an unknown audit": ({"audits": [{"audit": "auditors", "result": "passed"}]}, "statement"),
    "an audit that passed with less noise": (
        {"audits": [{"audit": "rounds", "result": "passed", "claimed_multiplier": 1.0, "shown_multiplier": 0.5}]},
        "statement",
    ),
    "an audit that passed and shows more": (
        {"audits": [{"audit": "canaries", "result": "passed", "claimed": 1.0, "shown": 50.0}]},
        "statement",
    ),
    "a failed audit": ({"audits": [{"audit": "rounds", "result": "failed"}]}, "statement"),
    "a round that is no number": ({"rounds_done": True}, "statement"),
    "fewer than no charges": ({"charged_again": -3}, "statement"),
    "hashes of other files": ({"files": {"README.md": "0" * 64}}, "model"),
    "a vocabulary that cost more than was charged": (
        {
            "vocabulary.source": OWN_WORDS,
            "vocabulary.private": True,
            "charged": [*charges(), {"event": ThresholdedHistogram(1e6, 1e-30).to_json(), "count": 1}],
        },
        "ledger",
    ),
    "a vocabulary that was charged": ({"vocabulary.private": True}, "ledger"),
}


@pytest.mark.parametrize("lie", SHOWN_BY_THE_FOLDER)
def test_a_lie_that_the_folder_shows_fails(whole, lie):
    changed, check = SHOWN_BY_THE_FOLDER[lie]
    assert results(verify_release(whole(changed)))[check] == FAILED


def test_by_moments_one_user_replaced_has_an_epsilon_or_none(whole):
    recipe = rewrite("training.toml", 'accountant = "pld"', 'accountant = "moments"')
    named = {"accountant": "moments accountant (Abadi et al. 2016, orders 1 to 32)"}
    assert verify_release(whole(named | {"epsilon_replaced": None}, recipe)).verified
    lie = verify_release(whole(named | {"epsilon_replaced": 0.1}, recipe))
    assert said(lie, "other epsilons").startswith("epsilon_replaced = 0.1 is claimed, and it comes to")


def test_words_are_charged_what_they_are_said_to_have_cost(whole):
    changed, _ = SHOWN_BY_THE_FOLDER["a vocabulary that cost more than was charged"]
    fault = said(verify_release(whole(changed)), "ledger")
    assert fault.endswith("for the vocabulary, and the statement says that it cost 8")
    histogram = PrivateVocabulary(8.0, 1e-6).histogram().event()
    changed = {**changed, "charged": [*charges(), {"event": histogram.to_json(), "count": 1}]}
    assert said(verify_release(whole(changed)), "ledger") == "has the statement's charges"


def rewrite(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def named(setting: str, old: str, new: str) -> Callable[[Path], object]:
    return rewrite("training.toml", f'{setting} = "{old}"', f'{setting} = "{new}"')


OWN = {"clipping": ("flat", "keeps every update within the clip norm 15"), "estimator": ("fixed_denominator", "0.075")}


@pytest.mark.parametrize("setting", OWN)
def test_a_block_of_the_owner_s_own_code_is_told_and_the_rest_is_checked(whole, setting):
    shipped, bound = OWN[setting]
    of_owner, recipe = {f"mechanism.{setting}": "of_owner"}, named(setting, shipped, "of_owner")
    found = verify_release(whole(of_owner, recipe))
    assert not found.verified  # it never looks fully checked
    assert {name for name, result in results(found).items() if result != PASSED} == {OWN_CODE}
    (check,) = (check for check in found.checks if check.name == OWN_CODE)
    assert check.result == UNCHECKED
    assert f"privacy.{setting}='of_owner' is of the owner's own code: nothing here shows that" in check.found
    assert bound in check.found
    assert repr(found).endswith("not checked: own code>")
    assert found.epsilons[0].epsilon == OURS
    # What does not follow from that code is compared as ever, and so is what follows from its promise.
    for lie in ({"mechanism.noise_std": 1e-9}, {"declared.cohort": 1.0}, {"epsilon": 0.1}):
        assert FAILED in results(verify_release(whole({**of_owner, **lie}, recipe))).values()
    # Its name stands in both files, or in none.
    assert results(verify_release(whole(of_owner)))["recipe"] == FAILED
    assert results(verify_release(whole({}, recipe)))["recipe"] == FAILED


def test_a_clip_of_the_owner_s_own_code_promises_the_clip_norm_of_the_recipe(whole):
    facts = {"mechanism.clipping": "of_owner", "mechanism.clip_norm": 0.15, "mechanism.sensitivity": 0.00075}
    facts["mechanism.noise_std"] = 0.00075 * 0.8125
    found = verify_release(whole(facts, named("clipping", "flat", "of_owner")))
    assert results(found)["recipe"] == FAILED


def test_a_registered_block_of_own_code_is_asked_and_named(whole, monkeypatch):
    @dataclass(frozen=True)
    class OfOwner(FlatClip):
        pass

    monkeypatch.setitem(CLIPS, "of_owner", OfOwner)
    found = verify_release(whole({"mechanism.clipping": "of_owner"}, named("clipping", "flat", "of_owner")))
    assert found.verified
    assert any("'of_owner' is not of this package" in note and "OfOwner" in note for note in found.notes)
    assert not any("not of this package" in note for note in verify_release(whole()).notes)


def reseal(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Edit a file with a checksum, in a way that no JSON writer would."""

    def change(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        text = pretty({**value, "checksum": "0" * 64}).decode()
        assert old in text
        raw = text.replace(old, new, 1).encode()
        (folder / name).write_bytes(raw.replace(b"0" * 64, hashlib.sha256(raw).hexdigest().encode()))

    return change


WEIGHTS = "5e" * 32
START = {"source": f"public start: {WEIGHTS}, public by its own card", "weights": WEIGHTS, "trained_on": "public"}
DECLARED = {"source": f"public start: {WEIGHTS}, declared public by the owner", "weights": WEIGHTS, "run": "c0ffee"}
AFTER_RELEASE = {
    "source": f"private start: {WEIGHTS}, with ε = 2.1 at δ = 1e-06 for its own users (a person who is among both has "
    f"at most the sum of both ε), signed by SHA256:{'x' * 43}",
    "weights": WEIGHTS,
    "trained_on": "private",
    "runs": ["c0ffee"],
}
OWN_MODEL = {"own_model": True, "kind": None, "model": None}


def started(initial: str) -> Callable[[Path], object]:
    return rewrite("training.toml", "[model]\n", f'[model]\ninitial = "{initial}"\n')


@pytest.mark.parametrize(
    ("start", "initial", "fault"),
    [
        (START, "english", None),
        (None, None, None),
        (None, "none", None),
        (None, "english", "by training.toml it began with 'english', and no start is stated"),
        (START, None, "a start is stated, and by training.toml there is none"),
        (START, "none", "a start is stated, and by training.toml there is none"),
        ({**START, "weights": None}, "english", "the start has no hash"),
        ({**START, "weights": "6f" * 32}, "english", "another hash"),
        ({**START, "name": "base x. All is well"}, "english", "is none of a base"),
        ({**START, "name": "base <b>x</b>"}, "english", "is none of a base"),
        ({**START, "name": "english"}, "english", "is none of a base"),
        (
            {**START, "source": f"{START['source']}. All is well"},
            "english",
            "source of the start",
        ),
        ({**START, "source": f"start: {WEIGHTS}, of a weights file"}, "x", "source of the start"),
        ({**START, "trained_on": "people"}, "english", "trained on people"),
        ({**START, "trained_on": None}, "english", "was not trained on public text"),
        ({**START, "trained_on": "private"}, "english", "its source says otherwise"),
        ({**START, "runs": ["c0ffee"]}, "english", "and not both"),
        ({**START, "run": "c0ffee). All is well"}, "english", "a name that no run has"),
        (START, 'x"\ninitial_is_public = true\n#"', "the statement does not say so"),
        (DECLARED, 'x"\ninitial_is_public = true\n#"', None),
        (AFTER_RELEASE, "x", None),
        ({**AFTER_RELEASE, "runs": None}, "x", "and not both"),
        ({**AFTER_RELEASE, "trained_on": "public", "runs": None}, "x", "says otherwise"),
    ],
)
def test_a_start_is_in_the_statement_and_in_the_recipe_or_in_neither(whole, start, initial, fault):
    facts = {"start": start and {name: value for name, value in start.items() if value}}
    facts["not_covered"] = [*NOT_COVERED, *([STARTED_FROM] if start else [])]
    found = verify_release(whole(facts, initial and started(initial)))
    assert found.verified is (fault is None), [check for check in found.checks if check.result == FAILED]
    if fault is not None:
        assert fault in next(check.found for check in found.checks if check.name == "recipe")


@pytest.mark.parametrize(
    ("start", "initial", "fault"),
    [
        (START, None, None),  # its recipe does not describe the model
        (None, "english", "by training.toml it began with 'english', and no start is stated"),
    ],
)
def test_a_start_of_a_model_of_the_owner_s_own_is_in_the_statement(whole, start, initial, fault):
    facts = {"start": start, "not_covered": [*NOT_COVERED, *([STARTED_FROM] if start else [])]}
    found = verify_release(whole(facts, initial and started(initial), **OWN_MODEL))
    assert found.verified is (fault is None), [check for check in found.checks if check.result == FAILED]
    assert fault is None or fault in said(found, "recipe")


@pytest.mark.parametrize(
    ("initial", "start", "note"),
    [
        ("english", {}, "its weights are not those of the base 'english' of this package"),
        ("english", {"name": "base english"}, "its weights are not those of the base 'english' of this package"),
        ("secret.safetensors", {"name": "base mine"}, "calls the start 'secret.safetensors', and the statement 'mine'"),
        ("mine", {"name": "base mine"}, None),
        ("weights.safetensors", {"name": "base mine"}, None),
    ],
)
def test_a_start_that_is_not_what_it_is_called_is_noted(whole, initial, start, note):
    facts = {"start": {**START, **start}, "not_covered": [*NOT_COVERED, STARTED_FROM]}
    found = verify_release(whole(facts, started(initial)))
    assert found.verified
    told = [each for each in found.notes if "the start" in each]
    assert len(told) == (note is not None)
    assert note is None or note in told[0]


def secret(folder: Path) -> None:
    (folder / "secrets").mkdir()
    (folder / "secrets" / "noise.key").write_bytes(b"k")


def record(rounds: int) -> Callable[[Path], object]:
    lines = "".join(f'{{"round": {number}}}\n' for number in range(1, rounds + 1))
    return lambda folder: (folder / "record.jsonl").write_text(lines)


LINE = {"round": 60, "epsilon": OURS, "delta": 1e-6, "clip_norm": 15.0, "noise_std": 0.075 * 0.8125}


def recorded(*lines: Mapping[str, Any], after: str = "") -> Callable[[Path], object]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return lambda folder: (folder / "record.jsonl").write_text(text + after)


def of_round(**changed: Any) -> Callable[[Path], object]:
    return recorded({**LINE, **changed})


RECORDS_THAT_LIE = {
    "less noise": (of_round(noise_std=1e-6), "recipe"),
    "another clip": (of_round(clip_norm=300.0), "recipe"),
    "another clip and its noise": (of_round(clip_norm=300.0, noise_std=0.075 * 0.8125 * 20), "recipe"),
    "a clip that is no number": (of_round(clip_norm="none"), "recipe"),
    "another δ": (of_round(delta=1e-9), "statement"),
    "a smaller ε": (of_round(epsilon=0.1), "other epsilons"),
    "a smaller ε at first": (recorded({"round": 1, "epsilon": 0.01}, LINE), "other epsilons"),
    "an ε that falls": (recorded({**LINE, "round": 59, "epsilon": 2 * OURS}, LINE), "statement"),
    "an ε that is no number": (of_round(epsilon="little"), "statement"),
    "a round twice": (recorded(LINE, LINE), "statement"),
    "rounds out of order": (recorded(LINE, {**LINE, "round": 59}), "statement"),
    "a round before the first": (of_round(round=-1), "statement"),
    "a key of its own": (of_round(text="of somebody"), "statement"),
    "text in an evaluation": (of_round(evaluation={"top1": 0.1, "text": "of somebody"}), "statement"),
    "a share above 1": (of_round(evaluation={"top1": 99}), "statement"),
    "a share below 0": (of_round(evaluation={"top3": -0.1}), "statement"),
    "a share that is infinite": (of_round(evaluation={"oov_rate": INFINITY}), "statement"),
    "a figure that is no number": (of_round(evaluation={"bits_per_byte": True}), "statement"),
    "a part of a person": (of_round(evaluation={"users": 1.5}), "statement"),
    "a perplexity of nothing": (of_round(beside={"perplexity": 0.5}), "statement"),
    "an ε that is true": (recorded({"round": 1, "epsilon": True}), "statement"),
    "text for a figure": (of_round(evaluation={"top1": "of somebody"}), "statement"),
    "text after the lines": (recorded(LINE, after="of somebody"), "statement"),
    "a key twice": (recorded(after='{"round": 1, "delta": "of somebody", "delta": 1e-06}\n'), "statement"),
}


def test_a_file_that_hinders_notes_is_noted(whole, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr("sottovoce.reporting.readme_checks.model_card", fail)
    assert "WARNING: README.md could not be compared (no figure)" in verify_release(whole()).notes


@pytest.mark.parametrize("lie", RECORDS_THAT_LIE)
def test_a_record_that_contradicts_the_statement_fails(whole, lie):
    change, check = RECORDS_THAT_LIE[lie]
    found = results(verify_release(whole(after=change)))
    assert {name for name, result in found.items() if result == FAILED} == {check}


def test_a_record_as_a_run_writes_it_passes(whole):
    measured = {"users": 60, "top1": 0.1, "top3": 0.2, "top5": 0.3, "top1_words": None, "perplexity": INFINITY}
    first = {**LINE, "round": 1, "epsilon": epsilon([(ROUND, 1)], 1e-6)}
    found = verify_release(whole(after=recorded(first, {**LINE, "evaluation": measured})))
    assert found.verified, [check for check in found.checks if check.result == FAILED]


def other_weights(contents: bytes, **facts: Any) -> Callable[[Path], object]:
    """Whatever is in the file, card and statement have its hash."""

    def change(folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(contents)
        written = json.loads((folder / "privacy.json").read_text())
        written["files"]["weights.safetensors"] = sha256_of(folder / "weights.safetensors")
        written = sealed(written)
        (folder / "privacy.json").write_bytes(pretty(written))
        (folder / "card.json").write_bytes(pretty(sealed({**CARD, **facts, "privacy": written})))

    return change


def baseline(**figures: float) -> Callable[[Path], object]:
    score = {"users": 10, "top1": 0.1, "top3": 0.2, "top5": 0.3, "perplexity": 9.0} | figures
    found = sealed({"start": "nothing", "token": "a", "constant": score})
    return lambda folder: (folder / "baselines.json").write_bytes(pretty(found))


def charged_nothing(folder: Path) -> None:
    """One more line in the ledger, and in the statement, of no round."""
    written = json.loads((folder / "privacy.json").read_text())
    nothing = {**charges(noise_multiplier=0.7)[0], "count": 0}
    written = sealed({**written, "charged": [*written["charged"], nothing]})
    (folder / "privacy.json").write_bytes(pretty(written))
    (folder / "card.json").write_bytes(pretty(sealed({**CARD, "privacy": written})))
    header = {"ledger": "release", "run": written["run"], "charges": 2}
    (folder / "ledger.jsonl").write_bytes(chained([header, *written["charged"]]))


def told(**facts: Any) -> Callable[[Path], object]:
    """More facts on the card."""

    def change(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        (folder / "card.json").write_bytes(pretty(sealed(card | facts)))

    return change


def noted(number: int) -> Callable[[Path], object]:
    """A line of the ledger with one more fact."""

    def change(folder: Path) -> None:
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        lines = [{name: value for name, value in line.items() if name != "check"} for line in lines]
        lines[number]["note"] = "audited by everybody"
        (folder / "ledger.jsonl").write_bytes(chained(lines))

    return change


FILES_THAT_LIE = {
    "another noise in the recipe": (rewrite("training.toml", "multiplier = 0.8125", "multiplier = 0.4"), "recipe"),
    "a seeded recipe": (rewrite("training.toml", 'secrets = "entropy"', 'secrets = "seeded"'), "recipe"),
    "a recipe that is none": (lambda folder: (folder / "training.toml").write_text("[["), "recipe"),
    "a recipe of more rounds": (rewrite("training.toml", "rounds = 60", "rounds = 600"), "recipe"),
    "README": (rewrite("README.md", "ε = ", "ε = 0.0"), "sentences"),
    "README with a second ε": (rewrite("README.md", "# A", "Its ε is 0.001.\n\n# A"), "sentences"),
    "fewer rounds on the card": (reseal("card.json", '"rounds": 60', '"rounds": 59'), "statement"),
    "more rounds in the record": (record(61), "statement"),
    "a record that is none": (lambda folder: (folder / "record.jsonl").write_text("{}\n"), "statement"),
    "a secret": (secret, "files"),
    "diagnostics": (lambda folder: (folder / "diagnostics.jsonl").write_text("{}"), "files"),
    "participation": (lambda folder: (folder / "participation.json").write_text("{}"), "files"),
    "no weights": (other_weights(b"no weights"), "model"),
    "weights that are no numbers": (other_weights(save({"table": np.full((4, 3), np.nan, np.float32)})), "model"),
    "baselines that are none": (lambda folder: (folder / "baselines.json").write_text("of somebody"), "model"),
    "whole numbers in the weights": (
        other_weights(save({"table": np.zeros((4, 3), np.int8)}), own_model=False),
        "model",
    ),
    "a baseline that cannot be": (baseline(top1=99.0), "model"),
    "text in the weights": (other_weights(save({"table": np.zeros((4, 3), np.float32)}, {"by": "me"})), "model"),
    "another kind on the card": (told(own_model=False, kind="gru"), "recipe"),
    "another size on the card": (told(own_model=False, model={"kind": "lstm", "hidden": 7}), "recipe"),
    "adapters on the card": (told(own_model=False, adapter={"rank": 4}), "recipe"),
    "a card of two models": (told(own_model=True, kind="lstm"), "recipe"),
    "own words on the card": (told(certified="by everybody"), "model"),
    "no known text on the card": (told(trained_on="public text and a few friends"), "model"),
    "own words in the ledger": (noted(0), "ledger"),
    "own words in a charge": (noted(1), "ledger"),
    "a charge of nothing": (charged_nothing, "ledger"),
    "canaries": (lambda folder: (folder / "canaries.json").write_text('{"users": []}'), "model"),
    "a card of another model": (reseal("card.json", '"parameters": 12', '"parameters": 13'), "model"),
    "a fact twice": (reseal("privacy.json", '"epsilon":', '"epsilon": 0.5,\n  "epsilon":'), "statement"),
    "no number": (reseal("privacy.json", '"epsilon_spent":', '"other": NaN,\n  "epsilon_spent":'), "statement"),
}  # fmt: skip


@pytest.mark.parametrize("lie", FILES_THAT_LIE)
def test_a_file_that_lies_fails(whole, lie):
    change, check = FILES_THAT_LIE[lie]
    assert results(verify_release(whole(after=change)))[check] == FAILED


def test_a_card_that_says_what_the_recipe_says_passes(whole):
    facts = told(own_model=False, kind="lstm", model={"kind": "lstm"}, trained_on="people", adapter=None)
    found = verify_release(whole(after=facts))
    assert found.verified, found
    found = verify_release(whole(after=told(trained_on="public")))
    assert found.verified, found
    assert "by card.json it was trained on public text: nothing here shows that" in found.notes


def test_public_text_after_a_start_that_was_not_public_fails(whole):
    start = {"start": {**START, "trained_on": "private"}, "not_covered": [*NOT_COVERED, STARTED_FROM]}
    found = verify_release(whole(start, both(started("english"), told(trained_on="public"))))
    assert "the model that it began with was not" in said(found, "model")


REGISTRY = Registry(WORDS.fingerprint, 1, 0, 40, (), (("a", "a"),), (4,))


def planted(registry: Registry, folder: str = ".") -> Callable[[Path], object]:
    """The registry of a run whose recipe inserts canaries."""

    def change(release: Path) -> None:
        (release / folder / "canaries.json").write_bytes(pretty(registry.to_json()))
        (release / "training.toml").write_text(PLANNED.replace(audit={"secrets": 1}).to_toml())

    return change


def test_a_registry_is_the_one_of_the_statement(whole):
    other = replace(REGISTRY, holders=(1,))
    canaries = {"canaries": REGISTRY.summary().to_json(), "released": [*RELEASED, LISTED]}
    found = verify_release(whole(canaries, planted(REGISTRY)))
    assert found.verified, found
    assert "is not the registry of the statement" in said(verify_release(whole(canaries, planted(other))), "model")
    before = rewrite("canaries.json", "were added to", "were planted on top of")
    assert verify_release(whole(canaries, both(planted(REGISTRY), before))).verified
    for word, lie in (("made-up users", "somebody's text"), ('"registry": 1', '"registry": "certified"')):
        found = verify_release(whole(canaries, both(planted(REGISTRY), rewrite("canaries.json", word, lie))))
        assert said(found, "model") == "canaries.json has more than a registry, or other words"
    plain = rewrite("training.toml", "secrets = 1", "secrets = 0")
    fault = said(verify_release(whole(canaries, both(planted(REGISTRY), plain))), "recipe")
    assert fault == "training.toml inserts no canaries, and the statement has some"
    hidden = both(planted(REGISTRY), lambda folder: (folder / "canaries.json").unlink())
    assert said(verify_release(whole(after=hidden)), "recipe") == (
        "training.toml inserts canaries, and the statement has none"
    )
    both_of = both(planted(REGISTRY), exported(), planted(REGISTRY, "onnx"))
    assert verify_release(whole(canaries, both_of)).verified
    both_of = both(planted(REGISTRY), exported(), planted(other, "onnx"))
    assert "onnx/canaries.json is not canaries.json" in said(verify_release(whole(canaries, both_of)), "model")


def exported(changed: Mapping[str, Any] | None = None) -> Callable[[Path], object]:
    """An export of the release, with some facts of its manifest changed."""

    def write_export(folder: Path) -> None:
        (folder / "onnx").mkdir()
        shutil.copy(folder / "vocabulary.txt", folder / "onnx")
        for graph in GRAPHS:
            (folder / "onnx" / f"{graph}.onnx").write_text(graph)
        hashes = {path.name: {"file": path.name, "sha256": sha256_of(path)} for path in (folder / "onnx").iterdir()}
        statement = json.loads((folder / "privacy.json").read_text())
        manifest = {
            "name": "mine",
            "model": {"kind": "lstm"},
            "graphs": {graph: hashes[f"{graph}.onnx"] for graph in GRAPHS},
            "vocabulary": {**hashes["vocabulary.txt"], "fingerprint": WORDS.fingerprint, "size": WORDS.size},
            "of": digest({"table": np.zeros((4, 3), np.float32)}),
            "privacy": {name: statement[name] for name in ("private", "epsilon", "delta", "unit", "prose")},
        }
        (folder / "onnx/manifest.json").write_bytes(pretty(sealed(put(manifest, changed or {}))))

    return write_export


EXPORTS: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"vocabulary.file": "../../notes.txt"}, "is no name of a file of an export"),
    "a file of another hash": ({"vocabulary.sha256": "0" * 64}, "is not the file that was exported"),
    "another vocabulary": ({"vocabulary.fingerprint": "0"}, "describes another vocabulary"),
    "other weights": ({"of": "0" * 64}, "is of other weights"),
    "another kind": ({"model.kind": "gru"}, "is of another kind"),
    "a smaller ε": ({"privacy.epsilon": 0.1}, "says other than the statement: epsilon"),
    "other words": ({"privacy.prose": "All are protected."}, "says other than the statement: prose"),
    "public text": ({"privacy.trained_on": "public"}, "says other than the statement: trained_on"),
    "no facts": ({"privacy": None}, "cannot be checked"),
}


def test_an_export_of_the_release_passes(whole):
    found = verify_release(whole(after=exported()))
    assert found.verified, found


@pytest.mark.parametrize("lie", EXPORTS)
def test_an_export_of_another_model_or_statement_fails(whole, lie):
    changed, words = EXPORTS[lie]
    found = verify_release(whole(after=both(told(own_model=False, kind="lstm"), exported(changed))))
    assert words in said(found, "model")
    assert results(found)["model"] == FAILED


def test_another_vocabulary_in_an_export_fails(whole):
    def other(folder: Path) -> None:
        (folder / "onnx/vocabulary.txt").write_bytes(WORDS.contents.replace(b"a", b"o"))
        manifest = json.loads((folder / "onnx/manifest.json").read_text())
        manifest["vocabulary"]["sha256"] = sha256_of(folder / "onnx/vocabulary.txt")
        (folder / "onnx/manifest.json").write_bytes(pretty(sealed(manifest)))

    found = verify_release(whole(after=both(exported(), other)))
    assert "onnx/vocabulary.txt is not the vocabulary of the model" in said(found, "model")


ACCURATE = PrivateAccuracy(
    terms=Terms(2.0, 1e-6, 2.25, 40, loss_bound(WORDS.size)), users=310, targets=90_000, top1=0.15, top1_noise=0.01,
    top1_within=0.02, top3=0.2, top3_noise=0.01, top5=0.25, top5_noise=0.01, perplexity=2.0, perplexity_low=1.5,
    perplexity_high=2.5,
)  # fmt: skip


def measured(**changed: Any) -> dict[str, Any]:
    """The facts of a statement with a private accuracy, some of them others."""
    accuracy = put(ACCURATE.to_json(), {name.replace("terms_", "terms."): value for name, value in changed.items()})
    uncovered = [line for line in NOT_COVERED if line != EXACT_ACCURACY]
    facts = {"private_accuracy": accuracy, "epsilon_held_out": 2.5, "not_covered": uncovered}
    return facts | {"held_out": "private"}


EIGHT_BITS = {"eight_bits": {"users": 50, "top1": 0.1234, "top1_float32": 0.1235}}


PRIVATE_ACCURACIES: dict[str, tuple[dict[str, Any], Callable[[Path], object] | None, str]] = {
    "less noise": (measured(terms_noise_multiplier=1.9), None, "epsilon of held-out users"),
    "a smaller ε": (measured(terms_epsilon=0.5), None, "epsilon of held-out users"),
    "a smaller δ": (measured(terms_delta=1e-9), None, "epsilon of held-out users"),
    "a δ that promises nothing": (measured(terms_delta=0.1), None, "private accuracy"),
    "no noise, and an ε to match": (
        measured(terms_noise_multiplier=0.01, terms_epsilon=1e5) | {"epsilon_held_out": 1e5},
        None,
        "private accuracy",
    ),
    "a smaller total": ({**measured(), "epsilon_held_out": 0.1}, None, "private accuracy"),
    "no total": ({**measured(), "epsilon_held_out": None}, None, "private accuracy"),
    "a total of nothing": ({"epsilon_held_out": 0.1}, None, "private accuracy"),
    "negative users": (measured(users=-5), None, "private accuracy"),
    "many tokens": (measured(terms_tokens_per_user=10**9), None, "private accuracy"),
    "an infinite figure": (measured(top1=INFINITY), None, "private accuracy"),
    "another accuracy in the README": (measured(), rewrite("README.md", "users (ε = 2", "users (ε = 1"), "sentences"),
    "exact rows in the README": (
        measured(),
        rewrite("README.md", "## How it was trained", "| this model | 12.3% |\n\n## How it was trained"),
        "sentences",
    ),
    "private users who are said to be exact": (measured() | {"held_out": "exact"}, None, "private accuracy"),
    "private users who are listed as not covered": (
        measured() | {"not_covered": list(NOT_COVERED)},
        None,
        "sentences",
    ),
    "exact users who are not listed as not covered": (
        {"not_covered": measured()["not_covered"]},
        None,
        "sentences",
    ),
    "exact figures of eight bits": (measured(), exported(EIGHT_BITS), "held-out users"),
}


@pytest.mark.parametrize("lie", PRIVATE_ACCURACIES)
def test_a_lie_about_the_accuracy_of_held_out_users_fails(whole, lie, monkeypatch):
    monkeypatch.setattr(verify, "_other_faults", lambda found: iter(()))
    changed, after, check = PRIVATE_ACCURACIES[lie]
    found = verify_release(whole(changed, after))
    assert results(found)[check] == FAILED
    assert not found.verified


def test_a_private_accuracy_passes(whole):
    found = verify_release(whole(measured()))
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    assert {"private accuracy", "held-out users", "epsilon of held-out users"} <= set(results(found))


def test_a_large_delta_passes_with_a_warning_where_the_recipe_allows_it(whole, monkeypatch):
    large = {"delta": 1e-4, "epsilon": 99.0, "epsilon_spent": 99.0, "epsilon_store": 99.0, "epsilon_training": 99.0}
    monkeypatch.setattr(verify, "_other_faults", lambda found: iter(()))
    refused = verify_release(whole(large, rewrite("training.toml", "delta = 1e-06", "delta = 0.0001")))
    assert "it is too large" in next(check.found for check in refused.checks if check.name == "recipe")

    def both(folder: Path) -> None:
        rewrite("training.toml", "delta = 1e-06", "delta = 0.0001")(folder)
        rewrite("training.toml", "allow_large_delta = false", "allow_large_delta = true")(folder)

    allowed = verify_release(whole(large, both))
    assert allowed.verified, allowed
    assert allowed.notes[0].startswith(verify.LOUD)


OF_FILES = ("statement", "recipe", "model", "ledger", "epsilon", "other epsilons", "sentences")


@pytest.mark.parametrize("name", ["privacy.json", "card.json", "ledger.jsonl", "ledger.head", "onnx/extra"])
def test_what_is_no_plain_file_is_not_opened(whole, name):
    """A pipe would keep the reader waiting for ever."""
    folder = whole()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    found = verify_release(folder)
    assert results(found) == {"files": FAILED, "signature": PASSED, **dict.fromkeys(OF_FILES, UNCHECKED)}


def test_a_file_that_is_too_large_is_not_opened(whole, monkeypatch):
    monkeypatch.setattr(verify.verify_files, "_LARGEST", 100)
    found = results(verify_release(whole()))
    assert found == {"files": FAILED, "signature": PASSED, **dict.fromkeys(OF_FILES, UNCHECKED)}


HOSTILE = (None, True, -1, 10**400, 1e300, "x", "infinity", [], [1], {}, {"a": []})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from leaves(child, (*path, name))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_whatever_the_files_hold_it_answers(whole, number, monkeypatch):
    folder = whole()
    monkeypatch.setattr(verify, "_accounted", lambda spent, delta: [verify.Accounted(name, 1.0) for name in "abc"])
    monkeypatch.setattr(verify, "_least", lambda *given, **named: 1.0)
    card = json.loads((folder / "card.json").read_text())
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for path in leaves(card):
        changed = json.loads(json.dumps(card))
        place = changed
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = HOSTILE[number]
        if isinstance(changed.get("privacy"), dict):
            changed["privacy"] = sealed(changed["privacy"])
            (folder / "privacy.json").write_bytes(pretty(changed["privacy"]))
        (folder / "card.json").write_bytes(pretty(sealed(changed)))
        json.dumps(verify_release(folder).to_json(), allow_nan=False)
    for path in leaves(lines):
        changed = json.loads(json.dumps(lines))
        place = changed
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = HOSTILE[number]
        kept = [
            {key: value for key, value in line.items() if key != "check"} for line in changed if isinstance(line, dict)
        ]
        (folder / "ledger.jsonl").write_bytes(chained(kept))
        json.dumps(verify_release(folder).to_json(), allow_nan=False)


KINDS = {
    "fixed": {"privacy": {"sampling": "fixed"}},
    "in turn": {"privacy": {"sampling": "in_turn"}},
    "correlated": {"privacy": {"sampling": "in_turn", "noise": "tree"}},
    "least separation": {"privacy": {"sampling": "min_separation", "min_separation": 2, "noise": "banded"}},
    "clipped denominator": {"privacy": {"estimator": "clipped_denominator"}},
    "per layer": {"privacy": {"clipping": "per_layer"}},
    "adaptive": {"privacy": {"adaptive_quantile": 0.5, "adaptive_bit_noise": 20.0}},
    "schedules": {"privacy": {"noise_schedule": ((1, 1.0), (2, 2.0)), "clip_schedule": ((1, 1.0), (2, 0.5))}},
    "silos": {"federation": {"max_silos": 2}, "privacy": {"accountant": "pld"}},
    "noise of devices": {"federation": {"noise": "devices", "aggregation": "masked", "survivors": 8, "colluding": 2}},
    "a budget": {"run": {"rounds": 200}, "privacy": {"epsilon": 5.0, "accountant": "rdp"}},
    "a budget by PLD": {"run": {"rounds": 200}, "privacy": {"epsilon": 5.0, "accountant": "pld"}},
    "examples": {
        "run": {"algorithm": "els"},
        "local": {"tokens": 8},
        "privacy": {"examples_per_user": 2, "accountant": "pld"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_release_of_every_kind_passes(begun, released, kind):
    sections = {name: dict(keys) for name, keys in KINDS[kind].items()}
    sections["privacy"] = {"secrets": "entropy", **sections.get("privacy", {})}
    release = released(begun(**sections))
    found = verify_release(release)
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    assert not any("README" in note for note in found.notes)
    if "budget" in kind:
        assert json.loads((release / "privacy.json").read_text())["rounds_planned"] < 200


ANOTHER = {"software.sottovoce": "0.0.9"}
FIRST = {"statement": 1}
LIES_IN_WORDS: dict[str, tuple[dict[str, Any], Callable[[Path], object] | None]] = {
    "prose": ({"prose": "This run satisfies (2.87, 1e-6)-differential privacy, for those held out too."}, None),
    "whom it protects": ({"protects": "everybody, those held out too"}, None),
    "what its noise is drawn from": ({"noise_generator": "none"}, None),
    "what is released": ({"released": ["the last model"]}, None),
    "nothing uncovered": ({"not_covered": ["nothing that we know of"]}, None),
    "no list of what is not covered": ({"not_covered": []}, None),
    "more that is not covered": ({"not_covered": [*NOT_COVERED, "nothing else: all are safe"]}, None),
    "a fact that no statement has": ({"epsilon_certified": 0.1}, None),
    "a fact of a section": ({"mechanism.certified": "by nobody"}, None),
    "a default": ({"store_gone": False}, None),
    "an accountant that there is not": ({"accountant": "PLD, certified"}, None),
    "other software": ({"software.certified": "1.0"}, None),
    "a fact of a list": ({"audits": [{"audit": "rounds", "result": "passed", "certified": "by nobody"}]}, None),
    "a fact of a charge": ({"charged": [{**charges()[0], "certified": "by nobody"}]}, None),
    "a README in other words": ({}, rewrite("README.md", "whose text it was", "whose words it")),
    "a README with another ε": ({}, rewrite("README.md", "ε = ", "ε = 0.001 and not ")),
    "a README of other rounds": ({}, rewrite("README.md", "60 of 60 planned", "6 of 60 planned")),
}


@pytest.mark.parametrize("chosen", [ANOTHER, FIRST, ANOTHER | FIRST], ids=["version", "form", "both"])
@pytest.mark.parametrize("lie", LIES_IN_WORDS)
def test_no_release_chooses_how_strictly_it_is_compared(whole, chosen, lie):
    """Neither by the version that it says has written it, nor by the form of its statement."""
    changed, after = LIES_IN_WORDS[lie]
    assert results(verify_release(whole(chosen | changed, after)))["sentences"] == FAILED


def test_a_release_of_another_version_in_the_same_words_passes_with_a_warning(whole):
    found = verify_release(whole(ANOTHER))
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    assert any("'0.0.9' wrote it by its own account" in note for note in found.notes)
    assert not any("wrote it" in note for note in verify_release(whole()).notes)


CARDS_THAT_SAY_LITTLE = {
    "no kind": ({"kind": None}, "recipe"),
    "no sizes": ({"model": None}, "recipe"),
    "no known text": ({"trained_on": None}, "model"),
}


@pytest.mark.parametrize("lie", CARDS_THAT_SAY_LITTLE)
def test_a_card_that_leaves_facts_out_fails(whole, lie):
    changed, check = CARDS_THAT_SAY_LITTLE[lie]
    assert results(verify_release(whole(**changed)))[check] == FAILED


@pytest.mark.parametrize("name", ["own_model", "kind", "frozen"])
def test_a_card_that_lacks_a_key_fails(whole, name):
    def change(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        (folder / "card.json").write_bytes(pretty(sealed({key: card[key] for key in card if key != name})))

    assert name in said(verify_release(whole(after=change)), "model")


def test_a_ledger_without_checksums_fails(whole):
    def change(folder: Path) -> None:
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        bare = ({name: value for name, value in line.items() if name != "check"} for line in lines)
        (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bare))

    assert results(verify_release(whole(after=change)))["ledger"] == FAILED


def test_a_run_is_called_as_a_run_is(whole):
    found = verify_release(whole({"run": "b1946ac9, certified"}))
    assert said(found, "statement") == "it is of a run with a name that no run has: b1946ac9, certified"


def test_what_a_statement_lists_because_of_its_store_or_run_is_known(whole):
    users = [np.asarray([3, 3], np.int32)]
    store = replace(Store.from_users(users, WORDS), owners_per_record=3, every_record_is_a_user=True)
    also = store.not_covered
    assert len(also) == 2
    found = verify_release(whole({"not_covered": [*NOT_COVERED, *also]}))
    assert found.verified, [check for check in found.checks if check.result == FAILED]


def test_what_a_recipe_leaves_uncovered_is_listed(whole):
    chosen = rewrite("training.toml", 'objective = "plain"', 'objective = "rehearsal"')
    found = verify_release(whole({"not_covered": [*NOT_COVERED, REHEARSED]}, chosen))
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    assert said(verify_release(whole(after=chosen)), "sentences") == f"it does not say what is not covered: {REHEARSED}"


def test_an_objective_that_is_not_chosen_leaves_nobody_uncovered(whole):
    found = verify_release(whole({"not_covered": [*NOT_COVERED, REHEARSED]}))
    assert said(found, "sentences") == "what it says is not covered is not what follows from its facts"


COMMAND = "sotto verify 'a model' --signer SHA256:"
READMES_OF_TODAY = {
    "people": ("| people | 20,000 declared", "| people | 2,000,000 declared"),
    "vocabulary": ("| vocabulary | public", "| vocabulary | audited"),
    "licence": ("| licence | apache-2.0", "| licence | none needed"),
    "unsigned": (COMMAND, "sotto verify 'a model' --unsigned # SHA256:"),
    "another signer": (COMMAND, f"{COMMAND}A"),
    "no signer": (COMMAND, "sotto verify 'a model' # --signer SHA256:"),
    "a command after two spaces": ("## Check it", "    $ sotto  verify model\n\n## Check it"),
    "a command in a list": ("## Check it", "- sotto verify model --unsigned\n\n## Check it"),
    "two commands": ("## Check it", "    $ sotto verify model\n\n## Check it"),
    "a command in a line of code": ("## Check it", "`sotto verify model` checks it.\n\n## Check it"),
    "a command after a fence": ("## Check it", "~~~\nsotto verify model && echo fine\n~~~\n\n## Check it"),
    "two signers": (COMMAND, f"sotto verify 'a model' --signer SHA256:A --signer={COMMAND[-7:]}"),
    "a command after another fence": ("## Check it", "```\n~~~\nsotto verify model\n```\n\n## Check it"),
    "a smaller δ": ("## Check it", "It holds plus 1e-9.\n\n## Check it"),
    "a δ as a power": ("## Check it", "It has δ = 10^-9.\n\n## Check it"),
    "a command that goes on": ("## Check it", "    sotto verify \\\\\n  model --unsigned\n\n## Check it"),
    "a signer of another command": (COMMAND, "sotto verify 'a model' --unsigned; echo --signer SHA256:"),
    "a signer in the name of the folder": (COMMAND, "sotto verify 'a model --signer' # SHA256:"),
    "both at once": ("## Check it", "It has ε, δ = 0.1, 1e-9.\n\n## Check it"),
    "a word before the promise": ("A next-word model of", "It was: A next-word model of"),
    "a word after the promise": (f"- {NOT_COVERED[-1]}", f"- {NOT_COVERED[-1]}: covered too"),
    "rounds": ("## Check it", "After 2 of 60 planned rounds it was fine.\n\n## Check it"),
}


@pytest.mark.parametrize("lie", READMES_OF_TODAY)
def test_rows_and_command_of_a_readme_are_compared(whole, lie):
    found = verify_release(whole(after=rewrite("README.md", *READMES_OF_TODAY[lie])))
    assert {name for name, result in results(found).items() if result == FAILED} == {"sentences"}


HARMLESS = {
    "a number of words": "It knows 4 tokens plus 3 words.",
    "a separator": "ε = 80 · 60 rounds; **ε = 80** 10 people",
    "a larger ε": "Other models have ε = 80.",
    "its δ as a power": "Here δ = 10^-6.",
    "prose on the command": "sotto verify doesn't need jax.\n`sotto verify` computes it.",
    "prose with a dash": "sotto verify checks the files -- all of them",
    "its help": "`sotto verify --help` lists the checks",
    "other figures": "Adam with epsilon = 1e-8 changed 12 of 12 planned languages.",
    "Δ is a difference": "Δ = 0 points between both.",
}


@pytest.mark.parametrize("words", HARMLESS)
def test_harmless_words_of_its_owner_in_a_readme_pass(whole, words):
    found = verify_release(whole(after=rewrite("README.md", "## Check it", f"{HARMLESS[words]}\n\n## Check it")))
    assert found.verified, [check for check in found.checks if check.result == FAILED]
    shown = sorted(note.partition("owner's own: ")[2] for note in found.notes if "owner's own" in note)
    assert shown == sorted(map(repr, HARMLESS[words].split("\n")))


@pytest.mark.parametrize(
    "change",
    [
        ("# A private next-word model", "# Our keyboard"),
        (COMMAND, "sotto verify --json 'a model' --signer SHA256:"),
        (COMMAND, "sotto verify 'a model' --signer=SHA256:"),
        (COMMAND, "sotto verify 'a model' \\\n    --signer SHA256:"),
    ],
)
def test_another_title_and_other_forms_of_the_command_pass(whole, change):
    found = verify_release(whole(after=rewrite("README.md", *change)))
    assert found.verified, [check for check in found.checks if check.result == FAILED]


ON_PRIVACY = (
    "Its epsilon is only 0.001.",
    "The model is 0.5-DP.",
    "It has δ = 2^-40, that is, one in 10^12.",
    "| ε | δ |",
    "$\\varepsilon = 0.5$",
    "Nobody can be found out: it is certified.",
    "ε (0.5)",
)


@pytest.mark.parametrize("line", ON_PRIVACY)
def test_what_a_readme_adds_on_privacy_is_shown_first(whole, line):
    found = verify_release(whole(after=rewrite("README.md", "## Check it", f"{line}\n\n## Check it")))
    wanted = f"WARNING: nothing here checks this line of README.md, which is the owner's own: {line!r}"
    assert wanted in found.notes


def test_a_signer_before_the_folder_is_no_folder(whole):
    def turn(folder: Path) -> None:
        text = (folder / "README.md").read_text()
        line = next(line for line in text.splitlines() if line.startswith(COMMAND))
        (folder / "README.md").write_text(text.replace(line, f"sotto verify{line[len(COMMAND) - 17 :]} 'a model'"))

    found = verify_release(whole(after=turn))
    assert found.verified
    assert sum("owner's own" in note for note in found.notes) == 1


def test_a_fault_of_a_readme_names_its_line_and_why(whole):
    own = rewrite("README.md", "## Check it", "It holds plus 1e-9.\n\n## Check it")
    folder = whole(after=own)
    number = (folder / "README.md").read_text().splitlines().index("It holds plus 1e-9.") + 1
    fault = said(verify_release(folder), "sentences")
    assert fault == f"line {number} of README.md speaks of δ 1e-09, which is no figure of its facts, and promises " + (
        "more than its largest, 1e-06"
    )
    fault = said(verify_release(whole(after=rewrite("README.md", "Not covered:", "Covered:"))), "sentences")
    assert fault == "README.md promises other than the statement: it lacks the line 'Not covered:'"


def test_text_of_its_own_in_a_readme_is_noted(whole):
    assert not any("README" in note for note in verify_release(whole()).notes)
    own = rewrite("README.md", "## Check it", "\n".join(["<script>", *["another word"] * 24, "", "## Check it"]))
    found = verify_release(whole(after=own))
    assert found.verified
    assert sum("owner's own: " in note for note in found.notes) == 20
    assert "WARNING: README.md has 5 more lines of the owner's own; read them" in found.notes
    found = verify_release(whole(after=rewrite("README.md", "## Use it\n", "")))
    assert found.verified
    assert "README.md lacks 1 line that a release has" in found.notes


def paid_again(charged: int, again: int, done: int = 1, **more: Any) -> dict[str, Any]:
    """The facts of a run of 60 planned rounds, of which `done` were done, whose ledger has so many charges."""
    cost = epsilon([(ROUND, charged)], 1e-6)
    names = ("epsilon", "epsilon_training", "epsilon_spent", "epsilon_store")
    facts = dict.fromkeys(names, cost) | {"epsilon_replaced": epsilon([(ROUND, charged)], 1e-6, replaced=True)}
    return facts | {
        "charged": [{**charges()[0], "count": charged}],
        "charged_again": again,
        "rounds_done": done,
        **more,
    }


def budget(limit: float) -> Callable[[Path], object]:
    return rewrite("training.toml", "[privacy]\n", f"[privacy]\nepsilon = {limit!r}\n")


def both(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [change(folder) for change in changes]


@pytest.mark.parametrize(
    ("charged", "again", "done", "limit", "fault"),
    [
        (2, 1, 1, None, "no budget of training.toml forbids the others"),
        (2, 1, 1, 60, "no budget of training.toml forbids the others"),
        (58, 3, 55, 60, "no budget of training.toml forbids the others"),
        (60, 3, 60, None, "60 charges, fewer than the 60 of the rounds done and the 3"),
        (63, 3, 60, None, None),
        (63, 3, 20, None, None),  # stopped
        (60, 3, 57, 60, None),  # ended by its budget
        (60, 3, 20, 60, None),  # stopped, and its budget forbids the last rounds
    ],
)
def test_rounds_that_were_paid_again_excuse_others_only_where_a_budget_forbids_them(
    whole, charged, again, done, limit, fault
):
    # A budget is named by the number of rounds that it allows.
    after = None if limit is None else budget(1.0001 * epsilon([(ROUND, limit)], 1e-6))
    found = verify_release(whole(paid_again(charged, again, done), after))
    assert found.verified is (fault is None), [check for check in found.checks if check.result == FAILED]
    if fault is not None:
        assert fault in next(check.found for check in found.checks if check.name == "ledger")
    two = both(record(done + 1), after or (lambda folder: None))
    assert results(verify_release(whole(paid_again(charged, again, done), two)))["statement"] == FAILED


def test_honest_statements_of_devices_and_of_rounds_done_again_pass(whole, remembered):
    mechanism = build_mechanism(PLANNED, ["one"])
    spent, again = mechanism.events(60), [(mechanism.event(1), 2)]
    words = PUBLIC_WORDS
    for charged, federation in (
        (Charges(spent, spent, store=spent), FederationFacts(10)),
        (Charges(spent, [*spent, *again], again, store=[*spent, *again]), None),
    ):
        about = RunFacts("b1946ac9", 60, 60, words, federation=federation)
        found = verify_release(whole(statement_of(PLANNED, mechanism, "pld", charged, about).to_json()))
        assert found.verified, [check for check in found.checks if check.result == FAILED]


# --- a false statement that fits its own card, ledger, prose and README, with one file removed ----------


FALSE = {
    "another clip norm": {"privacy": {"clip_norm": 1.5}},
    "another clip": {"privacy": {"clipping": "per_layer"}},
    "a clip that adapts": {"privacy": {"adaptive_quantile": 0.5, "adaptive_bit_noise": 100.0}},
    "a smaller cohort": {"privacy": {"cohort": 20.0}},
    "more people": {"privacy": {"users": 200_000}},
    "another δ": {"privacy": {"delta": 1e-5}},
    "fewer rounds": {"run": {"rounds": 6}},
    "fixed sampling": {"privacy": {"sampling": "fixed"}},
    "turns": {"privacy": {"sampling": "in_turn"}},
    "another denominator": {"privacy": {"total_weight": 10.0}},
    "a clipped denominator": {"privacy": {"estimator": "clipped_denominator"}},
    "another cap": {"privacy": {"weight_cap": 800.0, "total_weight": 150.0}},
    "more noise": {"privacy": {"noise_multiplier": 1.625}},
    "a schedule": {"privacy": {"noise_schedule": ((1, 1.0), (2, 2.0))}},
    "another generator": {"privacy": {"randomness": "standard"}},
}
ALWAYS_THERE = (
    "weights.safetensors", "vocabulary.txt", "privacy.json", "card.json", "ledger.jsonl", "training.toml", "README.md"
)  # fmt: skip
REMOVED = (None, *ALWAYS_THERE, "record.jsonl")


@pytest.fixture(scope="module")
def false_facts(look_up) -> Callable[[str], dict[str, Any]]:
    """All facts of a run with another recipe, as it would state them itself."""

    @cache
    def make(lie: str) -> dict[str, Any]:
        recipe = resolve(PLANNED.replace(**FALSE[lie]))
        mechanism, rounds = build_mechanism(recipe, ["one", "two"]), recipe.run.rounds
        spent, words = mechanism.events(rounds), PUBLIC_WORDS
        about = RunFacts("b1946ac9", rounds, rounds, words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accounting, "epsilon", look_up)
            stated = statement_of(recipe, mechanism, "pld", Charges(spent, spent, store=spent), about)
        return {"epsilon_replaced": None, **stated.to_json()}

    return make


def without(name: str | None) -> Callable[[Path], object]:
    return lambda folder: name and (folder / name).unlink()


@pytest.mark.parametrize("removed", REMOVED)
@pytest.mark.parametrize("lie", FALSE)
def test_a_false_statement_fails_whatever_file_its_owner_leaves_out(whole, false_facts, lie, removed):
    facts = false_facts(lie)
    found = verify_release(whole(facts, both(record(facts["rounds_done"]), without(removed))))
    assert not found.verified
    assert results(found)["signature"] == PASSED
    assert results(found)["recipe"] == (UNCHECKED if removed == "privacy.json" else FAILED)


def test_without_a_recipe_a_release_fails_with_or_without_a_signature(whole):
    folder = whole(after=without("training.toml"))
    found = verify_release(folder)
    assert results(found)["files"] == results(found)["recipe"] == FAILED
    assert said(found, "recipe").startswith("training.toml is missing: nothing shows")
    for name in (signature.MANIFEST, signature.SIGNATURE, signature.SIGNER):
        (folder / name).unlink()
    unsigned = verify_release(folder, unsigned=True)
    assert results(unsigned)["files"] == results(unsigned)["recipe"] == FAILED


@pytest.mark.parametrize("removed", ALWAYS_THERE)
def test_a_file_that_every_signed_release_has_is_missed(whole, removed):
    found = verify_release(whole(after=without(removed)))
    missing = next(check for check in found.checks if check.name == "files")
    assert missing.result == FAILED
    assert removed in missing.found
    assert "is missing" in missing.found


@pytest.mark.parametrize("removed", REMOVED)
@pytest.mark.parametrize("lie", ["unit", "no charge", "not private", "no charge and not private"])
def test_a_false_unit_or_vocabulary_fails_whatever_file_its_owner_leaves_out(whole, facts, lie, removed):
    words = VocabularyFacts.of(WORDS.fingerprint, {"source": "private", "epsilon": 2.0, "delta": 1e-7})
    changed = {
        "unit": {"unit": "household"},
        "no charge": {"vocabulary": words.to_json()},
        "not private": {"vocabulary": {**words.to_json(), "private": False}, "charged": [*facts["charged"], HISTOGRAM]},
        "no charge and not private": {"vocabulary": {**words.to_json(), "private": False}},
    }[lie]
    found = verify_release(whole(changed, both(record(60), without(removed))))
    assert not found.verified
    assert "text or a vocabulary called public is public" in " ".join(found.not_proved)


HISTOGRAM = {"event": {"kind": "thresholded-histogram", "noise_multiplier": 3.0, "delta": 1e-7}, "count": 1}


def test_rounds_that_no_record_shows_are_noted(whole):
    with_record, without_record = verify_release(whole(after=record(60))), verify_release(whole())
    assert with_record.verified
    assert without_record.verified
    assert not any("no record.jsonl" in note for note in with_record.notes)
    assert any("no record.jsonl" in note for note in without_record.notes)


# --- one damaged file is one fault: what cannot be checked for it is named, and no other file is accused ----


def flip(name: str) -> Callable[[Path], object]:
    """Change one bit in the middle of a file."""

    def change(folder: Path) -> None:
        contents = bytearray((folder / name).read_bytes())
        contents[len(contents) // 2] ^= 1
        (folder / name).write_bytes(contents)

    return change


def tear(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40] + b"\xff\n")


DAMAGE = {
    "bit of the ledger": (flip("ledger.jsonl"), {"ledger"}, {"epsilon", "other epsilons"}),
    "no ledger": (without("ledger.jsonl"), {"ledger"}, {"epsilon", "other epsilons"}),
    "bit of the statement": (flip("privacy.json"), {"statement"}, set(OF_FILES) - {"statement"}),
    "no statement": (without("privacy.json"), {"statement"}, set(OF_FILES) - {"statement"}),
    "torn statement": (tear("privacy.json"), {"statement"}, set(OF_FILES) - {"statement"}),
    "torn recipe": (tear("training.toml"), {"recipe"}, {"ledger", "other epsilons"}),
    "no recipe": (without("training.toml"), {"recipe"}, {"ledger", "other epsilons"}),
    "bit of the card": (flip("card.json"), {"statement"}, {"model", "sentences"}),
    "no card": (without("card.json"), {"statement"}, {"model", "sentences"}),
    "torn record": (tear("record.jsonl"), {"statement"}, set()),
    "no weights": (without("weights.safetensors"), {"statement", "model"}, set()),
    "no vocabulary": (without("vocabulary.txt"), {"statement", "model"}, set()),
    "no README": (without("README.md"), set(), set()),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_a_damaged_file_prevents_is_said_to_be_not_checked(whole, damage):
    change, failed, unchecked = DAMAGE[damage]
    folder = whole(after=record(60))
    change(folder)
    found = verify_release(folder)
    by_result = {
        result: {check.name for check in found.checks if check.result == result} for result in (FAILED, UNCHECKED)
    }
    assert by_result == {FAILED: {"files", *failed}, UNCHECKED: unchecked}
    assert set(OF_FILES) <= set(results(found))
    said = " ".join(check.found for check in found.checks)
    for raw in ("Errno", "Expecting", "delimiter", "put it back", "put the file back", "codec", str(folder)):
        assert raw not in said
    if "weights" not in damage:
        assert "weights.safetensors" not in said


def said(found: verify.Verification, name: str) -> str:
    return next(check.found for check in found.checks if check.name == name)


@pytest.mark.parametrize("name", ["privacy.json", "card.json"])
def test_a_file_that_is_gone_or_no_json_is_named_in_plain_words(whole, name):
    folder = whole()
    (folder / name).write_bytes(b"{")
    assert said(verify_release(folder), "statement") == f"{name} is not JSON"
    (folder / name).unlink()
    assert said(verify_release(folder), "statement") == f"{name} is missing"


def test_a_ledger_or_recipe_that_is_gone_or_damaged_is_named_in_plain_words(whole):
    folder = whole()
    (folder / "ledger.jsonl").write_bytes(b"{\n")
    found = said(verify_release(folder), "ledger")
    assert found == "line 1 of ledger.jsonl is damaged (it is not JSON): what it held is not known"
    (folder / "training.toml").write_bytes(b"[[")
    assert said(verify_release(folder), "recipe").startswith("training.toml is not valid TOML")
    (folder / "ledger.jsonl").unlink()
    assert said(verify_release(folder), "ledger") == "ledger.jsonl is missing"


def test_a_damaged_record_is_named_and_hides_no_other_fault(whole):
    folder = whole(after=record(60))
    (folder / "record.jsonl").write_text("{}\n")
    (folder / "weights.safetensors").unlink()
    lost = "line 1 of record.jsonl is damaged; weights.safetensors is missing"
    assert said(verify_release(folder), "statement") == lost


def test_faults_that_were_found_before_an_error_are_kept():
    def faults() -> Iterator[str]:
        yield "one"
        raise SottoError("why")

    assert verify._judged("name", faults(), "fine").found == "one; cannot be checked (why)"


def test_a_folder_that_is_no_release_is_named_for_what_it_is(tmp_path, run, store):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for folder, what in (
        (run.path, f"it is a run; `sotto release {run.path} --out DIR` makes one"),
        (store, "it is a store; `sotto train`"),
        (tmp_path / "empty", "the folder is empty"),
        (tmp_path / "nowhere", "there is no such folder"),
        (tmp_path / "other" / "file", "it is a file"),
        (tmp_path / "other", "it has neither privacy.json nor ledger.jsonl"),
    ):
        with pytest.raises(SottoError) as error:
            verify_release(folder)
        assert what in str(error.value)


# --- a record of every kind of run ----------------------------------------------------------------------------------


RECORDED = KINDS | {
    "clip path": {"privacy": {"clip_schedule": ((1, 1.0), (6, 0.5)), "clip_path": "linear"}},
    "adaptive, per layer": {
        "privacy": {"clipping": "per_layer", "adaptive_quantile": 0.5, "adaptive_bit_noise": 100.0}
    },
    "adaptive, with a schedule": {
        "privacy": {"adaptive_quantile": 0.5, "adaptive_bit_noise": 100.0, "noise_schedule": ((1, 1.0), (3, 2.0))}
    },
}


@pytest.mark.parametrize("across_devices", [False, True])
@pytest.mark.parametrize("kind", RECORDED)
def test_clip_norm_and_noise_of_every_honest_record_follow_from_the_recipe(remembered, kind, across_devices):
    recipe = resolve(PLANNED.replace(**RECORDED[kind]))
    mechanism = build_mechanism(recipe, ["one", "two"])
    spent = mechanism.events(6)
    about = RunFacts("b1946ac9", 6, 6, PUBLIC_WORDS, federation=FederationFacts(10) if across_devices else None)
    statement = statement_of(recipe, mechanism, recipe.privacy.accountant, Charges(spent), about)
    lines, tracked = [], mechanism.start()
    for number in range(1, 7):
        norms = mechanism.clip_norms(number, tracked)
        noise = mechanism.noise_std(number, norms)[0]
        lines.append({"round": number, "clip_norm": joint_norm(norms), "noise_std": noise})
        tracked = None if tracked is None else tracked * np.float32(0.9)
    assert list(record_faults(statement, recipe, lines)) == []
    for name in ("noise_std", "clip_norm"):
        other = [*lines[:-1], {**lines[-1], name: 1.01 * lines[-1][name]}]
        assert list(record_faults(statement, recipe, other))
