"""Bad input gets status 2, one line that says what is wrong and what to do, and nothing is written or lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_world import Refused, Sotto, World, files_of, newest, read_lines, write_corpus

SOTTO = Path(sys.executable).with_name("sotto")
PLAN = {"--users": 1000, "--cohort": 10, "--rounds": 20, "--delta": 1e-5, "--noise-multiplier": 1.0}


def plan(**changes: object) -> list[object]:
    """The arguments of a good plan, with some of them changed, added or (None) left out."""
    options = PLAN | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return ["plan", *(part for name, value in options.items() if value is not None for part in (name, value))]


def settings(*texts: str) -> list[str]:
    return [part for text in texts for part in ("--set", text)]


def assert_says(line: str, *words: str) -> None:
    for word in words:
        assert word in line, line


# The command line itself


@pytest.mark.slow
def test_a_real_process_ends_with_status_2_and_one_line(world: World, tmp_path: Path) -> None:
    arguments = ["train", world.recipe, "--out", tmp_path / "run", *settings("privacy.estimator=true_average")]
    done = subprocess.run([SOTTO, *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: privacy.estimator='true_average'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# Plan


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort": 1001}, ["--cohort 1001", "1000"]),
        ({"users": "many"}, ["users", "many"]),
        ({"noise_multiplier": None}, ["--noise-multiplier", "--epsilon", "neither"]),
        ({"epsilon": 2}, ["--noise-multiplier", "--epsilon", "both"]),
        ({"delta": "nan"}, ["--delta nan"]),
        ({"sampling": "fixed", "accountant": "moments"}, ["moments", "fixed", "rdp"]),
        ({"rounds": "9" * 100_000}, ["--rounds", "whole number"]),
    ],
)
def test_a_plan_refuses(refused: Refused, changes: dict[str, object], words: list[str]) -> None:
    assert_says(refused(*plan(**changes), "--json"), *words)


# A corpus


def test_a_full_disk_stops_a_run_that_can_go_on(
    sotto: Sotto, world: World, own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(descriptor: int) -> None:
        if "checkpoints/round-00000002" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    run = tmp_path / "run"
    monkeypatch.setattr(os, "fsync", full)
    told = sotto("train", world.recipe, "--out", run, "--json", *settings(f"data.store={own_store}"))
    assert told.status == 2
    assert told.err.count("\n") == 1
    assert_says(told.err, "round-00000002", "No space left on device", f"sotto resume {run}")
    assert not list(run.rglob("*.partial"))
    monkeypatch.undo()
    assert sotto("resume", run, "--json").json()["round"] == 4


def test_an_argument_with_a_nul_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert_says(refused("train", "demo", "--out", f"{tmp_path}/a\0b"), "NUL")
    assert_says(refused("evaluate", "a\0b"), "NUL")


# A recipe


def test_a_recipe_that_does_not_exist_is_named(refused: Refused, tmp_path: Path) -> None:
    assert_says(refused("train", "demmo", "--out", tmp_path / "run"), "demmo", "did you mean 'demo'")
    assert_says(refused("train", tmp_path / "mine.toml", "--out", tmp_path / "run"), "mine.toml", "there is no recipe")


# Ranges and combinations are tested in tests/unit/test_recipe.py and tests/unit/build/test_rules.py.


# A recipe whose parts do not go together


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["privacy.cohort=21"], ["privacy.cohort=21", "at most privacy.users=20"]),
        (["local.batch=100"], ["local.batch=100", "40 tokens"]),
        (["data.store=demo:abc"], ["data.store='demo:abc'", "demo:2000"]),
        (["data.store=/nowhere/at/all"], ["/nowhere/at/all", "sotto prepare"]),
    ],
)
def test_a_run_is_refused(refused: Refused, world: World, tmp_path: Path, changes: list[str], words: list[str]) -> None:
    assert_says(refused("train", world.recipe, "--out", tmp_path / "run", *settings(*changes)), *words)


def test_a_folder_that_is_no_store_is_refused(refused: Refused, world: World, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    line = refused("train", world.recipe, "--out", tmp_path / "run", *settings(f"data.store={tmp_path / 'photos'}"))
    assert_says(line, "photos", "store.json", "sotto prepare")


def test_a_store_whose_ledger_is_damaged_is_refused_before_a_run_is_paid_for(
    refused: Refused, world: World, own_store: Path, tmp_path: Path
) -> None:
    (own_store / "ledger.jsonl").write_text("not a charge\n")
    line = refused("train", world.recipe, "--out", tmp_path / "run", *settings(f"data.store={own_store}"))
    assert_says(line, "line 1", "ledger.jsonl", "damaged")


# A folder to train into


def test_a_folder_that_holds_another_run_is_refused(refused: Refused, world: World, run: Path) -> None:
    assert_says(refused("train", world.recipe, "--out", run), str(run), "another run", "sotto resume")


def test_a_folder_that_holds_something_else_is_refused(refused: Refused, world: World, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("ten years of work")
    assert_says(refused("train", world.recipe, "--out", tmp_path / "run"), str(tmp_path / "run"), "--out")
    assert_says(refused("train", world.recipe, "--out", tmp_path / "run" / "thesis.tex"), "thesis.tex")
    assert_says(refused("train", world.recipe, "--out", tmp_path / "run" / "thesis.tex" / "x"), "thesis.tex")


def test_a_folder_with_a_name_of_its_own_is_not_swept_away(sotto: Sotto, world: World, tmp_path: Path) -> None:
    """Another run may well be called `run.partial`."""
    shutil.copytree(world.run, tmp_path / "run.partial")
    before = files_of(tmp_path / "run.partial")
    sotto("train", world.recipe, "--out", tmp_path / "run", *settings("privacy.clipping=none"))
    assert (tmp_path / "run.partial").exists()
    assert files_of(tmp_path / "run.partial") == before


def test_the_demo_does_not_write_over_anything(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    assert_says(refused("demo", "--out", tmp_path / "demo"), str(tmp_path / "demo"), "--out")
    assert_says(refused("demo", "--out", tmp_path / "demo" / "mine.txt"), "mine.txt", "--out")


# Going on with a run


@pytest.mark.parametrize("verb", ["resume", "evaluate", "report"])
def test_a_run_that_does_not_exist_is_named(refused: Refused, tmp_path: Path, verb: str) -> None:
    wrong = "holds no model" if verb == "evaluate" else "holds no run"
    assert_says(refused(verb, tmp_path / "nowhere"), "nowhere", wrong)
    (tmp_path / "photos").mkdir()
    assert_says(refused(verb, tmp_path / "photos"), "photos", wrong)


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_run_without_a_model_yet_is_to_be_resumed_first(refused: Refused, unfinished: Path, verb: str) -> None:
    assert_says(refused(verb, unfinished), str(unfinished), f"sotto resume {unfinished}")


def test_a_report_without_a_statement_sends_one_to_resume(refused: Refused, run: Path) -> None:
    """A crash between the model and the statement leaves this."""
    (run / "privacy.json").unlink()
    assert_says(refused("report", run), f"sotto resume {run}")


def flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) * 2 // 3] ^= 4
    path.write_bytes(contents)


@pytest.mark.parametrize(
    "name", ["model/weights.safetensors", "model/vocabulary.txt", "model/card.json", "privacy.json"]
)
def test_a_bit_that_flipped_in_a_model_is_found_wherever_it_is_read(
    refused: Refused, sotto: Sotto, world: World, run: Path, tmp_path: Path, name: str
) -> None:
    flip(run / name)
    start = ("train", world.recipe, "--out", tmp_path / "new", "--from")
    commands = [
        ("evaluate", run), ("report", run), ("compare", run, world.run, "--out", tmp_path / "page.html"),
        ("export", run, "--out", tmp_path / "onnx"), (*start, run), ("audit", "canaries", run),
        ("evaluate", world.run, "--beside", run),
    ]  # fmt: skip
    for command in commands:
        assert_says(refused(*command), str(run / name), "resume")
    assert sotto("resume", run, "--json").status == 0  # which writes it again
    assert sotto("evaluate", run, "--json").status == 0


@pytest.mark.parametrize("name", ["train.arrow", "test.arrow", "vocabulary.txt", "store.json"])
def test_a_bit_that_flipped_in_a_store_is_found_before_a_run_is_paid_for(
    refused: Refused, world: World, own_store: Path, tmp_path: Path, name: str
) -> None:
    flip(own_store / name)
    line = refused("train", world.recipe, "--out", tmp_path / "run", *settings(f"data.store={own_store}"))
    assert_says(line, str(own_store), "damaged", name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("noise_multiplier = 1.0", "noise_multiplier = 0.5"),
        ("rounds = 4", "rounds = 8"),
    ],
)
def test_a_run_whose_recipe_was_edited_is_refused(refused: Refused, run: Path, old: str, new: str) -> None:
    recipe = run / "recipe.toml"
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    assert_says(refused("resume", run), str(run), "edited", "put it back")


def test_a_run_whose_recipe_cannot_be_read_any_more_is_refused(refused: Refused, run: Path) -> None:
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[run]\n", "[run]\nspeed = 9\n"))
    assert_says(refused("resume", run), "run.speed", "did you mean 'seed'")
    recipe.write_text("[run")
    for verb in ("resume", "evaluate", "report"):
        assert_says(refused(verb, run), str(recipe), "TOML")


def test_a_run_with_all_checkpoints_damaged_is_refused_and_they_are_kept(refused: Refused, run: Path) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    lost = "does not have the checkpoint of round 4", "start another"
    assert_says(refused("resume", run), str(run), *lost)
    shutil.rmtree(run / "checkpoints")
    assert_says(refused("resume", run), str(run), *lost)


def cut_ledger(run: Path, kept: int) -> None:
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:kept]))


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_ledger_shorter_than_its_checkpoint_is_refused(refused: Refused, run: Path, rounds: int) -> None:
    cut_ledger(run, 2 + rounds)  # after the header and the start
    assert_says(refused("resume", run), str(run), "ledger.jsonl has lost lines at its end", "put it back")
    (run / "ledger.head").unlink()
    line = refused("resume", run)
    assert_says(line, str(run), f"no entry for round {rounds + 1}", "checkpoint is at round 4", "start another")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "hole"])
def test_a_ledger_that_is_no_file_or_has_gigabytes_is_refused_at_once(sotto: Sotto, tmp_path: Path, kind: str) -> None:
    ledger = tmp_path / "ledger.jsonl"
    os.mkfifo(ledger) if kind == "pipe" else ledger.touch()
    if kind == "hole":
        os.truncate(ledger, 2**33)
    outcome = sotto("plan", "--ledger", ledger, "--delta", "1e-6")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {ledger} cannot be read (it ")
    assert outcome.err.count("\n") == 1


def test_a_run_without_its_secrets_is_refused(refused: Refused, unfinished: Path) -> None:
    shutil.rmtree(unfinished / "secrets")
    assert_says(refused("resume", unfinished), "secrets", "start another run")


def test_a_run_with_damaged_secrets_is_refused(refused: Refused, unfinished: Path) -> None:
    (key,) = (unfinished / "secrets").glob("*.key")
    key.write_bytes(key.read_bytes()[:10])
    assert_says(refused("resume", unfinished), key.name, "damaged", "start another run")


def test_a_run_whose_store_is_gone_is_refused(refused: Refused, sotto: Sotto, world: World, own_store: Path) -> None:
    run = own_store.with_name("run")
    own = settings(f"data.store={own_store}", "run.rounds=1", "run.evaluate_every=0")
    assert sotto("train", world.recipe, "--out", run, *own, "--json").status == 0
    own_store.rename(own_store.with_name("elsewhere"))
    for verb in ("resume", "evaluate"):
        assert_says(refused(verb, run), str(own_store))


def test_a_run_whose_store_was_replaced_by_one_of_other_words_is_refused(
    refused: Refused, sotto: Sotto, world: World, own_store: Path, tmp_path: Path
) -> None:
    """Its tokens would mean other words than those the model has learnt."""
    run = own_store.with_name("run")
    own = settings(f"data.store={own_store}", "run.rounds=2", "run.checkpoint_every=1", "run.evaluate_every=0")
    assert sotto("train", world.recipe, "--out", run, *own, "--json").status == 0
    newest(run).unlink()
    shutil.rmtree(own_store)
    (tmp_path / "words.txt").write_text("tea\nmilk\n")
    other = ("prepare", world.corpus, "--out", own_store, "--vocabulary", tmp_path / "words.txt")
    assert sotto(*other, "--tokens-per-user", 40, "--json").status == 0
    assert_says(refused("resume", run), str(own_store), "not the store")


def test_people_who_took_the_place_of_a_runs_store_are_charged_or_the_run_is_refused(
    sotto: Sotto, world: World, own_store: Path, tmp_path: Path
) -> None:
    """The same words, other people: rounds 3 and 4 are released on them, and were charged to those before them."""
    run = own_store.with_name("run")
    own = settings(f"data.store={own_store}", "run.evaluate_every=0")
    assert sotto("train", world.recipe, "--out", run, *own, "--json").status == 0
    newest(run).unlink()
    cut_ledger(run, 1 + 2)
    shutil.rmtree(own_store)
    write_corpus(tmp_path / "others.jsonl", seed=77)
    others = ("prepare", tmp_path / "others.jsonl", *world.prepare(own_store, "--test-users", 0.2, "--json")[2:])
    assert sotto(*others).status == 0
    if sotto("resume", run).status != 2:
        charged = read_lines(own_store / "ledger.jsonl") if (own_store / "ledger.jsonl").exists() else []
        assert sum(line["count"] for line in charged) >= 2


def test_a_record_damaged_in_the_middle_loses_no_line_that_can_be_read(sotto: Sotto, run: Path) -> None:
    """Rounds up to the checkpoint are not played again, so a line that is dropped is gone for good."""
    record = run / "record.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(lines[0] + b"\x00\x00\x00\n" + lines[2] + lines[3])
    outcome = sotto("resume", run)
    assert outcome.status in (0, 2)
    kept = record.read_bytes()
    for line in (lines[0], lines[2], lines[3]):
        assert line in kept


@contextmanager
def held_by_another_process(run: Path) -> Iterator[None]:
    """Another process trains this run: it has the lock, and gives it back when its standard input is closed."""
    program = (
        "import sys; from pathlib import Path; from sottovoce.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked():\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        process.communicate()


def test_a_run_in_use_by_another_process_is_left_alone(refused: Refused, sotto: Sotto, run: Path) -> None:
    with held_by_another_process(run):
        assert_says(refused("resume", run), str(run), "another process")
    assert sotto("resume", run, "--json").json()["ended"] == "finished"


# Evaluation


def test_a_store_with_another_vocabulary_is_refused(
    refused: Refused, sotto: Sotto, world: World, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("tea\nmilk\n")
    store = tmp_path / "store"
    assert sotto("prepare", world.corpus, "--out", store, "--vocabulary", tmp_path / "words.txt", "--json").status == 0
    assert_says(refused("evaluate", world.run, "--store", store), str(store), "another vocabulary", "--corpus")


def test_a_store_without_held_out_users_has_nobody_to_evaluate_on(
    refused: Refused, sotto: Sotto, world: World, tmp_path: Path
) -> None:
    assert sotto(*world.prepare(tmp_path / "store", "--test-users", 0, "--json")).status == 0
    assert_says(refused("evaluate", world.run, "--store", tmp_path / "store"), "no user", "--test-users")


def test_damaged_weights_are_named(refused: Refused, run: Path) -> None:
    weights = run / "model" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    assert_says(refused("evaluate", run), "weights.safetensors")
