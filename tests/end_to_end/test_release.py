"""The gate: what leaves a run and what does not, and every reason to let nothing out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import Refused, Sotto, World, call, files_of, newest, parse_json, write_checksums

from made_audits import audit_files
from sottovoce.commands.insert_canaries import saved_canary_scores
from sottovoce.commands.release import release_run, threshold
from sottovoce.commands.train import resume
from sottovoce.runs import checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import PREPARATION, StoreLedger
from sottovoce_evidence.accounting import GaussianRelease, SampledGaussian
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.ledger import chained
from sottovoce_evidence.recipe import Recipe

PLANTS = ("audit.users=40", "audit.secrets=2", "audit.holders=[1]", "audit.words=2")
MODEL = {"weights.safetensors", "vocabulary.txt", "card.json", "training.toml"}
EVIDENCE = {"privacy.json", "facts.json", "ledger.jsonl", "record.jsonl", "canaries.json", "baselines.json"}
PUBLIC = MODEL | EVIDENCE | {"README.md", "report.html", "SHA256SUMS", "SHA256SUMS.sig", "signer.pub"}


@pytest.fixture(scope="module")
def secret(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with canaries whose secrets are nobody's, on a store of its own. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("secret")
    store = shutil.copytree(world.store, folder / "store")
    changed = (f"data.store={store}", "privacy.secrets=entropy", "run.evaluate_every=0", *PLANTS)
    settings = [part for setting in changed for part in ("--set", setting)]
    assert call("train", world.recipe, "--out", folder / "run", "--json", *settings) == 0
    return folder / "run"


@pytest.fixture
def ready(secret: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(secret, tmp_path / "run"))


def audited(run: Path, name: str, **changed: Any) -> None:
    """As if an audit had found this."""
    folder = RunFolder.open(run)
    found = {
        "rounds": {
            "claimed": 2.0, "shown": 0.5, "delta": 0.01, "confidence": 0.999, "rounds": 1000,
            "claimed_multiplier": 1.0, "shown_multiplier": 1.1, "would_notice": 0.873,
        },
        "canaries": {
            "claimed": 2.0, "shown": 0.5, "delta": 0.01, "itself": True, "one_run": {"shown": 0.5},
            "curve": [], "exposure": [_exposure(1, 9.0), _exposure(16, 20.0)],
        },
    }[name]  # fmt: skip
    found |= {"weights": checkpoint.digest(folder.load_weights()), "contradicted": False} | changed
    folder.save_audit(name, audit_files({name: found})[name], None)


def _exposure(holders: int, bits: float) -> dict[str, Any]:
    return {"text": "cup of", "holders": holders, "bits": bits, "rank": 1, "references": 2**20}


def test_what_may_be_public_leaves_and_nothing_else(sotto: Sotto, ready: Path, tmp_path: Path) -> None:
    assert sotto("audit", "canaries", ready, "--json").status == 0
    keys = {path.name: path.read_bytes() for path in (ready / "secrets").iterdir()}
    kept = files_of(ready)
    out = tmp_path / "out"
    told = sotto("release", ready, "--out", out, "--yes")
    assert told.status == 0, told.out
    assert {path.name for path in out.iterdir()} - {"onnx"} == PUBLIC  # ONNX where the extra `export` is installed
    for name in ("weights.safetensors", "vocabulary.txt"):
        assert (out / name).read_bytes() == (ready / "model" / name).read_bytes()
    statement = parse_json((out / "privacy.json").read_text())
    assert statement["epsilon"] == parse_json((ready / "privacy.json").read_text())["epsilon"]
    assert [(one["audit"], one["result"]) for one in statement["audits"]] == [
        ("rounds", "not run"),
        ("canaries", "passed"),
    ]
    # Anyone who has the folder alone checks it, and computes the same ε.
    check = told.out.partition("with: sotto ")[2].splitlines()[0].split()
    judged = sotto(*check, "--json").json()
    assert judged["verified"]
    assert {one["result"] for one in judged["checks"]} == {"passed"}
    assert judged["epsilons"][2]["epsilon"] == pytest.approx(statement["epsilon"], rel=1e-3)
    # The keys are gone, and so is the salt; the rest of the run is as it was.
    assert not (ready / "secrets").exists()
    assert {name: body for name, body in kept.items() if not name.startswith("secrets")} == files_of(ready)
    # Nothing of them, of the scores, or of what is exact is in what left.
    header = json.loads((ready / "ledger.jsonl").read_text().splitlines()[0])
    saved = checkpoint.newest(ready / "checkpoints")
    assert saved is not None
    private = [*keys.values(), *(key.hex().encode() for key in keys.values()), header["store"].encode()]
    # The first digits of each, as JSON has them: ten of them stand nowhere by chance.
    scores = [repr(float(score))[:12].encode() for score in saved_canary_scores(saved)]
    private += [score for score in scores if len(score) == 12]
    assert len(private) > 30
    private += [b'"guesses"', b'"correct"', b'"shown"']  # what the audit of the run's own rounds found
    private.append((ready / "diagnostics.jsonl").read_bytes().splitlines()[0])
    private.append(str(tmp_path).encode())
    for path in (path for path in out.rglob("*") if path.is_file()):
        for value in private:
            assert value not in path.read_bytes()
    with pytest.raises(DamagedRun, match="run was released, and its secrets were erased; start another run"):
        resume(ready)
    assert "audited by rounds; to audit it first: sotto audit rounds" in told.out
    further = sotto("release", ready, "--out", tmp_path / "further", "--dry-run").out
    assert "was released before, and its secrets are erased already: this is a further copy" in further
    with pytest.raises(SottoError, match="give the folder of its run"):
        RunFolder.open(out)


def test_an_audit_that_was_not_run_is_told_or_asked_for(sotto: Sotto, ready: Path, tmp_path: Path) -> None:
    refused = sotto("release", ready, "--out", tmp_path / "out", "--require-audit")
    assert refused.status == 1
    assert "no audit by rounds of this model: sotto audit" in refused.out
    assert "no audit by canaries of this model" in refused.out
    audited(ready, "rounds")
    audited(ready, "canaries", weights="of an earlier model")
    assert "no audit by rounds" not in sotto("release", ready, "--out", tmp_path / "out", "--require-audit").out
    told = sotto("release", ready, "--out", tmp_path / "out", "--yes", "--json").json()
    assert told["not_run"] == ["canaries"]
    assert told["released"] is True
    assert told["audits"][0]["shown"] == 0.5
    assert told["audits"][0]["would_notice"] == 0.873


def shorten(run: Path) -> None:
    ledger = run / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))
        write_checksums(run)

    return change


def flip(name: str) -> Callable[[Path], None]:
    """Change one bit, by accident."""

    def change(run: Path) -> None:
        contents = bytearray((run / name).read_bytes())
        contents[len(contents) // 2] ^= 4
        (run / name).write_bytes(contents)

    return change


def cut_short(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_bytes((run / name).read_bytes()[:-3])

    return change


def another_model(run: Path) -> None:
    weights = run / "model/weights.safetensors"
    body = weights.read_bytes()
    weights.write_bytes(body[:-4] + bytes(4))
    write_checksums(run)


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (shorten, "ledger.jsonl has lost lines at its end"),
    (edit("ledger.jsonl", '"start"', '"st'), "is damaged"),
    (edit("recipe.toml", "rounds = 4", "rounds = 3"), "edited after the run began"),
    (edit("recipe.toml", 'secrets = "entropy"', 'secrets = "seeded"'), "anyone who knows run.seed=3"),
    (edit("privacy.json", "},\n      4\n", "},\n      3\n"), "the statement's charges come to ε = "),
    (edit("privacy.json", '"epsilon": 2.', '"epsilon": 1.'), "not what recipe and charges come to: epsilon"),
    (edit("privacy.json", '"run": "', '"run": "0'), "the statement of another run"),
    (edit("privacy.json", '"private": true', '"private": false'), "gives no guarantee"),
    (edit("model/vocabulary.txt", "kettle", "kennel"), "is not the vocabulary of the statement"),
    (edit("canaries.json", "kettle", "tea"), "not what was inserted"),
    (another_model, "is not the model of the last checkpoint"),
    (flip("model/weights.safetensors"), "weights.safetensors is not the file that privacy.json names"),
    (flip("model/vocabulary.txt"), "vocabulary.txt is not the file that privacy.json names"),
    (flip("model/card.json"), "card.json cannot be read ("),
    (cut_short("privacy.json"), "privacy.json is not JSON"),
    (lambda run: newest(run).unlink(), "does not have the checkpoint of round 4 that the run committed"),
    (lambda run: audited(run, "rounds", contradicted=True, shown=3.0), "by rounds shows ε >= 3 at δ = 0.01, and 2 is"),
    (
        lambda run: audited(run, "rounds", contradicted=True, shown_multiplier=0.523),
        "by rounds shows noise of at most 0.523 times the sensitivity, and 1 is claimed",
    ),
    (lambda run: audited(run, "canaries", contradicted=True, shown=3.0), "by canaries shows ε >= 3"),
    (
        lambda run: audited(run, "canaries", exposure=[_exposure(1, 12.0), _exposure(1, 3.0)]),
        "is exposed by 12.0 bits (rank 1 of 1,048,576), more than 11",
    ),
]


@pytest.mark.parametrize(("break_it", "reason"), FAULTS, ids=[reason[:40] for _, reason in FAULTS])
def test_a_reason_against_it_lets_nothing_out(
    sotto: Sotto, ready: Path, tmp_path: Path, break_it: Callable[[Path], object], reason: str
) -> None:
    break_it(ready)
    before = files_of(ready)
    told = sotto("release", ready, "--out", tmp_path / "out")
    assert told.status == 1, told
    assert reason in told.out
    assert not (tmp_path / "out").exists()
    assert files_of(ready) == before


def test_what_would_not_verify_is_refused_before_anything_is_erased(sotto: Sotto, ready: Path, tmp_path: Path) -> None:
    """Ledgers, claim and files agree; only a check of the folder as others get it finds the fault."""
    edit("record.jsonl", '"noise_std": 0.', '"noise_std": 1.')(ready)
    before, people = files_of(ready), files_of(store_of(ready))
    told = sotto("release", ready, "--out", tmp_path / "out", "--yes")
    assert told.status == 1, told
    fault = "record: round 1 has clip norm 1 and noise of standard deviation 1."
    assert f"not released: {ready}\n- `sotto verify` of the release would fail: {fault}" in told.out
    assert not (tmp_path / "out").exists()
    assert files_of(ready) == before
    assert files_of(store_of(ready)) == people
    edit("record.jsonl", '"noise_std": 1.', '"noise_std": 0.')(ready)
    assert sotto("release", ready, "--out", tmp_path / "out", "--yes").status == 0


def store_of(run: Path) -> Path:
    return Path(Recipe.load(run / "recipe.toml").data.store)


@pytest.fixture
def people(ready: Path) -> Iterator[StoreLedger]:
    """The ledger of the run's store, which is put back afterwards."""
    folder = store_of(ready)
    kept = {name: (folder / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    yield StoreLedger(folder / "ledger.jsonl")
    for name, contents in kept.items():
        (folder / name).write_bytes(contents)


@pytest.mark.parametrize("also", [(), ("ledger.head",), ("ledger.head", "ledger.charged")], ids=str)
def test_people_who_were_never_charged(ready: Path, tmp_path: Path, people: StoreLedger, also: tuple[str, ...]) -> None:
    """The store's ledger was put back from before the run."""
    people.path.unlink()
    moved = [people.path.with_name(name).rename(tmp_path / name) for name in also]
    try:
        result = release_run(ready, tmp_path / "out")
    finally:
        for path in moved:
            path.rename(people.path.with_name(path.name))
    said = (
        "its people were not asked to pay"
        if "ledger.charged" in also
        else "has no charge, though its people were charged before"
    )
    assert any(said in reason for reason in result.reasons)
    assert not (tmp_path / "out").exists()


def test_people_who_were_charged_for_some_rounds_only(ready: Path, tmp_path: Path, people: StoreLedger) -> None:
    run = parse_json((ready / "privacy.json").read_text())["run"]
    lines = [parse_json(line) for line in people.path.read_text().splitlines()]
    short = [line | {"count": line["count"] - 1} if line["run"] == run and "count" in line else line for line in lines]
    people.path.write_text("".join(json.dumps(line) + "\n" for line in short))
    assert any("was changed" in reason for reason in release_run(ready, tmp_path / "out").reasons)
    people.path.unlink()  # written anew, as by an owner who edits
    people.path.write_bytes(chained([{name: line[name] for name in line if name != "check"} for line in short]))
    people.path.with_suffix(".head").unlink()
    assert any("lacks 1 of the run's" in reason for reason in release_run(ready, tmp_path / "out").reasons)
    assert not (tmp_path / "out").exists()


def test_a_claim_without_the_words_that_were_paid_for(ready: Path, tmp_path: Path, people: StoreLedger) -> None:
    people.charge(PREPARATION, "private vocabulary", GaussianRelease(2.0, 1e-6), 1)
    result = release_run(ready, tmp_path / "out")
    assert any("the statement's charges come to" in reason for reason in result.reasons)
    assert not (tmp_path / "out").exists()


def test_of_a_copy_it_is_told_that_it_passed_and_nothing_else(ready: Path, tmp_path: Path) -> None:
    """It was trained on the same people, and nobody was charged for it."""
    audited(ready, "canaries", itself=False, curve=[{"holders": 1, "median": 3.21}])
    assert release_run(ready, tmp_path / "out").released
    for name in ("privacy.json", "card.json"):
        assert "3.21" not in (tmp_path / "out" / name).read_text()
    (told,) = [one for one in parse_json((tmp_path / "out/privacy.json").read_text())["audits"] if len(one) > 2]
    assert told == {"audit": "canaries", "result": "passed", "of": "a copy", "one_run": True}


def test_the_store_s_total_is_the_one_of_today(ready: Path, tmp_path: Path, people: StoreLedger) -> None:
    before = parse_json((ready / "privacy.json").read_text())["epsilon_store"]
    people.charge("another run", "training", SampledGaussian(1.0, "poisson", 0.3), 10)
    assert release_run(ready, tmp_path / "out").released
    after = parse_json((tmp_path / "out/privacy.json").read_text())
    assert after["epsilon_store"] > before


def test_checkpoints_that_the_run_did_not_make_are_not_released(ready: Path, tmp_path: Path) -> None:
    """Edited, model and all, with the hash that fits."""
    from safetensors.numpy import load_file, save_file

    saved = checkpoint.newest(ready / "checkpoints")
    assert saved is not None
    saved.arrays["0000"][0] += 1
    checkpoint.give_name(ready / "checkpoints", checkpoint.save_draft(ready / "checkpoints", saved))
    weights = load_file(ready / "model/weights.safetensors")
    (name,) = [name for name, value in weights.items() if np.array_equal(value[1:], saved.arrays["0000"][1:])]
    save_file({**weights, name: saved.arrays["0000"]}, ready / "model/weights.safetensors")
    write_checksums(ready)
    result = release_run(ready, tmp_path / "out")
    assert any("does not have the checkpoint of round 4 that the run committed" in reason for reason in result.reasons)
    assert not (tmp_path / "out").exists()


def test_the_threshold_of_exposure(ready: Path, tmp_path: Path) -> None:
    """Above 10 bits a model that knows nothing comes once in 1,024 times; with more secrets, one of them does."""
    assert threshold(1) == 10
    assert threshold(8) == 13
    audited(ready, "canaries", exposure=[_exposure(1, 9.0), _exposure(16, 20.0)])
    assert release_run(ready, tmp_path / "out", most_exposure=8.0).released is False
    assert release_run(ready, tmp_path / "out").released is True  # what sixteen people wrote is no one's secret


def test_a_run_that_promises_nothing_and_a_folder_that_is_taken(refused: Refused, ready: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").touch()
    assert "not an empty folder" in refused("release", ready, "--out", tmp_path / "out")
    assert "--most-exposure -1 must be above 0" in refused(
        "release", ready, "--out", tmp_path / "o", "--most-exposure", -1
    )
    assert "holds no run" in refused("release", tmp_path / "nothing", "--out", tmp_path / "o")


@pytest.mark.parametrize("given", [(), ("--json",)])
def test_where_nobody_can_be_asked_nothing_is_released_or_erased(
    refused: Refused, ready: Path, tmp_path: Path, given: tuple[str, ...]
) -> None:
    assert "cannot be undone" in refused("release", ready, "--out", tmp_path / "out", *given)
    assert (ready / "secrets").is_dir()
